// Decisions that are given instead of voted.
#include "model/attention/attention_testing.hpp"

using namespace assay;
using namespace assay::attention;
using namespace assay::attention::testing;

TEST_CASE("a given decision replaces the vote of its tile, and as voted changes nothing",
          "[ATT-5.9]") {
  int turned = 0;
  prop("any profile, any problem", [&] {
    const Profile& profile = any_profile([](const Profile& p) { return !p.skip.dense_only; });
    const Case c = *cases(profile, {90, 600, 1});
    const auto built = build(c);
    const auto emulator = Emulator::make(profile, built->problem);
    if (emulator->units().empty()) return;
    const Unit unit = *rc::gen::elementOf(emulator->units());
    const UnitResult voted = emulator->run(unit);
    std::vector<ForcedTile> same;
    std::vector<std::size_t> asked;
    for (std::size_t i = 0; i < voted.tiles.size(); ++i) {
      const TileTrace& t = voted.tiles[i];
      if (t.asked) asked.push_back(i);
      if (t.decision != Decision::kPartlyZeroed)
        same.push_back({t.tile, t.decision == Decision::kSkipped});
    }
    RC_ASSERT(emulator->run(unit, {same}).out == voted.out);
    if (asked.empty()) return;
    const std::size_t visit = *rc::gen::elementOf(asked);
    const TileTrace& old = voted.tiles[visit];
    const ForcedTile other{old.tile, old.decision != Decision::kSkipped};
    const UnitResult forced = emulator->run(unit, {{&other, 1}});
    RC_ASSERT(forced.tiles.size() == voted.tiles.size());
    for (std::size_t i = 0; i < visit; ++i)
      RC_ASSERT(forced.tiles[i].decision == voted.tiles[i].decision);
    RC_ASSERT(forced.tiles[visit].decision == (other.skip ? Decision::kSkipped : Decision::kKept));
    RC_ASSERT(forced.tiles[visit].local_max.bits == old.local_max.bits);
    turned += forced.out != voted.out;
  });
  REQUIRE(turned > 20);
}
