// Placement dealt out one by one, replicas searched for, and masks bit by bit.
#include "model/moe/placement.hpp"

#include "model/moe/moe_testing.hpp"

namespace assay::moe {
namespace {

using assay::testing::prop;

TEST_CASE("experts are split over ranks in order, the first ranks owning one more", "[MOE-1.2]") {
  for (std::int32_t ep = 1; ep <= 20; ++ep)
    for (std::int32_t experts = ep; experts <= 70; ++experts) {
      const auto placement = Placement::contiguous(ep, experts);
      REQUIRE(placement);
      // Deal the places out one by one: every rank has base, the first `rest` one more.
      std::int32_t place = 0;
      for (std::int32_t rank = 0; rank < ep; ++rank) {
        std::int32_t count = experts / ep;
        if (rank < experts - count * ep) ++count;
        const auto range = placement->experts_of(RankId{rank});
        REQUIRE(range.first == PhysicalExpertId{place});
        REQUIRE(range.count == count);
        for (std::int32_t local = 0; local < count; ++local, ++place) {
          REQUIRE(placement->rank_of(PhysicalExpertId{place}) == RankId{rank});
          REQUIRE(placement->local_of(PhysicalExpertId{place}) == LocalExpertId{local});
          REQUIRE(placement->logical_of(PhysicalExpertId{place}) == ExpertId{place});
        }
      }
      REQUIRE(place == experts);
      REQUIRE_FALSE(placement->rank_of(PhysicalExpertId{experts}));
      REQUIRE_FALSE(placement->rank_of(PhysicalExpertId{-1}));
    }
}

TEST_CASE("a wire id outside the places names nothing", "[MOE-1.4]") {
  const auto placement = Placement::contiguous(3, 7);
  REQUIRE(placement);
  for (const std::int32_t id : {-1, 7, 8, INT32_MIN, INT32_MAX})
    CHECK_FALSE(placement->place_of_wire(id));
  for (std::int32_t id = 0; id < 7; ++id)
    CHECK(placement->place_of_wire(id) == PhysicalExpertId{id});
}

TEST_CASE("sizes outside the limits are refused with the value and what is allowed", "[MOE-1.1]") {
  CHECK(Placement::contiguous(0, 8).error().sentence == "ep is 0; allowed are 1 to 256");
  CHECK(Placement::contiguous(257, 512).error().sentence == "ep is 257; allowed are 1 to 256");
  CHECK(Placement::contiguous(8, 7).error().sentence ==
        "7 experts for 8 ranks; every rank needs at least one, so allowed are 8 to 32768 experts");
  CHECK(Placement::contiguous(8, 32769).error().sentence ==
        "experts is 32769; allowed are 8 to 32768");
  CHECK(Placement::contiguous(256, 32768));
}

TEST_CASE("a replica map must name every expert and only experts", "[MOE-1.3]") {
  const std::vector<std::int32_t> unknown = {0, 1, 3, 1};
  CHECK(Placement::replicated(2, 3, unknown).error().sentence ==
        "physical_to_logical[2] is 3; allowed are 0 to 2");
  const std::vector<std::int32_t> missing = {0, 1, 0, 1};
  CHECK(Placement::replicated(2, 3, missing).error().sentence ==
        "logical expert 2 has no place in physical_to_logical");
  CHECK_FALSE(Placement::replicated(2, 5, missing));
  CHECK_FALSE(Placement::replicated(2, 0, missing));
}

TEST_CASE("tokens take turns among the replicas of an expert", "[MOE-1.3]") {
  prop("replica (source + token) mod replicas, ascending by place", [] {
    const auto ep = *in_range(1, 5);
    const auto logical = *in_range(1, 6);
    auto map = *rc::gen::container<std::vector<std::int32_t>>(
        static_cast<std::size_t>(*in_range(0, 8) + ep), in_range(0, logical));
    for (std::int32_t expert = 0; expert < logical; ++expert) map.push_back(expert);
    const auto placement = Placement::replicated(ep, logical, map);
    RC_ASSERT(placement.has_value());
    const auto expert = *in_range(0, logical);
    std::vector<std::int32_t> places;
    for (std::size_t i = 0; i < map.size(); ++i)
      if (map[i] == expert) places.push_back(static_cast<std::int32_t>(i));
    const auto replicas = placement->replicas_of(ExpertId{expert});
    RC_ASSERT(replicas.size() == places.size());
    for (std::size_t i = 0; i < places.size(); ++i) RC_ASSERT(replicas[i].value() == places[i]);
    const auto source = *in_range(0, ep);
    const auto token = *rc::gen::arbitrary<std::int32_t>() & INT32_MAX;
    const auto chosen = placement->replica_for(ExpertId{expert}, RankId{source}, TokenId{token});
    const auto turn = (std::int64_t{source} + token) % static_cast<std::int64_t>(places.size());
    RC_ASSERT(chosen.value() == places[static_cast<std::size_t>(turn)]);
    RC_ASSERT(placement->logical_of(chosen) == ExpertId{expert});
  });
}

TEST_CASE("bit r of a rank mask says that rank r is alive", "[MOE-1.6]") {
  prop("words and ranks agree", [] {
    const auto ep = *in_range(1, kMaxRanks + 1);
    const auto words =
        *rc::gen::container<std::vector<std::uint64_t>>(4, rc::gen::arbitrary<std::uint64_t>());
    auto mask = RankMask::from_words(words.data(), ep);
    std::int32_t count = 0;
    for (std::int32_t rank = 0; rank < ep; ++rank) {
      const bool bit = (words[static_cast<std::size_t>(rank / 64)] >> (rank % 64) & 1) != 0;
      RC_ASSERT(mask.alive(RankId{rank}) == bit);
      count += bit ? 1 : 0;
    }
    RC_ASSERT(mask.num_alive(ep) == count);
    const auto flipped = *in_range(0, ep);
    const bool was = mask.alive(RankId{flipped});
    mask.set_alive(RankId{flipped}, !was);
    RC_ASSERT(mask.alive(RankId{flipped}) == !was);
    RC_ASSERT(mask.num_alive(ep) == count + (was ? -1 : 1));
  });
  CHECK(RankMask::all().num_alive(kMaxRanks) == kMaxRanks);
}

}  // namespace
}  // namespace assay::moe
