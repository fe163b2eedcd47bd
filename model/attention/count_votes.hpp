// From rows' votes to a tile's decision: every voting row, and the groups of zeroing_rows for
// themselves. Decides SPEC ATT-4.4; how a row votes is vote.hpp. Compiles for host and device.
#pragma once

#include "model/attention/unit_scratch.hpp"

namespace assay::attention {

// Bits 0 to n - 1; n may be out of range.
ASSAY_HD constexpr std::uint64_t below_bit(int n) {
  return n <= 0 ? 0 : n >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << n) - 1;
}

// Fills decision, zeroed groups, near-tie and the least willing row with its margin.
ASSAY_HD inline void count_votes(const SkipRule& skip, const RowVote* votes, const F32* local,
                                 int rows, TileRecord& trace) {
  const int group = skip.zeroing_rows == 0 ? rows : skip.zeroing_rows;
  std::uint64_t kept_low = 0, kept_high = 0;  // bit g: a row of group g keeps the tile
  int least = 0;                              // the row that is least willing
  bool all = true, any_tie = false;
  for (int i = 0; i < rows; ++i) {
    const RowVote& vote = votes[i];
    all = all && vote.may_skip;
    any_tie = any_tie || vote.near_tie;
    const int g = i / group;
    const std::uint64_t keeps = std::uint64_t{vote.may_skip ? 0u : 1u} << (g % 64);
    kept_low |= g < 64 ? keeps : 0;
    kept_high |= g < 64 ? 0 : keeps;
    if (vote.margin > votes[least].margin) least = i;
  }
  if (rows == 0) return;
  trace.row = least;
  trace.local_max = local[least];
  trace.running_max = votes[least].reference;
  trace.margin_log2 = static_cast<float>(votes[least].margin);
  // A row far on the keeping side makes other rows' ties harmless, unless groups decide alone.
  trace.near_tie = skip.zeroing_rows == 0 ? votes[least].near_tie : any_tie;
  if (all) {
    trace.decision = Decision::kSkipped;
  } else if (skip.zeroing_rows != 0) {
    const int groups = (rows + group - 1) / group;  // at most 128
    trace.zeroed[0] = ~kept_low & below_bit(groups);
    trace.zeroed[1] = ~kept_high & below_bit(groups - 64);
    if ((trace.zeroed[0] | trace.zeroed[1]) != 0) trace.decision = Decision::kPartlyZeroed;
  }
}

}  // namespace assay::attention
