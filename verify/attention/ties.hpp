// A unit whose outputs differ, run again with near-tie decisions as the kernel took them or may
// have taken them. Internal to judge.cpp. Decides SPEC VER-21.2 and VER-21.3: which decisions may
// be turned, in which order, and how many runs that may cost.
#pragma once

#include <vector>

#include "verify/attention/given.hpp"

namespace assay::verify {

// How many runs of one unit the search without a mask may cost. Near-ties are rare: 64 runs try
// every combination of six.
inline constexpr int kTieRunsMax = 64;

struct TieSettings {
  OutputParts parts;
  double slack_log2 = 0;  // margins within so much more can be turned (SPEC VER-21.3)
  // Scores are known to the bit, so that l = g under lambda = 1 is decided by < or <= alone.
  bool exact = true;
};

struct TieOutcome {
  UnitDifference difference;  // after the ties below
  std::vector<TieTaken> ties;
  std::vector<attention::TileTrace> tiles;  // of the last run
  int runs = 0;
  bool bound_hit = false;  // combinations were left untried
  // A near-tie between partly zeroed and something else: which groups did what is not in a mask, so
  // nothing behind it is judged.
  bool cut = false;
};

std::string_view decision_word(attention::Decision decision);  // "partly zeroed"

// With a mask: the kernel's own decisions, tile after tile, where they are near-ties.
TieOutcome follow_mask(const attention::Emulator& emulator, const Given& given,
                       const attention::Unit& unit, const TieSettings& settings);
// Without: combinations, fewest turned decisions first, until the bits are those given.
TieOutcome search_ties(const attention::Emulator& emulator, const Given& given,
                       const attention::Unit& unit, const TieSettings& settings);

}  // namespace assay::verify
