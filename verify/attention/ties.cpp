// See ties.hpp.
#include "verify/attention/ties.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <deque>

namespace assay::verify {

using namespace assay::attention;

std::string_view decision_word(Decision decision) {
  switch (decision) {
    case Decision::kNotVisited:
      return "not visited";
    case Decision::kKept:
      return "kept";
    case Decision::kSkipped:
      return "skipped";
    case Decision::kPartlyZeroed:
      return "partly zeroed";
  }
  return "?";
}

namespace {

// Whether roundings could have decided this tile the other way.
bool can_turn(const TileTrace& tile, const Lambda& lambda, bool exact) {
  if (!tile.asked || !tile.near_tie) return false;
  const bool equal =
      tile.local_max.bits == tile.running_max.bits && lambda.lambda.bits == kOne.bits;
  return !(exact && equal);
}

bool whole(Decision decision) {
  return decision == Decision::kKept || decision == Decision::kSkipped;
}

TieTaken taken(const Unit& unit, const TileTrace& tile, Decision decision) {
  return {unit.request,  unit.head, unit.index,      tile.tile,
          tile.decision, decision,  tile.margin_log2};
}

}  // namespace

std::string tie_text(const TieTaken& tie) {
  return fmt::format(
      "request {} head {} unit {} tile {}: {}, the vote says {} by {:.3g} log2 units", tie.request,
      tie.unit_head, tie.unit, tie.tile, decision_word(tie.taken), decision_word(tie.expected),
      tie.margin_log2);
}

TieOutcome follow_mask(const Emulator& emulator, const Given& given, const Unit& unit,
                       const TieSettings& settings) {
  TieOutcome outcome;
  const Lambda& lambda = emulator.lambda(unit.request);
  std::vector<ForcedTile> forced;
  for (;;) {  // every turn forces one more of the unit's tiles
    const UnitResult result = emulator.run(unit, {forced, settings.slack_log2});
    ++outcome.runs;
    const auto differs = [&](const TileTrace& tile) {
      return given.cell(unit, tile.tile) != static_cast<std::uint8_t>(tile.decision);
    };
    const auto at = std::find_if(result.tiles.begin(), result.tiles.end(), differs);
    const bool known = at != result.tiles.end() &&
                       std::any_of(forced.begin(), forced.end(),
                                   [&](const ForcedTile& f) { return f.tile == at->tile; });
    if (at != result.tiles.end() && !known && can_turn(*at, lambda, settings.exact)) {
      const std::uint8_t cell = given.cell(unit, at->tile);
      const auto decision = static_cast<Decision>(cell);
      if (whole(decision) && whole(at->decision)) {
        forced.push_back({at->tile, decision == Decision::kSkipped});
        outcome.ties.push_back(taken(unit, *at, decision));
        continue;
      }
      outcome.cut = !settings.exact && cell != 0 &&
                    cell <= static_cast<std::uint8_t>(Decision::kPartlyZeroed);
    }
    if (!outcome.cut) outcome.difference = given.compare(result, settings.parts);
    outcome.tiles = result.tiles;
    return outcome;
  }
}

TieOutcome search_ties(const Emulator& emulator, const Given& given, const Unit& unit,
                       const TieSettings& settings) {
  struct Try {
    std::vector<ForcedTile> forced;
    std::vector<TieTaken> ties;
    std::size_t from = 0;  // tiles before this one are settled
  };
  TieOutcome outcome;
  const Lambda& lambda = emulator.lambda(unit.request);
  std::deque<Try> queue(1);
  for (; !queue.empty(); queue.pop_front()) {
    if (outcome.runs == kTieRunsMax) {
      outcome.bound_hit = true;
      break;
    }
    const Try& now = queue.front();
    const UnitResult result = emulator.run(unit, {now.forced, settings.slack_log2});
    const UnitDifference difference = given.compare(result, settings.parts);
    if (outcome.runs++ == 0 || !difference.any()) {
      outcome.difference = difference;
      outcome.tiles = result.tiles;
    }
    if (!difference.any()) {
      outcome.ties = now.ties;
      return outcome;
    }
    for (std::size_t i = now.from; i < result.tiles.size(); ++i) {
      const TileTrace& tile = result.tiles[i];
      if (!can_turn(tile, lambda, settings.exact) || !whole(tile.decision)) continue;
      if (outcome.runs + static_cast<int>(queue.size()) > kTieRunsMax) {
        outcome.bound_hit = true;  // its turn would not come
        break;
      }
      Try next = now;
      const bool skip = tile.decision == Decision::kKept;
      next.forced.push_back({tile.tile, skip});
      next.ties.push_back(taken(unit, tile, skip ? Decision::kSkipped : Decision::kKept));
      next.from = i + 1;
      queue.push_back(std::move(next));
    }
  }
  return outcome;
}

}  // namespace assay::verify
