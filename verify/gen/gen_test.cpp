// Rounds are legal and repeatable, planned holes survive placement, cases shrink to the smallest.
#include "verify/gen/gen.hpp"

#include <algorithm>
#include <set>

#include "model/core/testing.hpp"
#include "model/moe/moe.hpp"
#include "verify/gen/arbitrary.hpp"
#include "verify/gen/routing_gen.hpp"
#include "verify/suites/suites.hpp"

namespace assay::verify {
namespace {

using testing::prop;

TEST_CASE("every case of every suite's axes gives rounds that are legal requests", "[VER-6.2]") {
  prop("any case", [](const MoeCase& c) {
    RC_ASSERT(check_case(c).has_value());
    for (const Suite& suite : suites()) {
      const auto scenario = make_scenario(c, suite.axes);
      RC_ASSERT(scenario.has_value());
      Round round;
      for (std::int32_t r = 0; r < std::min(scenario->num_rounds, 4); ++r) {
        fill_round(*scenario, r, round);
        RC_ASSERT(check_round(scenario->setup, round).has_value());
      }
    }
  });
}

TEST_CASE("a round is the same whatever was filled in before it", "[VER-6.1]") {
  const MoeCase c = random_case({}, 3, 14);
  const auto scenario = make_scenario(c, {.routing = Axes::Routing::kSkewed,
                                          .payloads = Axes::Payloads::kChanging,
                                          .changing_max = true});
  REQUIRE(scenario.has_value());
  Round fresh;
  fill_round(*scenario, 1, fresh);
  Round reused;
  for (const std::int32_t r : {2, 0, 1}) fill_round(*scenario, r, reused);
  CHECK(fresh.topk_ids == reused.topk_ids);
  REQUIRE(fresh.payloads.size() == reused.payloads.size());
  for (std::size_t p = 0; p < fresh.payloads.size(); ++p)
    CHECK(fresh.payloads[p].rows == reused.payloads[p].rows);
}

TEST_CASE("a payload byte depends on where it belongs and on nothing else", "[VER-6.1]") {
  std::vector<std::byte> few, many, other;
  keyed_rows(5, 1, RankId(2), 3, 20, few);
  keyed_rows(5, 1, RankId(2), 9, 20, many);
  CHECK(std::equal(few.begin(), few.end(), many.begin()));
  const std::tuple<std::uint64_t, std::int32_t, RankId> elsewhere[] = {
      {6, 1, RankId(2)}, {5, 0, RankId(2)}, {5, 1, RankId(1)}};
  for (const auto& [key, payload, rank] : elsewhere) {
    keyed_rows(key, payload, rank, 3, 20, other);
    CHECK(few != other);
  }
  // No two rows of a round are equal, or a row in another's place would not be seen.
  std::set<std::vector<std::byte>> rows;
  for (std::int32_t src = 0; src < 8; ++src) {
    keyed_rows(5, 0, RankId(src), 64, 12, few);
    for (std::size_t t = 0; t < 64; ++t)
      rows.emplace(few.begin() + static_cast<std::ptrdiff_t>(12 * t),
                   few.begin() + static_cast<std::ptrdiff_t>(12 * (t + 1)));
  }
  CHECK(rows.size() == 8 * 64);
}

TEST_CASE("hole patterns go through all masks of up to six picks", "[VER-6.2]") {
  for (const std::int32_t top_k : {1, 2, 4, 6}) {
    std::set<std::uint32_t> seen;
    for (std::uint64_t i = 0; i < (std::uint64_t{1} << top_k); ++i)
      seen.insert(hole_pattern(top_k, i));
    CHECK(seen.size() == std::size_t{1} << top_k);
  }
}

TEST_CASE("hole patterns of more picks have every class within their first ones", "[VER-6.2]") {
  for (const std::int32_t top_k : {8, 10, 12, 14, 16, 18, 22}) {
    const std::uint32_t all = (std::uint32_t{1} << top_k) - 1;
    std::set<std::uint32_t> seen;
    for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(2 * top_k + 6); ++i) {
      const std::uint32_t mask = hole_pattern(top_k, i);
      CHECK((mask & ~all) == 0);
      seen.insert(mask);
    }
    CHECK(seen.count(all) == 1);
    CHECK(seen.count(0) == 1);
    for (std::int32_t k = 0; k < top_k; ++k) {
      CHECK(seen.count(std::uint32_t{1} << k) == 1);
      CHECK(seen.count(all & ~(std::uint32_t{1} << k)) == 1);
    }
  }
}

TEST_CASE("the combine suites' cases have tokens with exactly the planned holes", "[VER-6.2]") {
  // What the routing asks for must survive placement and deduplication: else classes are missing.
  const auto suite = find_suite("combine_bf16");
  REQUIRE(suite.has_value());
  for (const std::string& line : (*suite)->cases) {
    const auto c = parse_moe_case(line, MoeCase{});
    REQUIRE(c.has_value());
    const auto scenario = make_scenario(*c, (*suite)->axes);
    REQUIRE(scenario.has_value());
    Round round;
    fill_round(*scenario, 0, round);
    const auto placement = moe::Placement::contiguous(c->ep, c->experts);
    const auto routing = moe::Routing::make(c->top_k, c->max_tokens, round.topk_ids);
    REQUIRE(routing.has_value());
    const auto plan = moe::plan_dispatch(*placement, *routing, moe::SlotRule::kCounterAnyOrder);
    REQUIRE(plan.has_value());
    std::set<std::uint32_t> masks;
    for (RankId src{0}; src.value() < c->ep; src = src.next()) {
      for (TokenId token{0}; token.value() < c->tokens[0]; token = token.next()) {
        std::uint32_t mask = 0;
        for (TopKIndex k{0}; k.value() < c->top_k; k = k.next())
          mask |= (plan->target(src, token, k) ? 1u : 0u) << k.value();
        masks.insert(mask);
      }
    }
    INFO(line);
    const std::size_t classes =
        c->top_k <= 6 ? std::size_t{1} << c->top_k : static_cast<std::size_t>(2 * c->top_k + 6);
    CHECK(masks.size() >= classes);
  }
}

TEST_CASE("smaller cases are legal, smaller and end", "[VER-6.4]") {
  prop("any case", [](const MoeCase& from) {
    MoeCase c = from;
    // The boldest step each time, and the most timid one: both must end at the same case.
    int steps = 0;
    for (auto next = smaller_cases(c); !next.empty(); next = smaller_cases(c)) {
      for (const MoeCase& smaller : next) {
        RC_ASSERT(check_case(smaller).has_value());
        RC_ASSERT(!(smaller == c));
      }
      c = ++steps % 2 == 0 ? next.front() : next.back();
      RC_ASSERT(steps < 2000);
    }
    MoeCase smallest;
    smallest.tokens = {0};
    RC_ASSERT(c == smallest);
  });
}

TEST_CASE("a failing property ends at the smallest failing case, printed for the command",
          "[VER-6.4]") {
  rc::detail::TestParams params;
  params.seed = 7;
  const auto result =
      rc::detail::checkTestable([](const MoeCase& c) { RC_ASSERT(c.ep < 3 || c.hidden < 5); },
                                rc::detail::TestMetadata{}, params);
  REQUIRE(result.is<rc::detail::FailureResult>());
  const auto& failure = result.get<rc::detail::FailureResult>();
  REQUIRE(failure.counterExample.size() == 1);
  CHECK(failure.counterExample[0].second ==
        "(--case \"ep=3 experts=3 top_k=1 hidden=5 max_tokens=1 tokens=0 rounds=1 seed=1\")");
}

TEST_CASE("odd payloads have rows of every odd size, each in one of two sets", "[VER-6.3]") {
  std::set<std::int64_t> sizes;
  for (const std::uint64_t seed : {1, 2}) {
    MoeCase c;
    c.seed = seed;
    const auto scenario = make_scenario(c, {.payloads = Axes::Payloads::kOdd});
    REQUIRE(scenario.has_value());
    Round round;
    fill_round(*scenario, 0, round);
    CHECK(round.payloads.size() <= 6);
    for (const RoundPayload& entry : round.payloads) sizes.insert(entry.payload.bytes_per_token);
  }
  for (const std::int64_t bytes : {1, 2, 3, 6, 12, 20, 5328}) CHECK(sizes.count(bytes) == 1);
}

TEST_CASE("where ids must be valid, all are, and there are holes all the same", "[CUD-5.6]") {
  testing::prop("of any routing", [](std::uint64_t seed, std::uint8_t routing) {
    Axes axes;
    axes.valid_ids = true;
    axes.invalid_percent = 40;
    axes.routing = routing % 2 == 0 ? Axes::Routing::kHolePatterns : Axes::Routing::kUniform;
    MoeCase c = random_case({}, seed, 1);
    const auto scenario =
        make_scenario(c, axes, moe::Recipe::kBf16, &moe::default_combine_profile());
    RC_ASSERT(scenario.has_value());
    Round round;
    fill_round(*scenario, 0, round);
    for (const auto& ids : round.topk_ids)
      for (const std::int32_t id : ids) RC_ASSERT(id >= 0 && id < c.experts);
  });
}

}  // namespace
}  // namespace assay::verify
