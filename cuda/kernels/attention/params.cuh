// What a launch of an attention kernel copies to the device. Plain data for both sides; who checks
// it is the launcher (cuda/launch/attention_launch.hpp), and the kernels trust all of it but what
// lies in device memory (SPEC CUD-6.5).
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/kernels/attention/plan.hpp"

namespace assay::cuda {
struct WaitRecord;
}

namespace assay::attention_kernels {

// Position of query row 0 among the keys, for all requests: kv_len - q_len; 0; an array.
enum class OffsetRule : std::int32_t { kBottomRight, kTopLeft, kGiven };

// Lengths of requests. Arrays are in device memory; null means what the comment says.
struct Lengths {
  const std::int32_t* first_q;   // [requests + 1], packed rows; null: request r has rows of its own
  const std::int32_t* first_kv;  // likewise
  const std::int32_t* q_len;     // [requests]; null: first_q's differences, or q_len_all
  const std::int32_t* kv_len;
  const std::int32_t* q_offset;  // [requests], of kGiven
  std::int32_t q_len_all, kv_len_all;
  std::int32_t q_rows, kv_rows;  // of a tensor if packed, else per request
  OffsetRule offset_rule;
};

// Keys and values in pages: entry [request, i / page_rows] of the table names a page.
struct Pages {
  const std::int32_t* table;  // null: contiguous
  std::int32_t table_stride;  // entries per request
  std::int32_t num_pages;     // entries outside [0, num_pages) read as zeros
  std::int32_t page_rows;
  std::int32_t box_rows;  // per copy, in pages or not: a page's, at most a block's share of a tile
};

struct Threshold {
  const float* factors;  // [requests] in device memory, or null: `factor` for all
  float factor;
  std::int32_t divides;  // 1: lambda = factor / kv_len; 0: the factor is lambda
  std::int32_t enabled;
};

struct PrefillParams {
  CUtensorMap q, k, v;  // axes d, row, head, request or page
  std::uint16_t* out;   // strides in elements; rows packed as q's are, or [request, row]
  std::int64_t out_request_stride, out_row_stride, out_head_stride;
  float* lse;  // or null
  std::int64_t lse_request_stride, lse_row_stride, lse_head_stride;
  Lengths lengths;
  Pages pages;
  Threshold threshold;
  MaskKind mask;
  std::int32_t mask_size;
  std::int32_t requests, q_heads, group, section_heads;
  std::int32_t cluster;      // blocks that share keys and values: 2 of neighbouring heads, or 1
  float scale_log2;          // scale * log2(e)
  float scale_log2_inverse;  // 1 / scale_log2
  float v_scale;
  std::uint32_t* next_work;  // 0 before the launch
  std::uint64_t* counters;   // [q_heads, 2]: tiles visited, tiles skipped; added to; or null
  std::uint8_t* decisions;   // [requests, q_heads, decision_units, decision_tiles]; or null
  std::int32_t decision_units, decision_tiles;
  std::uint64_t timeout_ns;
  cuda::WaitRecord* record;  // mapped host memory, or null
};

}  // namespace assay::attention_kernels
