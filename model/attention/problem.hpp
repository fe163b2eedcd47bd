// The inputs of one attention call as they lie in memory: accessors to rows, ragged lengths, masks,
// scales and thresholds. Nothing is copied or decoded here. Decides what a problem may look like
// (SPEC ATT-2); what becomes of it is truth.hpp's and a profile's business.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/attention/tile_schedule.hpp"
#include "model/core/bits.hpp"
#include "model/core/dtype.hpp"
#include "model/core/expected.hpp"
#include "model/core/platform.hpp"

namespace assay::attention {

// Rows [0, available) of one request in one tensor, for any head. Contiguous if block_table is
// null: row i of head h begins at base + i * row_stride + h * head_stride. Paged: i / page_rows
// selects an entry of the block table, which counts in page_stride. Strides are in elements, so
// that they may exceed 2^31 (SPEC ATT-2.2). Rows at and beyond a request's length, up to
// `available`, exist in memory and belong to somebody else: only a profile that says so reads them
// (SPEC ATT-2.3).
struct Rows {
  const std::byte* base = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t available = 0;
  const std::int32_t* block_table = nullptr;
  std::int64_t page_rows = 0;
  std::int64_t page_stride = 0;

  // The bytes of a row, or null where there is none.
  ASSAY_HD const std::byte* row(std::int64_t head, std::int64_t i, int element_bytes) const {
    if (base == nullptr || i < 0 || i >= available) return nullptr;
    std::int64_t element = head * head_stride;
    if (block_table == nullptr) {
      element += i * row_stride;
    } else {
      element += block_table[i / page_rows] * page_stride + i % page_rows * row_stride;
    }
    return base + element * element_bytes;
  }
};

// Rows of [.., rows, heads, dim], dense, of which the request's first row is `first`.
Rows contiguous_rows(const void* tensor, std::int64_t first, std::int64_t available, int heads,
                     int dim, int element_bytes);
// Rows of pages [pages, parts, page_rows, heads, dim]; part 0 holds keys, part 1 values (parts 2).
Rows paged_rows(const void* pages, const std::int32_t* block_table, std::int64_t available,
                int page_rows, int parts, int part, int heads, int dim, int element_bytes);

// When a tile may be left out: kScaleFactor gives lambda = value / (a length that the profile
// names), kLambda is lambda itself (SPEC ATT-2.4).
struct Threshold {
  enum class Kind : std::uint8_t { kOff, kScaleFactor, kLambda };
  Kind kind = Kind::kOff;
  float value = 0;
};

struct Request {
  Rows q;
  Rows k;
  Rows k_rope;  // MLA: the last rope_dim elements of every key; else empty
  Rows v;       // MLA: the compressed rows that are the first part of the keys
  std::int32_t q_len = 0;
  std::int32_t kv_len = 0;
  std::int32_t q_offset = 0;  // position of query row 0 among the keys (SPEC ATT-1.1)
  Threshold threshold;
};

struct Problem {
  Dtype dtype = Dtype::kBf16;      // of q, k and v: BF16, F16 or F8_E4M3
  Dtype out_dtype = Dtype::kBf16;  // BF16 or F16
  int q_heads = 1;
  int kv_heads = 1;  // divides q_heads: 1 is MQA, q_heads is MHA
  int head_dim = 64;
  int rope_dim = 0;  // of head_dim, the part of keys that k_rope holds
  int v_dim = 64;
  std::vector<Request> requests;
  MaskKind mask = MaskKind::kFull;
  std::int32_t mask_size = 0;  // window or chunk, in keys
  // Custom mask on top of `mask`: [request] -> row-major [q_len, kv_len], 0 hides. Empty: none.
  std::vector<std::span<const std::uint8_t>> custom_mask;
  float scale = 0;                      // of q . k; 2^-126 to 2^126, as all scales and products
  float softcap = 0;                    // 0: none; else cap * tanh(scale * q.k / cap)
  std::span<const float> sinks;         // [q_heads], in nats, or empty
  std::span<const float> alibi_slopes;  // [q_heads], or empty: adds slope * (key - position)
  float q_scale = 1, k_scale = 1, v_scale = 1;  // what an element's code stands for (fp8)
  int splits = 1;  // how many pieces the keys are cut into, if the profile cuts them

  int group() const { return q_heads / kv_heads; }
  int element_bytes() const { return static_cast<int>(dtype_bits(dtype) / 8); }
  Mask mask_of(const Request& r) const { return {mask, mask_size, r.q_offset}; }
  bool sees(std::size_t request, std::int32_t row, std::int32_t key) const;
  // Query rows of all requests before this one: outputs are packed [total rows, q_heads, ...].
  std::int64_t first_row(std::size_t request) const;
};

// Refuses what no profile can mean: sizes that are not positive, kv_heads that does not divide
// q_heads, scales and products of scales beyond 2^-126 to 2^126, rows that do not exist, a NaN or
// negative threshold, lengths below zero (SPEC ATT-2.1).
Status check(const Problem& problem);

// Copies key `i` (both parts of it) or value `i` of a head to `out`, zeros where there is no row.
void copy_key(const Problem& problem, const Request& r, int kv_head, std::int64_t i,
              std::byte* out);
void copy_value(const Problem& problem, const Request& r, int kv_head, std::int64_t i,
                std::byte* out);
void copy_query(const Problem& problem, const Request& r, int q_head, std::int64_t i,
                std::byte* out);

// An element widened to f32, which is exact.
F32 element(Dtype dtype, const std::byte* bits);

}  // namespace assay::attention
