// Plans against the definition of dispatch, computed a second time in dispatch_testing.hpp, and
// the judgement of recorded targets.
#include "model/moe/dispatch.hpp"

#include <map>

#include "model/moe/dispatch_testing.hpp"

namespace assay::moe {
namespace {

using assay::testing::prop;

// True if every field of the plan is what the definition says.
bool agrees(const Naive& naive, const DispatchPlan& plan, bool by_token) {
  for (std::int32_t src = 0; src < naive.ep; ++src) {
    const auto tokens =
        static_cast<std::int32_t>(naive.ids[static_cast<std::size_t>(src)].size()) / naive.k;
    if (plan.num_tokens(RankId{src}) != tokens) return false;
    for (std::int32_t token = 0; token < tokens; ++token)
      for (std::int32_t k = 0; k < naive.k; ++k) {
        const auto [rank, slot] = naive.target(src, token, k, by_token);
        const auto pick = static_cast<std::size_t>(token * naive.k + k);
        if (plan.target_rank(RankId{src})[pick] != rank) return false;
        if (plan.target_slot(RankId{src})[pick] != slot) return false;
        const auto target = plan.target(RankId{src}, TokenId{token}, TopKIndex{k});
        if (target.has_value() != (rank >= 0)) return false;
        if (target && *target != Target{RankId{rank}, SlotId{slot}}) return false;
      }
    for (std::int32_t dst = 0; dst < naive.ep; ++dst) {
      const auto list = naive.tokens(dst, src);
      if (plan.recv_counter(RankId{dst}, RankId{src}) != static_cast<std::int32_t>(list.size()))
        return false;
      std::map<std::int32_t, std::int32_t> by_slot;
      for (std::size_t i = 0; i < list.size(); ++i)
        by_slot[by_token ? list[i] : static_cast<std::int32_t>(i)] = list[i];
      for (std::int32_t slot = -1; slot <= naive.max; ++slot) {
        const auto token = plan.source_of(RankId{dst}, RankId{src}, SlotId{slot});
        const auto expected = by_slot.find(slot);
        if (token.has_value() != (expected != by_slot.end())) return false;
        if (token && token->value() != expected->second) return false;
      }
    }
  }
  return true;
}

bool plan_agrees(const Naive& naive) {
  const auto placement = Placement::contiguous(naive.ep, naive.experts);
  const auto routing = Routing::make(naive.k, naive.max, naive.ids);
  for (const SlotRule rule : {SlotRule::kCounterAnyOrder, SlotRule::kCanonical,
                              SlotRule::kPrefixScan, SlotRule::kTokenIndex}) {
    const auto plan = plan_dispatch(*placement, *routing, rule, naive.alive);
    if (!plan || !agrees(naive, *plan, rule == SlotRule::kTokenIndex)) return false;
  }
  return true;
}

// Counts ids through all values -1 (no target) to experts - 1; false after the last.
bool next_routing(Ids& ids, std::int32_t experts) {
  for (auto& rank : ids)
    for (auto& id : rank) {
      if (++id < experts) return true;
      id = -1;
    }
  return false;
}

TEST_CASE("every small routing is planned as the definition says",
          "[MOE-2.1][MOE-2.3][MOE-2.4][MOE-2.9][MOE-1.4]") {
  // All routings up to 3 ranks, 4 experts, 2 picks and 2 tokens a rank, with -1 as an id, wherever
  // there are at most 16,000; beyond, all routings of one source at a time. That loses nothing that
  // the definition knows of: a source's targets depend on its own picks only (next test).
  std::int64_t checked = 0;
  for (std::int32_t ep = 1; ep <= 3; ++ep)
    for (std::int32_t experts = ep; experts <= 4; ++experts)
      for (std::int32_t k = 1; k <= 2; ++k)
        for (std::int32_t counts = 0; counts < (ep == 1 ? 3 : ep == 2 ? 9 : 27); ++counts) {
          Ids full;
          double routings = 1;
          for (std::int32_t rank = 0, rest = counts; rank < ep; ++rank, rest /= 3) {
            full.emplace_back(static_cast<std::size_t>(rest % 3 * k), -1);
            for (std::int32_t i = 0; i < rest % 3 * k; ++i) routings *= experts + 1;
          }
          std::vector<Ids> starts;
          if (routings <= 16000)
            starts.push_back(full);
          else
            for (std::size_t only = 0; only < full.size(); ++only) {
              starts.emplace_back(full.size());
              starts.back()[only] = full[only];
            }
          for (Ids& ids : starts) do {
              Naive naive{ep, experts, k, 2, ids};
              if (!plan_agrees(naive)) {
                std::string text;
                for (const auto& rank : ids) {
                  text += " |";
                  for (const auto id : rank) text.append(" ").append(std::to_string(id));
                }
                FAIL("ep " << ep << " experts " << experts << " top_k " << k << " ids" << text);
              }
              ++checked;
            } while (next_routing(ids, experts));
        }
  CHECK(checked > 50000);
}

TEST_CASE("any round with dead ranks is planned as the definition says",
          "[MOE-2.1][MOE-2.2][MOE-2.3]") {
  prop("plan equals definition", [] { RC_ASSERT(plan_agrees(arbitrary_round())); });
}

TEST_CASE("placement and routing of different sizes are refused", "[MOE-1.1]") {
  const auto placement = Placement::contiguous(2, 4);
  const auto routing = Routing::make(1, 1, {{0}, {1}, {2}});
  CHECK(plan_dispatch(*placement, *routing, SlotRule::kCanonical).error().sentence ==
        "experts are placed on 2 ranks but tokens come from 3");
}

TEST_CASE("slot rules have one spelling", "[MOE-2.3]") {
  for (const SlotRule rule : {SlotRule::kCounterAnyOrder, SlotRule::kCanonical,
                              SlotRule::kPrefixScan, SlotRule::kTokenIndex})
    CHECK(parse_slot_rule(slot_rule_name(rule)).value() == rule);
  CHECK(parse_slot_rule("Prefix").error().sentence ==
        "slot_rule is \"Prefix\"; allowed are counter, canonical, prefix and token_index");
}

// --- what a subject recorded --------------------------------------------------------------------

TEST_CASE("any permutation of a block's slots is legal where slots are counted, and adopted",
          "[MOE-2.3][MOE-2.5]") {
  prop("permuted slots", [] {
    const Naive naive = arbitrary_round();
    const auto placement = Placement::contiguous(naive.ep, naive.experts);
    const auto routing = Routing::make(naive.k, naive.max, naive.ids);
    const auto plan =
        plan_dispatch(*placement, *routing, SlotRule::kCounterAnyOrder, naive.alive).value();
    Recorded got(plan);
    got.shuffle(plan, *rc::gen::arbitrary<std::uint32_t>());
    const auto wrong = find_target_violation(plan, got.view());
    if (wrong) RC_FAIL(wrong->sentence);
    const DispatchPlan actual = with_observed_slots(plan, got.view());
    bool moved = false;
    for (RankId src{0}; src.value() < naive.ep; src = src.next())
      for (std::size_t i = 0; i < actual.target_slot(src).size(); ++i) {
        const std::int32_t slot = got.slot[static_cast<std::size_t>(src.value())][i];
        RC_ASSERT(actual.target_slot(src)[i] == slot);
        moved |= slot != plan.target_slot(src)[i];
        if (slot < 0) continue;
        const RankId dst{actual.target_rank(src)[i]};
        RC_ASSERT(actual.source_of(dst, src, SlotId{slot}) ==
                  TokenId{static_cast<std::int32_t>(i) / naive.k});
      }
    // Where the rule fixes the slots, the same arrays are wrong as soon as one slot moved.
    for (const SlotRule rule : {SlotRule::kCanonical, SlotRule::kPrefixScan}) {
      const auto strict = plan_dispatch(*placement, *routing, rule, naive.alive).value();
      const auto strict_wrong = find_target_violation(strict, got.view());
      RC_ASSERT(strict_wrong.has_value() == moved);
      if (moved) RC_ASSERT(strict_wrong->what == TargetViolation::What::kSlotRule);
    }
  });
}

TEST_CASE("the first wrong target is named with what it must be", "[MOE-2.5]") {
  // Rank 0 sends tokens 0 and 2 to rank 1, in slots 0 and 1; token 1 aims nowhere.
  const auto placement = Placement::contiguous(2, 4);
  const auto routing = Routing::make(2, 4, {{2, 3, -1, 9, 0, 2}, {}});
  const auto plan = plan_dispatch(*placement, *routing, SlotRule::kCounterAnyOrder).value();
  const Recorded right(plan);
  REQUIRE_FALSE(find_target_violation(plan, right.view()));
  const auto check = [&](auto&& spoil, TargetViolation::What what, const std::string& sentence) {
    Recorded got = right;
    spoil(got);
    const auto wrong = find_target_violation(plan, got.view());
    REQUIRE(wrong);
    CHECK(wrong->what == what);
    CHECK(wrong->sentence == sentence);
  };
  using What = TargetViolation::What;
  check([](Recorded& r) { r.rank[0][0] = 0; }, What::kTargetRank,
        "rank 0 token 0 pick 0: target_rank is 0, must be 1 (the expert lives elsewhere)");
  check([](Recorded& r) { r.rank[0][1] = 1; }, What::kTargetRank,
        "rank 0 token 0 pick 1: target_rank is 1, must be -1 (nothing may be sent for this pick)");
  check([](Recorded& r) { r.rank[0][2] = 0; }, What::kTargetRank,
        "rank 0 token 1 pick 0: target_rank is 0, must be -1 (nothing may be sent for this pick)");
  check([](Recorded& r) { r.rank[0][5] = -1; }, What::kTargetRank,
        "rank 0 token 2 pick 1: target_rank is -1, must be 1 (a row must be sent for this pick)");
  check([](Recorded& r) { r.slot[0][5] = 2; }, What::kSlotRange,
        "rank 0 token 2 pick 1: target_slot is 2; rank 1 has slots 0 to 1 for it");
  check([](Recorded& r) { r.slot[0][5] = -1; }, What::kSlotRange,
        "rank 0 token 2 pick 1: target_slot is -1; rank 1 has slots 0 to 1 for it");
  check([](Recorded& r) { r.slot[0][1] = 0; }, What::kSlotRange,
        "rank 0 token 0 pick 1: target_slot is 0, must be -1: this pick sent nothing");
  check([](Recorded& r) { r.slot[0][5] = 0; }, What::kSlotTaken,
        "rank 0 token 2 pick 1: slot 0 of rank 1 already holds token 0 of this rank");
  check([](Recorded& r) { r.counters[1][0] = 3; }, What::kCounter,
        "rank 1: recv_counters[0] is 3, must be 2: rank 0 sent it 2 rows");
  check([](Recorded& r) { r.slot[0].pop_back(); }, What::kSize,
        "rank 0: target_slot has 5 elements, must have 6");
}

TEST_CASE("under the token-index rule a row stays in its token's slot", "[MOE-2.3]") {
  const auto placement = Placement::contiguous(2, 4);
  const auto routing = Routing::make(1, 4, {{2, 0, 2}, {}});
  const auto plan = plan_dispatch(*placement, *routing, SlotRule::kTokenIndex).value();
  CHECK(plan.target(RankId{0}, TokenId{2}, TopKIndex{0}) == Target{RankId{1}, SlotId{2}});
  CHECK(plan.recv_counter(RankId{1}, RankId{0}) == 2);
  CHECK_FALSE(plan.source_of(RankId{1}, RankId{0}, SlotId{1}));
  Recorded got(plan);
  got.slot[0][2] = 1;
  const auto wrong = find_target_violation(plan, got.view());
  REQUIRE(wrong);
  CHECK(wrong->what == TargetViolation::What::kSlotRule);
  CHECK(wrong->sentence ==
        "rank 0 token 2 pick 0: target_slot is 1, must be 2 under slot rule token_index");
}

TEST_CASE("arrays of dead ranks are not looked at", "[MOE-2.2][MOE-2.5]") {
  auto alive = RankMask::all();
  alive.set_alive(RankId{0}, false);
  const auto placement = Placement::contiguous(2, 2);
  const auto routing = Routing::make(1, 1, {{1}, {0}});
  const auto plan = plan_dispatch(*placement, *routing, SlotRule::kCanonical, alive).value();
  CHECK(plan.total_rows() == 0);
  Recorded got(plan);
  got.rank[0] = {1};
  got.counters[0] = {};
  CHECK_FALSE(find_target_violation(plan, got.view()));
  got.counters[1] = {1, 0};  // a stale count of the dead source
  REQUIRE(find_target_violation(plan, got.view()));
}

}  // namespace
}  // namespace assay::moe
