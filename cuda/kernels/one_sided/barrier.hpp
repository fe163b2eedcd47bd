// Signal and wait. A rank tells every living peer "my phase is reached" by one flag word, after a
// release fence; it learns the same of its peers by polling its own flags, then an acquire fence.
// Decides the order of these operations (SPEC KER-2), what a wait that never ends leaves behind
// (SPEC KER-3), and nothing about what the flags protect.
#pragma once

#include "cuda/kernels/one_sided/params.hpp"

namespace assay::one_sided {
inline namespace bodies {  // a mutant's copy has a name of its own here

struct WaitSites {
  Site wait, acquire;
};
struct ArrivalSites {
  Site ticket, status;
};

// Whether the launch has one group, which need not ask how many came before it.
template <Ops O>
ASSAY_HD bool is_sole_group(O& ops) {
  return ops.num_ctas() == 1;
}

// What thread 0 learns when its group begins: how many groups came before, if it asks, and whether
// the workspace has failed. Both are under way at once; the ticket orders nothing.
struct Arrival {
  std::uint32_t taken = 0, failed = 0;
};
template <Ops O>
ASSAY_HD Arrival arrive(O& ops, const GroupParams& group, bool asks, std::uint64_t ticket_offset,
                        ArrivalSites sites) {
  Arrival arrival;
  if (ops.thread() != 0) return arrival;
  const Address own = group.window.of(ops.rank());
  arrival.failed = ops.load(as<std::uint32_t>, relaxed_gpu, sites.status, own.at(group.at.status));
  if (asks) arrival.taken = ops.atomic_add(relaxed_gpu, sites.ticket, own.at(ticket_offset), 1u);
  return arrival;
}

// The first peer that this thread signals, waits for and counts rows for; the next is group_size
// further on. Peers go to the last threads: the first have picks and tickets to see to.
template <Ops O>
ASSAY_HD std::uint32_t first_peer(O& ops) {
  return ops.group_size() - 1 - ops.thread();
}

// What this rank did before, and what it has acquired from others, is visible to whoever acquires a
// flag that signal_peers() stores behind this call: the same threads fence that store flags (SPEC
// KER-2.3).
template <Ops O>
ASSAY_HD void release_to_peers(O& ops, const GroupParams& group, Site site) {
  if (first_peer(ops) < group.ep_size) ops.fence(release_sys, site);
}

// Stores `flag` into cell [this rank] of `flags_offset` at every living peer, itself included.
template <Ops O>
ASSAY_HD void signal_peers(O& ops, const GroupParams& group, std::uint64_t flags_offset,
                           std::uint64_t flag, Site site) {
  const auto me = static_cast<std::uint32_t>(ops.rank().value());
  for (std::uint32_t peer = first_peer(ops); peer < group.ep_size; peer += ops.group_size()) {
    if (!group.alive.has(peer)) continue;
    const Address cell = group.window.of(RankId(static_cast<std::int32_t>(peer)))
                             .at(flags_offset + std::uint64_t{me} * sizeof(std::uint64_t));
    ops.store(relaxed_sys, site, cell, flag);
  }
}

// Records why this rank gave up; the first reporter wins (SPEC KER-3.2).
template <Ops O>
ASSAY_HD void report_failure(O& ops, const GroupParams& group, Failure failure, std::uint32_t epoch,
                             std::uint32_t peer, std::uint64_t seen, std::uint64_t expected) {
  const Address status = group.window.of(ops.rank()).at(group.at.status);
  const std::uint32_t before = ops.atomic_cas(relaxed_gpu, Site::kStatusClaim, status, 0u,
                                              static_cast<std::uint32_t>(failure));
  if (before != 0) return;
  ops.store(relaxed_gpu, Site::kStatusStore, status.at(StatusWord::kEpoch), epoch);
  ops.store(relaxed_gpu, Site::kStatusStore, status.at(StatusWord::kPeer), peer);
  ops.store(relaxed_gpu, Site::kStatusStore, status.at(StatusWord::kSeen), seen);
  ops.store(relaxed_gpu, Site::kStatusStore, status.at(StatusWord::kExpected), expected);
}

// Waits until every living peer's flag in this rank's `flags_offset` carries the epoch of `flag`.
// A peer whose digest differs runs other sizes: that is a failure and not a wait (SPEC KER-2.2).
// Every calling thread waits for its share of the peers; a barrier must follow before another
// thread relies on it. False if a wait of this thread failed; what went wrong is in the status
// word.
template <Ops O>
ASSAY_HD bool wait_for_peers(O& ops, const GroupParams& group, std::uint64_t flags_offset,
                             std::uint64_t flag, WaitSites sites) {
  bool all_came = true;
  for (std::uint32_t peer = first_peer(ops); peer < group.ep_size && all_came;
       peer += ops.group_size()) {
    if (!group.alive.has(peer)) continue;
    const Address cell =
        group.window.of(ops.rank()).at(flags_offset + std::uint64_t{peer} * sizeof(std::uint64_t));
    Await await;
    await.mask = FlagWord::kEpochMask;
    await.expected = FlagWord::epoch(flag);
    await.epoch = static_cast<std::uint32_t>(FlagWord::epoch(flag));
    await.peer = RankId(static_cast<std::int32_t>(peer));
    const Awaited got = ops.wait_until(as<std::uint64_t>, relaxed_sys, sites.wait, cell, await);
    if (!got.timed_out && got.seen == flag) continue;
    report_failure(ops, group, got.timed_out ? Failure::kTimeOut : Failure::kOtherLayout,
                   await.epoch, peer, got.seen, flag);
    all_came = false;
  }
  if (first_peer(ops) < group.ep_size) ops.fence(acquire_sys, sites.acquire);
  return all_came;
}

}  // namespace bodies
}  // namespace assay::one_sided
