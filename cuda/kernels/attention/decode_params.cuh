// What a launch of a decode kernel copies to the device: what a prefill has, where queries and
// partial results lie, and bounds that lengths in device memory are forced into (SPEC CUD-7.5).
// Plain data for both sides.
#pragma once

#include "cuda/kernels/attention/decode_plan.hpp"
#include "cuda/kernels/attention/decode_softmax.cuh"
#include "cuda/kernels/attention/params.cuh"

namespace assay::attention_kernels {

struct DecodeParams {
  PrefillParams
      call;       // its counters and decisions have key heads where a prefill's have query heads
  const void* q;  // strides in elements
  std::int64_t q_request_stride, q_row_stride, q_head_stride;
  std::int32_t kv_heads;
  std::int32_t q_len_most, kv_len_most;
  std::int32_t takes_more;  // 0: no more pieces than blocks, and next_work is not looked at
  std::int32_t out_f16;     // of e4m3 inputs: F16 rather than BF16
  std::int32_t chunks_per_piece;
  PartialShape partials;
  float* partial_out;      // [entry, partials.rows, head_dim]
  PieceEnd* partial_ends;  // [entry, partials.rows]
};

}  // namespace assay::attention_kernels
