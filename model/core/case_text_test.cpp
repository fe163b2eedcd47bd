// Case lines: printing and parsing are inverse, and every wrong line has its own sentence.
#include "model/core/case_text.hpp"

#include <algorithm>
#include <limits>

#include "model/core/testing.hpp"

using namespace assay;

namespace {

// A random legal case; small and large values are equally likely, and so are equal and unequal
// tokens.
MoeCase random_case() {
  const auto pick = [](std::uint64_t min, std::uint64_t max) {
    const std::uint64_t wide = *rc::gen::inRange<std::uint64_t>(min, max);
    return static_cast<std::int32_t>(*rc::gen::element(min, max, std::min(max, min + 3), wide));
  };
  const auto number = [&](std::string_view key) {
    return pick(moe_key(key).min, moe_key(key).max);
  };
  MoeCase c;
  c.ep = number("ep");
  c.experts = number("experts");
  c.top_k =
      pick(1, std::min<std::uint64_t>(moe_key("top_k").max, static_cast<std::uint64_t>(c.experts)));
  c.hidden = number("hidden");
  c.max_tokens = number("max_tokens");
  c.rounds = number("rounds");
  c.seed = *rc::gen::element(std::uint64_t{0}, std::numeric_limits<std::uint64_t>::max(),
                             *rc::gen::arbitrary<std::uint64_t>());
  const bool equal = *rc::gen::arbitrary<bool>();
  const std::int32_t first = pick(0, static_cast<std::uint64_t>(c.max_tokens));
  c.tokens.assign(static_cast<std::size_t>(c.ep), first);
  if (!equal) {
    for (std::int32_t& count : c.tokens) count = pick(0, static_cast<std::uint64_t>(c.max_tokens));
  }
  return c;
}

const MoeCase kDefaults{4, 32, 8, 128, 16, {3, 0, 7, 1}, 2, 7};

std::string refusal(std::string_view text, const MoeCase& defaults = kDefaults) {
  const auto parsed = parse_moe_case(text, defaults);
  if (parsed) return "";
  const std::string& sentence = parsed.error().sentence;
  return sentence.substr(0, sentence.find(" (whole case:"));
}

}  // namespace

TEST_CASE("what print writes, parse reads back", "[COR-3.1][COR-3.2]") {
  testing::prop("inverse", [] {
    const MoeCase c = random_case();
    RC_ASSERT(check_case(c).has_value());
    const auto back = parse_moe_case(print(c), random_case());
    RC_ASSERT(back.has_value());
    RC_ASSERT(*back == c);
    RC_ASSERT(print(*back) == print(c));
  });
  REQUIRE(print(kDefaults) ==
          "ep=4 experts=32 top_k=8 hidden=128 max_tokens=16 tokens=3,0,7,1 rounds=2 seed=7");
}

TEST_CASE("fields may come in any order and with any blanks", "[COR-3.1]") {
  testing::prop("shuffled", [] {
    const MoeCase c = random_case();
    const std::string text = print(c);
    std::vector<std::string_view> keys;
    for (const MoeKey& key : moe_keys()) keys.push_back(key.key);
    std::vector<KeyValue> fields = *parse_key_values(text, keys);
    RC_ASSERT(fields.size() == keys.size());
    const std::size_t turn = *rc::gen::inRange<std::size_t>(0, fields.size());
    std::rotate(fields.begin(), fields.begin() + static_cast<std::ptrdiff_t>(turn), fields.end());
    std::string shuffled = " ";
    for (const KeyValue& field : fields) {
      shuffled += std::string(field.key) + "=" + std::string(field.value) + " \t";
    }
    RC_ASSERT(*parse_moe_case(shuffled, kDefaults) == c);
  });
}

TEST_CASE("a missing key takes the caller's default, one token count stands for every rank",
          "[COR-3.2]") {
  REQUIRE(*parse_moe_case("", kDefaults) == kDefaults);
  REQUIRE(parse_moe_case("ep=3 tokens=5", kDefaults)->tokens == std::vector<std::int32_t>{5, 5, 5});
  MoeCase equal = kDefaults;
  equal.tokens = {2, 2, 2, 2};
  REQUIRE(parse_moe_case("ep=2", equal)->tokens == std::vector<std::int32_t>{2, 2});
  equal.tokens = {2};
  REQUIRE(parse_moe_case("ep=2", equal)->tokens == std::vector<std::int32_t>{2, 2});
  REQUIRE(parse_moe_case("ep=1 tokens=9", kDefaults)->tokens == std::vector<std::int32_t>{9});
  // Unequal defaults cannot be spread over another number of ranks.
  CHECK(refusal("ep=2") == "tokens has 4 entries; allowed are 1 or 2 (ep)");
  CHECK(parse_moe_case("max_tokens=5", kDefaults).error().sentence ==
        "tokens[2] is 7; allowed are 0 to 5 (max_tokens) (whole case: ep=4 experts=32 top_k=8 "
        "hidden=128 max_tokens=5 tokens=3,0,7,1 rounds=2 seed=7)");
}

TEST_CASE("every wrong line has a sentence with the value and what is allowed",
          "[COR-3.3][COR-1.2]") {
  CHECK(refusal("ep=0") == "ep is 0; allowed are integers from 1 to 256");
  CHECK(refusal("ep=257") == "ep is 257; allowed are integers from 1 to 256");
  CHECK(refusal("ep=99999999999999999999") ==
        "ep is 99999999999999999999; allowed are integers from 1 to 256");
  CHECK(refusal("ep=-1") == "ep is -1; allowed are integers from 1 to 256");
  CHECK(refusal("ep=+4") == "ep is \"+4\"; allowed are integers from 1 to 256");
  CHECK(refusal("ep=4x") == "ep is \"4x\"; allowed are integers from 1 to 256");
  CHECK(refusal("ep=4.0") == "ep is \"4.0\"; allowed are integers from 1 to 256");
  CHECK(refusal("ep=") == "ep is \"\"; allowed are integers from 1 to 256");
  CHECK(refusal("ep=0x4") == "ep is \"0x4\"; allowed are integers from 1 to 256");
  CHECK(refusal("ep=4\n") == "ep is \"4\\n\"; allowed are integers from 1 to 256");
  CHECK(refusal("experts=32769") == "experts is 32769; allowed are integers from 1 to 32768");
  CHECK(refusal("top_k=23") == "top_k is 23; allowed are integers from 1 to 22");
  CHECK(refusal("experts=7") == "top_k is 8; allowed are 1 to 7 (experts)");
  CHECK(refusal("tokens=17") == "tokens[0] is 17; allowed are 0 to 16 (max_tokens)");
  CHECK(refusal("tokens=1,2,3,17") == "tokens[3] is 17; allowed are 0 to 16 (max_tokens)");
  CHECK(refusal("tokens=1,2,3") == "tokens has 3 entries; allowed are 1 or 4 (ep)");
  CHECK(refusal("tokens=1,,2,3") == "tokens[1] is \"\"; allowed are integers from 0 to 1048576");
  CHECK(refusal("tokens=1,2,3,") == "tokens[3] is \"\"; allowed are integers from 0 to 1048576");
  CHECK(refusal("tokens=-1") == "tokens[0] is -1; allowed are integers from 0 to 1048576");
  CHECK(refusal("seed=18446744073709551616") ==
        "seed is 18446744073709551616; allowed are integers from 0 to 18446744073709551615");
  CHECK(refusal("seed=-1") ==
        "seed is \"-1\"; allowed are integers from 0 to 18446744073709551615");
  CHECK(refusal("ep=4 ep=4") == "key \"ep\" appears twice");
  CHECK(refusal("ep_size=4") ==
        "key \"ep_size\" is unknown; allowed are ep, experts, top_k, hidden, max_tokens, tokens, "
        "rounds, seed");
  CHECK(refusal("ep") == "\"ep\" is not of the form key=value");
  CHECK(refusal("=4").starts_with("key \"\" is unknown"));
  CHECK(refusal("ep = 4") == "\"ep\" is not of the form key=value");
}

TEST_CASE("no text crashes the parser, and what it accepts is legal", "[COR-3.3]") {
  testing::prop("edited lines", [] {
    std::string text = print(random_case());
    const int edits = *rc::gen::inRange(1, 4);
    for (int i = 0; i < edits && !text.empty(); ++i) {
      const std::size_t at = *rc::gen::inRange<std::size_t>(0, text.size());
      if (*rc::gen::arbitrary<bool>())
        text.erase(at, 1);
      else
        text[at] = *rc::gen::element('=', ',', ' ', '0', '9', '-', 'e', '\0', '\xff');
    }
    const auto parsed = parse_moe_case(text, kDefaults);
    if (parsed)
      RC_ASSERT(check_case(*parsed).has_value());
    else
      RC_ASSERT(!parsed.error().sentence.empty());
  });
}

TEST_CASE("check_case refuses each limit on both sides", "[COR-3.3]") {
  for (const MoeKey& key : moe_keys()) {
    if (key.key == "seed" || key.key == "tokens") continue;
    for (const std::uint64_t value : {key.min - 1, key.max + 1}) {
      const std::string text =
          std::string(key.key) + "=" + std::to_string(static_cast<std::int64_t>(value));
      CHECK(refusal(text).starts_with(std::string(key.key) + " is "));
    }
  }
  MoeCase c = kDefaults;
  c.tokens[1] = -1;
  CHECK(!check_case(c));
  c = kDefaults;
  c.hidden = 0;
  CHECK(!check_case(c));
}
