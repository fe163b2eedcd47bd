// Cases as one line of text: "ep=4 experts=32 top_k=8 hidden=128 max_tokens=16 tokens=3,0,7,1
// rounds=2 seed=7". Decides the syntax, the keys of a MoE case and their limits (SPEC COR-3); what
// a case makes happen is decided by who takes it. Parser and printer are inverse, so every line
// that a report prints can be pasted back.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/core/expected.hpp"

namespace assay {

struct MoeCase {
  std::int32_t ep = 1;                     // ranks of the group
  std::int32_t experts = 1;                // num_experts, all ranks together
  std::int32_t top_k = 1;                  // picks per token
  std::int32_t hidden = 1;                 // hidden_size, elements
  std::int32_t max_tokens = 1;             // max_tokens_per_rank
  std::vector<std::int32_t> tokens = {1};  // [ep]: tokens of each rank
  std::int32_t rounds = 1;
  std::uint64_t seed = 1;

  friend bool operator==(const MoeCase&, const MoeCase&) = default;
};

// Parses a line of key=value fields in any order (SPEC COR-3.1). A missing key takes its value from
// `defaults`, whose `tokens` may have one entry for all ranks. Errors: unknown or repeated keys,
// values that are no numbers or out of their limits, tokens whose count is neither 1 nor ep;
// check_case()'s.
Expected<MoeCase> parse_moe_case(std::string_view text, const MoeCase& defaults);

// All keys in the order of moe_keys(); `tokens` as one number where all ranks have the same. For
// every case c that passes check_case, parse_moe_case(print(c), anything) == c.
std::string print(const MoeCase& c);

// Every limit of SPEC COR-3.3: those of the table, top_k <= experts, tokens <= max_tokens, and one
// entry of tokens per rank.
Status check_case(const MoeCase& c);

// The one table of keys and limits, for help texts and generators.
struct MoeKey {
  std::string_view key;
  std::uint64_t min, max;
  std::string_view meaning;
};
std::span<const MoeKey> moe_keys();
const MoeKey& moe_key(std::string_view key);  // CONTRACT: the table has it

// The syntax without the meaning: fields "key=value" separated by spaces or tabs, in order; a value
// is any text without these. Views into `text`. Errors: a field without "=", a repeated key, a key
// that is not in `allowed`.
struct KeyValue {
  std::string_view key, value;
};
Expected<std::vector<KeyValue>> parse_key_values(std::string_view text,
                                                 std::span<const std::string_view> allowed);
// Any key, for who hands some of them on.
Expected<std::vector<KeyValue>> parse_key_values(std::string_view text);

// A decimal integer: digits, with "-" in front where min < 0, and nothing else. Error with `name`,
// the text and the limits. T is int32, uint32, int64 or uint64.
template <class T>
Expected<T> parse_integer(std::string_view name, std::string_view text, T min, T max);

}  // namespace assay
