// The kernel that merges what decode blocks left of units with several chunks: a warp a row, in
// chunk order whoever computed them. Decides how the merge is spread (SPEC CUD-7.4); its order and
// roundings are SPEC ATT-5.4's.
#pragma once

#include "cuda/kernels/attention/decode_values_sm90.cuh"
#include "cuda/ops/dependent_launch.hpp"

namespace assay::attention_kernels {

inline constexpr int kMergeWarps = 4;

// A row's pieces, 32 at a time, a lane each.
struct PieceLane {
  float scaled_max = 0;
  float sum = 0;
};

// T as the decode kernel's: of the output, or e4m3, where p.out_f16 tells.
template <class T, int kDim>
__global__ void __launch_bounds__(kMergeWarps * 32)
    merge_kernel(const __grid_constant__ DecodeParams p) {
  wait_for_kernel_before();
  const int lane = thread_index() % 32;
  const PrefillParams& c = p.call;
  std::int64_t n = std::int64_t{block_index()} * kMergeWarps + warp_index();
  const int row = static_cast<int>(n % p.partials.rows);
  n /= p.partials.rows;
  DecodePlace place;
  place.head = static_cast<std::int32_t>(n % p.kv_heads);
  n /= p.kv_heads;
  place.unit = static_cast<std::int32_t>(n % p.partials.units);
  const auto request = static_cast<std::int32_t>(n / p.partials.units);
  if (request >= c.requests) return;
  const RequestShape shape = decode_shape_of(p, request);
  if (row >= bounded(shape.q_len * c.group - place.unit * kUnitRows, kUnitRows)) return;
  const Range chunks = chunks_of(
      decode_tiles({c.mask, c.mask_size, shape.q_offset}, shape, c.group, place.unit).visited);
  if (chunks.count() <= 1) return;  // written by the decode kernel
  place.chunk = chunks.begin;
  const std::int64_t first = p.partials.entry(request, p.kv_heads, place);
  const auto end_at = [&](int piece) {
    return p.partial_ends[(first + piece) * p.partials.rows + row];
  };

  const int pieces = chunks.count();
  float scaled_max = minus_infinity();
  ASSAY_NO_UNROLL
  for (int piece = lane; piece < pieces; piece += 32)
    scaled_max = max_nan(scaled_max, end_at(piece).scaled_max);
#pragma unroll
  for (int distance = 16; distance >= 1; distance /= 2)
    scaled_max = max_nan(scaled_max, shuffle_xor(scaled_max, distance));
  const float base = merge_base(scaled_max);

  constexpr int kColumns = kDim / 32;  // of a lane, side by side
  float o[kColumns];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) o[i] = 0.0f;
  ASSAY_NO_UNROLL
  for (int from = 0; from < pieces; from += 32) {
    PieceEnd mine{minus_infinity(), 0.0f};
    if (from + lane < pieces) mine = end_at(from + lane);
    const float weight = merge_weight(mine.scaled_max, base);
    const int count = attention::schedule_detail::smaller(32, pieces - from);
    // Loads of several pieces fly together.
#pragma unroll 8
    for (int i = 0; i < count; ++i) {
      const float* const part =
          p.partial_out + ((first + from + i) * p.partials.rows + row) * kDim + lane * kColumns;
      const float w = broadcast(weight, i);
      const bool is_first = from + i == 0;
      sum = merged(sum, broadcast(mine.sum, i), w, is_first);
      float values[kColumns];
#pragma unroll
      for (int j = 0; j < kColumns; j += 2) {
        const float2 two = *reinterpret_cast<const float2*>(part + j);
        values[j] = two.x;
        values[j + 1] = two.y;
      }
#pragma unroll
      for (int j = 0; j < kColumns; ++j) o[j] = merged(o[j], values[j], w, is_first);
    }
  }
  const RowEnd end = merged_end(base, sum, c.v_scale);
  if (c.lse != nullptr && lane == 0)
    c.lse[decode_place_of_row(c, request, shape, place, row, c.lse_request_stride, c.lse_row_stride,
                              c.lse_head_stride)] = end.lse_log2;
  std::uint16_t* const to =
      c.out + decode_place_of_row(c, request, shape, place, row, c.out_request_stride,
                                  c.out_row_stride, c.out_head_stride);
#pragma unroll
  for (int j = 0; j < kColumns; j += 2) {
    const std::uint32_t low = narrow_output<T>(mul_rn(o[j], end.factor), p.out_f16 != 0);
    const std::uint32_t high = narrow_output<T>(mul_rn(o[j + 1], end.factor), p.out_f16 != 0);
    *reinterpret_cast<std::uint32_t*>(to + lane * kColumns + j) = low | high << 16;
  }
}

}  // namespace assay::attention_kernels
