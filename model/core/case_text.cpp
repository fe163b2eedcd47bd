// Parsing and printing of case lines. See case_text.hpp.
#include "model/core/case_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "model/core/text.hpp"

namespace assay {
namespace {

// The derivations are in SPEC COR-3.3.
constexpr MoeKey kMoeKeys[] = {
    {"ep", 1, 256, "ranks of the group"},
    {"experts", 1, 32768, "experts of all ranks together"},
    {"top_k", 1, 22, "picks per token, at most experts"},
    {"hidden", 1, 1 << 20, "elements of a row"},
    {"max_tokens", 1, 1 << 20, "most tokens of one rank"},
    {"tokens", 0, 1 << 20, "tokens of each rank, or one number for all; at most max_tokens"},
    {"rounds", 1, 1'000'000, "rounds of dispatch, experts, combine"},
    {"seed", 0, std::numeric_limits<std::uint64_t>::max(), "seed of everything random"},
};

// The number behind a key that has one number; `tokens` and `seed` are handled by name.
std::int32_t MoeCase::*member(std::string_view key) {
  if (key == "ep") return &MoeCase::ep;
  if (key == "experts") return &MoeCase::experts;
  if (key == "top_k") return &MoeCase::top_k;
  if (key == "hidden") return &MoeCase::hidden;
  if (key == "max_tokens") return &MoeCase::max_tokens;
  if (key == "rounds") return &MoeCase::rounds;
  return nullptr;
}

Error out_of_limits(std::string_view name, std::string_view value, std::string_view limits) {
  return bad_input(fmt::format("{} is {}; allowed are {}", name, value, limits));
}

Expected<std::int32_t> parse_int32(const MoeKey& key, std::string_view name,
                                   std::string_view text) {
  return parse_integer<std::int32_t>(name, text, static_cast<std::int32_t>(key.min),
                                     static_cast<std::int32_t>(key.max));
}

Expected<std::vector<std::int32_t>> parse_tokens(std::string_view text) {
  const MoeKey& key = moe_key("tokens");
  std::vector<std::int32_t> tokens;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string name = fmt::format("tokens[{}]", tokens.size());
    ASSAY_TRY(const std::int32_t count, parse_int32(key, name, text.substr(at, end - at)));
    tokens.push_back(count);
    at = end + 1;
  }
  return tokens;
}

}  // namespace

Expected<MoeCase> parse_moe_case(std::string_view text, const MoeCase& defaults) {
  std::vector<std::string_view> allowed;
  for (const MoeKey& key : kMoeKeys) allowed.push_back(key.key);
  ASSAY_TRY(const std::vector<KeyValue> fields, parse_key_values(text, allowed));
  MoeCase c = defaults;
  for (const KeyValue& field : fields) {
    const MoeKey& key = moe_key(field.key);
    if (const auto number = member(field.key)) {
      ASSAY_TRY(c.*number, parse_int32(key, field.key, field.value));
    } else if (field.key == "tokens") {
      ASSAY_TRY(c.tokens, parse_tokens(field.value));
    } else {
      ASSAY_TRY(c.seed, parse_integer<std::uint64_t>(field.key, field.value, key.min, key.max));
    }
  }
  // One number stands for all ranks (SPEC COR-3.2). Defaults with equal tokens count as one number,
  // so that a verb's printed default still fits when only ep is given.
  const bool given = std::any_of(fields.begin(), fields.end(),
                                 [](const KeyValue& field) { return field.key == "tokens"; });
  const bool equal = std::all_of(c.tokens.begin(), c.tokens.end(),
                                 [&](std::int32_t count) { return count == c.tokens.front(); });
  if (c.tokens.size() == 1 || (!given && equal && !c.tokens.empty())) {
    c.tokens.assign(static_cast<std::size_t>(c.ep), c.tokens.front());
  }
  if (auto checked = check_case(c); !checked) {
    // Half of the case may be what the user did not write.
    Error error = checked.error();
    error.sentence += fmt::format(" (whole case: {})", print(c));
    return error;
  }
  return c;
}

std::string print(const MoeCase& c) {
  std::string text;
  for (const MoeKey& key : kMoeKeys) {
    if (!text.empty()) text += ' ';
    if (const auto number = member(key.key)) {
      text += fmt::format("{}={}", key.key, c.*number);
    } else if (key.key == "seed") {
      text += fmt::format("seed={}", c.seed);
    } else {
      const bool equal = std::all_of(c.tokens.begin(), c.tokens.end(),
                                     [&](std::int32_t count) { return count == c.tokens[0]; });
      const std::size_t shown = equal && !c.tokens.empty() ? 1 : c.tokens.size();
      text += fmt::format("tokens={}", joined(std::span(c.tokens).first(shown), ","));
    }
  }
  return text;
}

Status check_case(const MoeCase& c) {
  for (const MoeKey& key : kMoeKeys) {
    const auto number = member(key.key);
    if (number == nullptr) continue;
    const std::int32_t value = c.*number;
    if (value < static_cast<std::int64_t>(key.min) || value > static_cast<std::int64_t>(key.max)) {
      return out_of_limits(key.key, std::to_string(value),
                           fmt::format("{} to {}", key.min, key.max));
    }
  }
  if (c.top_k > c.experts) {
    return out_of_limits("top_k", std::to_string(c.top_k),
                         fmt::format("1 to {} (experts)", c.experts));
  }
  if (c.tokens.size() != static_cast<std::size_t>(c.ep)) {
    return bad_input(
        fmt::format("tokens has {} entries; allowed are 1 or {} (ep)", c.tokens.size(), c.ep));
  }
  for (std::size_t rank = 0; rank < c.tokens.size(); ++rank) {
    if (c.tokens[rank] < 0 || c.tokens[rank] > c.max_tokens) {
      return out_of_limits(fmt::format("tokens[{}]", rank), std::to_string(c.tokens[rank]),
                           fmt::format("0 to {} (max_tokens)", c.max_tokens));
    }
  }
  return Done{};
}

std::span<const MoeKey> moe_keys() { return kMoeKeys; }

const MoeKey& moe_key(std::string_view key) {
  const auto found = std::find_if(std::begin(kMoeKeys), std::end(kMoeKeys),
                                  [&](const MoeKey& entry) { return entry.key == key; });
  CONTRACT(found != std::end(kMoeKeys), key);
  return *found;
}

Expected<std::vector<KeyValue>> parse_key_values(std::string_view text,
                                                 std::span<const std::string_view> allowed) {
  ASSAY_TRY(std::vector<KeyValue> fields, parse_key_values(text));
  for (const KeyValue& field : fields)
    if (std::find(allowed.begin(), allowed.end(), field.key) == allowed.end())
      return bad_input(fmt::format("key {} is unknown; allowed are {}", in_quotes(field.key),
                                   joined(allowed, ", ")));
  return fields;
}

Expected<std::vector<KeyValue>> parse_key_values(std::string_view text) {
  constexpr std::string_view kBlank = " \t";
  std::vector<KeyValue> fields;
  for (std::size_t at = text.find_first_not_of(kBlank); at != std::string_view::npos;) {
    const std::size_t end = std::min(text.find_first_of(kBlank, at), text.size());
    const std::string_view field = text.substr(at, end - at);
    const std::size_t equals = field.find('=');
    if (equals == std::string_view::npos) {
      return bad_input(fmt::format("{} is not of the form key=value", in_quotes(field)));
    }
    const KeyValue pair{field.substr(0, equals), field.substr(equals + 1)};
    if (std::any_of(fields.begin(), fields.end(),
                    [&](const KeyValue& other) { return other.key == pair.key; })) {
      return bad_input(fmt::format("key {} appears twice", in_quotes(pair.key)));
    }
    fields.push_back(pair);
    at = text.find_first_not_of(kBlank, end);
  }
  return fields;
}

template <class T>
Expected<T> parse_integer(std::string_view name, std::string_view text, T min, T max) {
  const std::string limits = fmt::format("integers from {} to {}", min, max);
  T value{};
  // from_chars takes digits with an optional minus, and neither plus, blanks nor a locale.
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = end == text.data() + text.size() && !text.empty();
  if (whole && code == std::errc::result_out_of_range) return out_of_limits(name, text, limits);
  if (!whole || code != std::errc{}) return out_of_limits(name, in_quotes(text), limits);
  if (value < min || value > max) return out_of_limits(name, std::to_string(value), limits);
  return value;
}

template Expected<std::int32_t> parse_integer(std::string_view, std::string_view, std::int32_t,
                                              std::int32_t);
template Expected<std::uint32_t> parse_integer(std::string_view, std::string_view, std::uint32_t,
                                               std::uint32_t);
template Expected<std::int64_t> parse_integer(std::string_view, std::string_view, std::int64_t,
                                              std::int64_t);
template Expected<std::uint64_t> parse_integer(std::string_view, std::string_view, std::uint64_t,
                                               std::uint64_t);

}  // namespace assay
