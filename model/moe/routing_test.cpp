// Rounds keep their picks, wrong ones are refused, and the perfect router is even.
#include "model/moe/routing.hpp"

#include <set>

#include "model/moe/dispatch.hpp"
#include "model/moe/moe_testing.hpp"

namespace assay::moe {
namespace {

using assay::testing::prop;

TEST_CASE("a round that is not well-formed is refused with a sentence", "[MOE-1.1]") {
  CHECK(Routing::make(2, 4, {}).error().sentence == "ep is 0; allowed are 1 to 256");
  CHECK(Routing::make(0, 4, {{}}).error().sentence == "top_k is 0; allowed are 1 to 22");
  CHECK(Routing::make(23, 4, {{}}).error().sentence == "top_k is 23; allowed are 1 to 22");
  CHECK(Routing::make(2, 0, {{}}).error().sentence ==
        "max_tokens_per_rank is 0; it must be at least 1");
  CHECK(Routing::make(2, 4, {{1, 2}, {1, 2, 3}}).error().sentence ==
        "rank 1 has 3 expert ids, which is no multiple of top_k 2");
  CHECK(Routing::make(2, 1, {{1, 2}, {1, 2, 3, 4}}).error().sentence ==
        "rank 1 has 2 tokens; allowed are 0 to 1 (max_tokens_per_rank)");
}

TEST_CASE("a round gives back the picks it was made of", "[MOE-1.4]") {
  const std::vector<std::vector<std::int32_t>> ids = {{1, -1, 7, INT32_MIN}, {}, {3, 3}};
  const auto routing = Routing::make(2, 5, ids);
  REQUIRE(routing);
  CHECK(routing->ep_size() == 3);
  CHECK(routing->total_tokens() == 3);
  for (std::int32_t rank = 0; rank < 3; ++rank) {
    const auto got = routing->topk_ids(RankId{rank});
    const auto& expected = ids[static_cast<std::size_t>(rank)];
    CHECK(std::vector<std::int32_t>(got.begin(), got.end()) == expected);
    CHECK(routing->num_tokens(RankId{rank}) == static_cast<std::int32_t>(expected.size() / 2));
  }
  const auto second = routing->topk_ids(RankId{0}, TokenId{1});
  CHECK(std::vector<std::int32_t>(second.begin(), second.end()) ==
        std::vector<std::int32_t>{7, INT32_MIN});
}

TEST_CASE("the perfect router loads every rank alike", "[MOE-1.5]") {
  prop("picks of a rank walk over the ranks, then over each rank's experts", [] {
    const auto ep = *in_range(1, 9);
    const auto experts = ep + *in_range(0, 30);
    const auto top_k = *in_range(1, 9);
    const auto tokens = *rc::gen::container<std::vector<std::int32_t>>(static_cast<std::size_t>(ep),
                                                                       in_range(0, 10));
    const auto placement = Placement::contiguous(ep, experts);
    const auto routing = perfect_router(*placement, top_k, 10, tokens);
    RC_ASSERT(routing.has_value());
    for (std::int32_t src = 0; src < ep; ++src) {
      const auto ids = routing->topk_ids(RankId{src});
      RC_ASSERT(ids.size() ==
                static_cast<std::size_t>(tokens[static_cast<std::size_t>(src)] * top_k));
      std::vector<std::int32_t> load(static_cast<std::size_t>(ep), 0);
      for (std::size_t s = 0; s < ids.size(); ++s) {
        const auto rank = placement->rank_of(PhysicalExpertId{ids[s]});
        RC_ASSERT(rank == RankId{static_cast<std::int32_t>(s) % ep});
        const auto local = placement->local_of(PhysicalExpertId{ids[s]});
        RC_ASSERT(local.value() ==
                  load[s % static_cast<std::size_t>(ep)]++ % placement->experts_of(*rank).count);
      }
      const auto [least, most] = std::minmax_element(load.begin(), load.end());
      RC_ASSERT(*most - *least <= 1);
    }
  });
}

TEST_CASE("with top_k up to ep the perfect router sends top_k rows per token", "[MOE-1.5]") {
  const auto placement = Placement::contiguous(8, 256);
  const std::vector<std::int32_t> tokens(8, 16);
  const auto routing = perfect_router(*placement, 6, 16, tokens);
  REQUIRE(routing);
  const auto plan = plan_dispatch(*placement, *routing, SlotRule::kCanonical);
  REQUIRE(plan);
  CHECK(plan->total_rows() == 8 * 16 * 6);
  const std::vector<std::int32_t> wrong(7, 1);
  CHECK_FALSE(perfect_router(*placement, 6, 16, wrong));
  const std::vector<std::int32_t> many(8, 17);
  CHECK_FALSE(perfect_router(*placement, 6, 16, many));
}

}  // namespace
}  // namespace assay::moe
