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
  let_dependents_launch();
  wait_for_kernel_before();  // what came before the decode kernel may still write lengths
  LeftEntries left;
  RequestShape shape;
  if (request < c.requests) {
    shape = decode_shape_of(p, request);
    if (row < bounded(shape.q_len * c.group - m.place.unit * kUnitRows, kUnitRows))
      left = left_entries(chunks_of(decode_tiles({c.mask, c.mask_size, shape.q_offset}, shape,
                                                 c.group, m.place.unit)
                                        .visited),
                          p.chunks_per_piece);
  }
  if (left.count <= 1) return;  // written by the decode kernel

  const auto place_of = [&](int i) {
    return p.partials.entry(request, p.kv_heads, m.place.head, m.place.unit, left.chunk(i)) *
               p.partials.rows +
           row;
  };
  // What is loaded of 32 entries flies together: ends a lane each, and this lane's column of all.
  PieceEnd all{minus_infinity(), 0.0f};
  float o = 0;
  ASSAY_NO_UNROLL
  for (int from = 0; from < left.count; from += 32) {
    PieceEnd mine{minus_infinity(), 0.0f};
    if (from + lane < left.count) mine = p.partial_ends[place_of(from + lane)];
    float values[32];
#pragma unroll
    for (int i = 0; i < 32; ++i)
      values[i] = from + i < left.count ? p.partial_out[place_of(from + i) * kDim + column] : 0.0f;
    // The maximum up to each lane's entry, and before it.
    float after = mine.scaled_max;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const float other = shuffle_up(after, distance);
      if (lane >= distance) after = max_nan(after, other);
    }
    after = max_nan(after, all.scaled_max);
    const float other = shuffle_up(after, 1);
    const FoldWeights weights =
        fold_weights(lane == 0 ? all.scaled_max : other, mine.scaled_max, after);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      if (from + i >= left.count) break;
      const float part = broadcast(mine.sum, i);
      const FoldWeights w{broadcast(weights.before, i), broadcast(weights.chunk, i)};
      all.sum = from + i == 0 ? part : folded(all.sum, part, w);
      o = from + i == 0 ? values[i] : folded(o, values[i], w);
    }
    all.scaled_max = broadcast(after, 31);
  }
  const RowEnd end = folded_end(all, c.v_scale);
  const auto at = [&](std::int64_t request_stride, std::int64_t row_stride,
                      std::int64_t head_stride) {
    return decode_place_of_row(c, request, shape, m.place, row, request_stride, row_stride,
                               head_stride);
  };
  if (c.lse != nullptr && column == 0)
    c.lse[at(c.lse_request_stride, c.lse_row_stride, c.lse_head_stride)] = end.lse_log2;
  c.out[at(c.out_request_stride, c.out_row_stride, c.out_head_stride) + column] =
      narrow_output<T>(mul_rn(o, end.factor), p.out_f16 != 0);
}

}  // namespace assay::attention_kernels
