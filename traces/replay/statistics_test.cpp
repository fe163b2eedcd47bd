// Token placement and statistics against counting by hand and against what is known of a real
// trace.
#include "traces/replay/statistics.hpp"

#include <algorithm>
#include <numeric>

#include "model/core/testing.hpp"
#include "traces/replay/token_placement.hpp"

namespace assay::traces {
namespace {

using assay::testing::prop;

std::vector<std::int32_t> numbers(std::int32_t count) {
  std::vector<std::int32_t> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), 0);
  return values;
}

TEST_CASE("contiguous placement splits tokens into ordered, almost equal blocks", "[TRC-3.1]") {
  for (std::int32_t ep = 1; ep <= 20; ++ep) {
    for (std::int32_t t = 0; t <= 70; ++t) {
      const auto rank = place_tokens(TokenPlacement::kContiguous, ep, numbers(t), numbers(t));
      CAPTURE(ep, t);
      REQUIRE(std::is_sorted(rank.begin(), rank.end()));
      std::vector<std::int32_t> load(static_cast<std::size_t>(ep));
      for (const std::int32_t r : rank) ++load.at(static_cast<std::size_t>(r));
      REQUIRE(std::is_sorted(load.rbegin(), load.rend()));
      REQUIRE(load.front() - load.back() <= 1);
    }
  }
}

TEST_CASE("round robin deals tokens one by one", "[TRC-3.1]") {
  const std::vector<std::int32_t> expected = {0, 1, 2, 0, 1, 2, 0};
  CHECK(place_tokens(TokenPlacement::kRoundRobin, 3, numbers(7), numbers(7)) == expected);
}

TEST_CASE("a request stays on its rank whoever else is in a step", "[TRC-3.1]") {
  const std::vector<std::int32_t> requests = {3, 5, 8, 11, 40};
  const std::vector<std::int32_t> all = {0, 1, 0, 1, 0};
  CHECK(place_tokens(TokenPlacement::kRequest, 2, requests, requests) == all);
  const std::vector<std::int32_t> some = {40, 5, 5}, ranks = {0, 1, 1};
  CHECK(place_tokens(TokenPlacement::kRequest, 2, some, requests) == ranks);
}

TEST_CASE("statistics of a round that can be counted by hand", "[TRC-3.5]") {
  // Two ranks, experts 0 and 1 on rank 0, experts 2 and 3 on rank 1.
  const auto placement = moe::Placement::contiguous(2, 4).value();
  const std::vector<std::vector<std::int32_t>> ids = {{0, 1, 0, 3}, {1, -1}};
  const auto routing = moe::Routing::make(2, 4, ids).value();
  const auto plan = moe::plan_dispatch(placement, routing, moe::SlotRule::kCanonical).value();
  Statistics statistics(2, 4, 1);
  statistics.add(placement, routing, plan, 0);
  CHECK(statistics.tokens == 3);
  CHECK(statistics.picks == 5);
  CHECK(statistics.rows == 4);  // the first token's two picks are one row
  CHECK(statistics.rows_by_pair == std::vector<std::int64_t>{2, 1, 1, 0});
  CHECK(statistics.empty_pair_fraction() == 0.25);
  CHECK(statistics.empty_rank_fraction() == 0);
  CHECK(statistics.empty_expert_fraction() == 0.25);
  CHECK(statistics.rows_received(0) == 3);
  CHECK(statistics.rows_sent(0) == 3);
  CHECK(statistics.rank_imbalance.mean() == 1.5);
  CHECK(statistics.expert_imbalance.mean() == 2 / 1.25);
  CHECK(statistics.occupancy.worst == 3 / 8.0);
  CHECK(statistics.layer_imbalance(0) == 2 / 1.25);
}

TEST_CASE("a round without tokens is counted and divides nothing by zero", "[TRC-3.5]") {
  const auto placement = moe::Placement::contiguous(2, 2).value();
  const auto routing = moe::Routing::make(1, 1, {{}, {}}).value();
  const auto plan = moe::plan_dispatch(placement, routing, moe::SlotRule::kCanonical).value();
  Statistics statistics(2, 2, 1);
  statistics.add(placement, routing, plan, 0);
  CHECK(statistics.empty_pair_fraction() == 1);
  CHECK(statistics.empty_rank_fraction() == 1);
  CHECK(statistics.ranks_per_token() == 0);
  CHECK(statistics.rank_imbalance.mean() == 0);
  CHECK(statistics.layer_imbalance(0) == 0);
}

TEST_CASE("merged statistics are those of all rounds together", "[TRC-3.5]") {
  prop("any rounds, cut anywhere", [] {
    const auto ep = *rc::gen::inRange(1, 5);
    const auto placement = moe::Placement::contiguous(ep, 8).value();
    Statistics whole(ep, 8, 2), first(ep, 8, 2), second(ep, 8, 2);
    const auto rounds = *rc::gen::inRange(0, 6);
    const auto cut = *rc::gen::inRange(0, 6);
    for (int r = 0; r < rounds; ++r) {
      std::vector<std::vector<std::int32_t>> ids(static_cast<std::size_t>(ep));
      for (auto& of_rank : ids)
        of_rank = *rc::gen::container<std::vector<std::int32_t>>(
            static_cast<std::size_t>(2 * *rc::gen::inRange(0, 4)), rc::gen::inRange(-1, 9));
      const auto routing = moe::Routing::make(2, 4, ids).value();
      const auto plan = moe::plan_dispatch(placement, routing, moe::SlotRule::kCanonical).value();
      whole.add(placement, routing, plan, r % 2);
      (r < cut ? first : second).add(placement, routing, plan, r % 2);
    }
    first.merge(second);
    RC_ASSERT(first.rows_by_pair == whole.rows_by_pair);
    RC_ASSERT(first.picks_by_expert == whole.picks_by_expert);
    RC_ASSERT(first.tokens_by_rank == whole.tokens_by_rank);
    RC_ASSERT(first.empty_pairs == whole.empty_pairs);
    RC_ASSERT(first.empty_ranks == whole.empty_ranks);
    RC_ASSERT(first.empty_experts == whole.empty_experts);
    RC_ASSERT(first.rank_imbalance.worst == whole.rank_imbalance.worst);
    RC_ASSERT(first.occupancy.count == whole.occupancy.count);
  });
}

}  // namespace
}  // namespace assay::traces
