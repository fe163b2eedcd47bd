// What the threads of a group before this one have counted: an exclusive prefix sum over the group,
// and its total. Decides how the words travel; who counts what is the caller's business.
#pragma once

#include "model/core/ops.hpp"

namespace assay::one_sided {
inline namespace bodies {  // a mutant's copy has a name of its own here

struct GroupPrefix {
  std::uint32_t before;  // the counts of all threads of lower number
  std::uint32_t total;   // of the whole group
};

// Two banks of a word per thread, and the total.
struct GroupPrefixShared {
  static constexpr std::uint32_t kThreadsMax = 1024;  // of a CUDA block
  static constexpr SharedWord of(std::uint32_t bank, std::uint32_t thread) {
    return {bank * kThreadsMax + thread};
  }
  static constexpr SharedWord total() { return {2 * kThreadsMax}; }
  static constexpr std::uint32_t kWords = 2 * kThreadsMax + 1;
};

struct GroupPrefixSites {
  Site share, shared;
};

// Calls for every thread of the group, as often as it likes: between two uses of a word lies a
// barrier, within a call because the banks take turns, from call to call because of the total's.
// Cost: log2(threads) + 1 barriers, rounded up.
template <Ops O>
ASSAY_HD GroupPrefix prefix_of_group(O& ops, std::uint32_t count, GroupPrefixSites sites) {
  using Shared = GroupPrefixShared;
  const std::uint32_t me = ops.thread();
  std::uint32_t sum = count;  // of this thread and the reach - 1 before it
  std::uint32_t bank = 0;
  for (std::uint32_t reach = 1; reach < ops.group_size(); reach *= 2, bank ^= 1) {
    ops.shared_store(sites.share, Shared::of(bank, me), sum);
    ops.barrier(sites.shared);
    if (me >= reach) sum += ops.shared_load(sites.share, Shared::of(bank, me - reach));
  }
  if (me + 1 == ops.group_size()) ops.shared_store(sites.share, Shared::total(), sum);
  ops.barrier(sites.shared);
  return {sum - count, ops.shared_load(sites.share, Shared::total())};
}

}  // namespace bodies
}  // namespace assay::one_sided
