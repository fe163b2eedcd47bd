// Attention problems as one line of text, and the memory that such a line stands for: "dtype=BF16
// heads=4/2 dim=64/64 q=64,1 kv=300,17 mask=causal lambda=0.02 contrast=8 seed=7". Decides the keys
// of a case, their limits and what data a case has (SPEC VER-22.1, VER-22.2). Not decided here:
// what a property does with the problem (property.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/attention/attention.hpp"
#include "model/core/expected.hpp"

namespace assay::verify {

struct AttentionCase {
  Dtype dtype = Dtype::kBf16;
  std::int32_t q_heads = 1, kv_heads = 1;
  std::int32_t dim = 96, v_dim = 32;     // head_dim of q and k; of v
  std::vector<std::int32_t> q = {128};   // [requests] query rows
  std::vector<std::int32_t> kv = {512};  // [requests] keys
  attention::MaskKind mask = attention::MaskKind::kFull;
  std::int32_t mask_size = 1;  // of window and chunked
  bool top_left = false;       // position of row 0 is 0, not kv - q
  bool custom = false;         // hides a third of what the mask shows, at random
  attention::Threshold threshold;
  float spread = 1;    // of the queries: larger, and the softmax is more peaked
  float contrast = 0;  // how far every second block of `block` keys lies below the others, in nats
  std::int32_t block = 128;
  std::int32_t page = 0;  // rows of a page; 0: contiguous
  std::int32_t splits = 1;
  float scale = 0;  // of q . k; 0: 1 / sqrt(dim)
  float v_scale = 1;
  std::uint64_t seed = 1;
};
bool operator==(const AttentionCase& a, const AttentionCase& b);

// A line of key=value fields in any order; a missing key has the value above. Errors: unknown or
// repeated keys, values out of their limits, unequal numbers of q and kv. A threshold may be NaN or
// negative only in a property that expects a refusal, so a line cannot say it.
Expected<AttentionCase> parse_attention_case(std::string_view text);
// parse_attention_case(print(c)) == c for every case that passes check_case.
std::string print(const AttentionCase& c);
Status check_case(const AttentionCase& c);

// The keys with their meaning, for help texts.
std::string attention_case_keys();

// A tensor [rows, heads, dim] that owns its bytes.
struct Tensor {
  Dtype dtype = Dtype::kBf16;
  std::int64_t rows = 0;
  std::int32_t heads = 1, dim = 1;
  std::vector<std::byte> bytes;

  Tensor() = default;
  Tensor(Dtype type, std::int64_t rows, std::int32_t heads, std::int32_t dim);
  std::size_t element_bytes() const { return dtype_bits(dtype) / 8; }
  std::size_t row_bytes() const {
    return static_cast<std::size_t>(heads) * static_cast<std::size_t>(dim) * element_bytes();
  }
  std::byte* row(std::int64_t i) {
    return bytes.data() + static_cast<std::size_t>(i) * row_bytes();
  }
  // Rounds to the format: nearest even, e4m3 saturating.
  void set(std::int64_t row, std::int32_t head, std::int32_t column, float value);
  float get(std::int64_t row, std::int32_t head, std::int32_t column) const;
};

// A case in memory. `problem` points into the other members, so a Built does not move.
struct Built {
  AttentionCase c;
  Tensor q, k, v;  // packed [total rows, heads, dim]; k and v pools if paged
  std::vector<std::int64_t> first_q, first_kv;    // [requests] first row of each; unused if paged
  std::vector<std::vector<std::int32_t>> tables;  // [requests] block tables if paged
  std::vector<std::vector<std::uint8_t>> custom;  // [requests] cells
  std::vector<float> sinks;
  attention::Problem problem;

  // Key or value row `i` of a request as a row of the tensors.
  std::int64_t kv_row(std::size_t request, std::int32_t i) const;
  void point_problem();  // at the members, again
  Built() = default;
  Built(const Built&) = delete;
  Built& operator=(const Built&) = delete;
};
using BuiltPtr = std::unique_ptr<Built>;

// Queries are random times spread; keys and values random, all with variance 1 (a sum of uniform
// numbers: the same bits with every standard library). With a contrast, column 0 of the queries is
// 4 and that of the keys 0 or what puts the block so far below (SPEC VER-22.2). Tensors end where
// the last request ends.
BuiltPtr build(const AttentionCase& c);

// The same rows laid out anew. What a row holds does not change.
// Only these requests, in this order.
BuiltPtr select(const Built& from, std::span<const std::size_t> requests);
// `gap` rows behind every request, in q, k and v, filled with `code` in every element.
BuiltPtr with_gaps(const Built& from, std::int32_t gap, std::uint32_t code);
// Keys and values in pages of `page` rows, in shuffled order, between pages that nobody owns; slots
// without a row hold `code`.
BuiltPtr in_pages(const Built& from, std::int32_t page, std::uint32_t code);

// Bits of a NaN, and of an Inf (e4m3 has none: a NaN).
std::uint32_t nan_code(Dtype dtype);
std::uint32_t infinity_code(Dtype dtype);

// Numbers from a seed, the same everywhere.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next();
  std::int32_t below(std::int32_t n) {
    return static_cast<std::int32_t>(next() % static_cast<std::uint64_t>(n));
  }
  template <class T, std::size_t N>
  T pick(const T (&list)[N]) {
    return list[below(static_cast<std::int32_t>(N))];
  }
  float normal();  // mean 0, variance 1, at most 3.5 away

 private:
  std::uint64_t state_;
};

// A random case that the profile serves (SPEC VER-22.3), and smaller ones like `c`.
AttentionCase random_case(const attention::Profile& profile, Dice& dice);
std::vector<AttentionCase> smaller(const AttentionCase& c);

}  // namespace assay::verify
