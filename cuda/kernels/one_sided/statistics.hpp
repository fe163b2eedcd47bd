// Loads of experts that ride along with a dispatch by Fence, so that every rank knows every rank's
// and can place experts anew (EPLB). They are opaque words: dispatch's last group stores them at
// all peers before it signals. Decides SPEC KER-1.8.
#pragma once

#include "cuda/kernels/one_sided/params.hpp"

namespace assay::one_sided {
inline namespace bodies {  // a mutant's copy has a name of its own here

// Calls for every thread of the last group. Stores this rank's words into row [this rank] of every
// living peer's, and zeroes in this rank's rows of dead ranks: what an earlier round left there is
// not of this one. A word and the flag of its peer are stored by different threads, hence the
// barrier; the fence behind it then releases both.
template <Ops O>
ASSAY_HD void publish_statistics(O& ops, const DispatchParams& p) {
  const GroupParams& group = p.group;
  const StatisticsParams& s = p.statistics;
  const auto me = static_cast<std::uint32_t>(ops.rank().value());
  for (std::uint32_t i = ops.thread(); i < s.count; i += ops.group_size()) {
    const std::uint32_t word = ops.load(as<std::uint32_t>, weak, Site::kDispatchReadStatistic,
                                        s.own.at(std::uint64_t{i} * 4));
    for (std::uint32_t peer = 0; peer < group.ep_size; ++peer) {
      if (group.alive.has(peer)) {
        const Address rows =
            group.window.of(RankId(static_cast<std::int32_t>(peer))).at(group.at.statistics);
        ops.store(relaxed_sys, Site::kDispatchStoreStatistic,
                  rows.at((std::uint64_t{me} * s.count + i) * 4), word);
      } else {
        const Address rows = group.window.of(ops.rank()).at(group.at.statistics);
        ops.store(weak, Site::kDispatchClearDeadStatistic,
                  rows.at((std::uint64_t{peer} * s.count + i) * 4), 0u);
      }
    }
  }
  if (s.count > 0) ops.barrier(Site::kDispatchStatisticsStored);
}

}  // namespace bodies
}  // namespace assay::one_sided
