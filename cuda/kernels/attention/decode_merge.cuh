// The kernel that merges what decode blocks left of units with several chunks: a warp for 32
// columns of a row, in chunk order whoever computed them. Decides how the merge is spread (SPEC
// CUD-7.4); its order and roundings are SPEC ATT-5.4's.
#pragma once

#include "cuda/kernels/attention/decode_values_sm90.cuh"
#include "cuda/ops/dependent_launch.hpp"

namespace assay::attention_kernels {

inline constexpr int kMergeWarps = 4;

// T as the decode kernel's: of the output, or e4m3, where p.out_f16 tells.
template <class T, int kDim>
__global__ void __launch_bounds__(kMergeWarps * 32)
    merge_kernel(const __grid_constant__ DecodeParams p) {
  const int lane = thread_index() % 32;
  const PrefillParams& c = p.call;
  const MergePlace m = merge_place(std::int64_t{block_index()} * kMergeWarps + warp_index(),
                                   p.kv_heads, p.partials, kDim);
  const std::int32_t request = m.request;
  const int row = m.row, column = m.column + lane;
  DecodePlace place = m.place;
  Range chunks;
  RequestShape shape;
  if (request < c.requests) {
    shape = decode_shape_of(p, request);
    if (row < bounded(shape.q_len * c.group - place.unit * kUnitRows, kUnitRows))
      chunks = chunks_of(
          decode_tiles({c.mask, c.mask_size, shape.q_offset}, shape, c.group, place.unit).visited);
  }
  wait_for_kernel_before();
  if (chunks.count() <= 1) return;  // written by the decode kernel

  place.chunk = chunks.begin;
  const int pieces = chunks.count();
  const std::int64_t first = p.partials.entry(request, p.kv_heads, place);
  const PieceEnd* const ends = p.partial_ends + first * p.partials.rows + row;
  const float* const parts = p.partial_out + (first * p.partials.rows + row) * kDim + column;
  // What is loaded of 32 pieces flies together: ends a lane each, and this lane's column of all.
  PieceEnd mine{minus_infinity(), 0.0f};
  float values[32];
  const auto load = [&](int from) {
    mine = {minus_infinity(), 0.0f};
    if (from + lane < pieces) mine = ends[(from + lane) * p.partials.rows];
#pragma unroll
    for (int i = 0; i < 32; ++i)
      values[i] = from + i < pieces
                      ? parts[static_cast<std::int64_t>(from + i) * p.partials.rows * kDim]
                      : 0.0f;
  };
  load(0);
  float scaled_max = mine.scaled_max;
  ASSAY_NO_UNROLL
  for (int piece = 32 + lane; piece < pieces; piece += 32)
    scaled_max = max_nan(scaled_max, ends[piece * p.partials.rows].scaled_max);
#pragma unroll
  for (int distance = 16; distance >= 1; distance /= 2)
    scaled_max = max_nan(scaled_max, shuffle_xor(scaled_max, distance));
  const float base = merge_base(scaled_max);
  float o = 0, sum = 0;
  ASSAY_NO_UNROLL
  for (int from = 0; from < pieces; from += 32) {
    if (from != 0) load(from);
    const float weight = merge_weight(mine.scaled_max, base);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      if (from + i >= pieces) break;
      const float w = broadcast(weight, i);
      sum = merged(sum, broadcast(mine.sum, i), w, from + i == 0);
      o = merged(o, values[i], w, from + i == 0);
    }
  }
  const RowEnd end = merged_end(base, sum, c.v_scale);
  const auto at = [&](std::int64_t request_stride, std::int64_t row_stride,
                      std::int64_t head_stride) {
    return decode_place_of_row(c, request, shape, place, row, request_stride, row_stride,
                               head_stride);
  };
  if (c.lse != nullptr && column == 0)
    c.lse[at(c.lse_request_stride, c.lse_row_stride, c.lse_head_stride)] = end.lse_log2;
  c.out[at(c.out_request_stride, c.out_row_stride, c.out_head_stride) + column] =
      narrow_output<T>(mul_rn(o, end.factor), p.out_f16 != 0);
}

}  // namespace assay::attention_kernels
