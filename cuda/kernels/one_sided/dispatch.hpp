// Dispatch: each group takes one token, finds the ranks of its experts, takes a slot at each, and
// stores every payload row straight into those ranks' receive buffers. The last group to finish
// publishes the counts, signals all peers and waits for them. Decides target rank, deduplication,
// slot and the end of the phase (SPEC KER-1, KER-2). Expert ids are only compared, never trusted.
//
// Grid: max(num_tokens, 1) groups, in any order of admission; one resident group is enough.
#pragma once

#include "cuda/kernels/one_sided/barrier.hpp"
#include "cuda/kernels/one_sided/rows.hpp"
#include "cuda/kernels/one_sided/statistics.hpp"

namespace assay::one_sided {
inline namespace bodies {  // a mutant's copy has a name of its own here

// Shared words of a dispatch group: the rank and then the slot of each pick, and one verdict.
template <int kTopK>
struct DispatchShared {
  static constexpr SharedWord rank(int k) { return {static_cast<std::uint32_t>(k)}; }
  static constexpr SharedWord slot(int k) { return {static_cast<std::uint32_t>(kTopK + k)}; }
  static constexpr SharedWord last() { return {static_cast<std::uint32_t>(2 * kTopK)}; }
  static constexpr std::uint32_t kWords = 2 * kTopK + 1;
};

template <int kTopK, Ops O>
ASSAY_HD void send_token(O& ops, const DispatchParams& p, std::uint32_t token);
template <int kTopK, Ops O>
ASSAY_HD bool is_last_group(O& ops, Address ticket);
template <Ops O>
ASSAY_HD void publish_counts(O& ops, const DispatchParams& p);

template <int kTopK, Ops O>
ASSAY_HD void dispatch(O& ops, const DispatchParams& p) {
  ops.wait_for_grid(Site::kDispatchWaitForGrid);
  const GroupParams& group = p.group;
  const Address own = group.window.of(ops.rank());
  // Only the last group writes these words, after every group has taken its ticket.
  const std::uint32_t phase =
      ops.load(as<std::uint32_t>, weak, Site::kDispatchReadPhase, own.at(group.at.phase));
  const std::uint32_t failed =
      ops.load(as<std::uint32_t>, weak, Site::kDispatchReadPhase, own.at(group.at.status));
  if (failed != 0) return;  // SPEC KER-3.3

  if (ops.cta() < p.num_tokens) send_token<kTopK>(ops, p, ops.cta());
  if (!is_last_group<kTopK>(ops, own.at(group.at.dispatch_ticket))) return;

  publish_counts(ops, p);
  publish_statistics(ops, p);
  const std::uint64_t flag = FlagWord::make(group.layout_digest, phase + 1);
  signal_peers(ops, group, group.at.dispatch_flags, flag,
               {Site::kDispatchRelease, Site::kDispatchFlag});
  wait_for_peers(ops, group, group.at.dispatch_flags, flag,
                 {Site::kDispatchWait, Site::kDispatchAcquire});
  // No barrier: other threads' acquires reach whoever needs them at the end of the kernel.
  if (ops.thread() == 0) {
    ops.store(weak, Site::kDispatchResetTicket, own.at(group.at.dispatch_ticket), 0u);
    ops.store(weak, Site::kDispatchAdvancePhase, own.at(group.at.phase), phase + 1);
  }
}

// The rank that owns an expert, or kNoTarget for an id outside [0, num_experts) and for a dead rank
// (SPEC KER-1.1, KER-1.2).
ASSAY_HD constexpr std::uint32_t target_of(const DispatchParams& p, std::uint32_t wire_id) {
  const ExpertSplit& split = p.experts;
  if (wire_id >= split.num_experts) return kNoTarget;  // -1 and INT_MIN are large as unsigned
  const std::uint32_t in_larger = split.ranks_with_one_more * (split.experts_per_rank + 1);
  const std::uint32_t rank =
      wire_id < in_larger
          ? wire_id / (split.experts_per_rank + 1)
          : split.ranks_with_one_more + (wire_id - in_larger) / split.experts_per_rank;
  return p.group.alive.has(rank) ? rank : kNoTarget;
}

template <int kTopK, Ops O>
ASSAY_HD void send_token(O& ops, const DispatchParams& p, std::uint32_t token) {
  using Shared = DispatchShared<kTopK>;
  const GroupParams& group = p.group;
  const Address own = group.window.of(ops.rank());
  const std::uint64_t row = std::uint64_t{token} * kTopK;

  for (std::uint32_t k = ops.thread(); k < kTopK; k += ops.group_size()) {
    const std::uint32_t id = ops.load(as<std::uint32_t>, weak, Site::kDispatchReadIds,
                                      p.topk_ids.at((row + k) * sizeof(std::int32_t)));
    ops.shared_store(Site::kDispatchShareTarget, Shared::rank(static_cast<int>(k)),
                     target_of(p, id));
  }
  ops.barrier(Site::kDispatchTargetsReady);

  for (std::uint32_t k = ops.thread(); k < kTopK; k += ops.group_size()) {
    std::uint32_t rank =
        ops.shared_load(Site::kDispatchShareTarget, Shared::rank(static_cast<int>(k)));
    for (std::uint32_t j = 0; j < k;
         ++j) {  // an earlier pick of the same rank sends (SPEC KER-1.3)
      if (ops.shared_load(Site::kDispatchShareTarget, Shared::rank(static_cast<int>(j))) == rank)
        rank = kNoTarget;
    }
    std::uint32_t slot = kNoTarget;
    if (rank != kNoTarget && p.ordered_slots)
      slot = ops.load(as<std::uint32_t>, weak, Site::kDispatchReadSlot,
                      own.at(group.at.target_slot + (row + k) * 4));
    else if (rank != kNoTarget)
      slot = ops.atomic_add(relaxed_gpu, Site::kDispatchTakeSlot,
                            own.at(group.at.send_counters + std::uint64_t{rank} * 4), 1u);
    ops.store(weak, Site::kDispatchRecordTarget, own.at(group.at.target_rank + (row + k) * 4),
              rank);
    ops.store(weak, Site::kDispatchRecordTarget, own.at(group.at.target_slot + (row + k) * 4),
              slot);
    ops.shared_store(Site::kDispatchShareTarget, Shared::slot(static_cast<int>(k)), slot);
  }
  ops.barrier(Site::kDispatchTargetsReady);

  RowTargets<kTopK> targets;
  const auto me = static_cast<std::uint32_t>(ops.rank().value());
  ASSAY_UNROLL
  for (int k = 0; k < kTopK; ++k) {
    const std::uint32_t slot = ops.shared_load(Site::kDispatchShareTarget, Shared::slot(k));
    if (slot == kNoTarget) continue;
    const std::uint32_t rank = ops.shared_load(Site::kDispatchShareTarget, Shared::rank(k));
    targets.add(k, RankId(static_cast<std::int32_t>(rank)),
                std::uint64_t{me} * group.max_tokens_per_rank + slot);
  }
  for (std::uint32_t i = 0; i < p.num_payloads; ++i)
    copy_row<kTopK>(ops, group.window, p.payload[i], token, targets);
}

// Whether this group is the last of the launch to have sent its token. Its acquire, and the others'
// releases, put every group's stores before whatever the last group signals (SPEC KER-2.3). The
// barrier before brings the stores of the group's other threads to thread 0.
template <int kTopK, Ops O>
ASSAY_HD bool is_last_group(O& ops, Address ticket) {
  using Shared = DispatchShared<kTopK>;
  ops.barrier(Site::kDispatchTokenDone);
  if (ops.thread() == 0) {
    const std::uint32_t taken = ops.atomic_add(acq_rel_gpu, Site::kDispatchTicket, ticket, 1u);
    ops.shared_store(Site::kDispatchShareLast, Shared::last(),
                     taken + 1 == ops.num_ctas() ? 1u : 0u);
  }
  ops.barrier(Site::kDispatchLastKnown);
  return ops.shared_load(Site::kDispatchShareLast, Shared::last()) != 0;
}

// Tells every living peer how many rows came from this rank, empties the counters for the next
// round (only the last group touches them now), and says of dead ranks that nothing came (SPEC
// KER-1.6).
template <Ops O>
ASSAY_HD void publish_counts(O& ops, const DispatchParams& p) {
  const GroupParams& group = p.group;
  const Address own = group.window.of(ops.rank());
  const auto me = static_cast<std::uint32_t>(ops.rank().value());
  for (std::uint32_t peer = ops.thread(); peer < group.ep_size; peer += ops.group_size()) {
    if (!group.alive.has(peer)) {  // what an earlier round left there is not of this one
      ops.store(weak, Site::kDispatchClearDeadCount,
                own.at(group.at.recv_counters + std::uint64_t{peer} * 4), 0u);
      continue;
    }
    const Address sent = own.at(group.at.send_counters + std::uint64_t{peer} * 4);
    const std::uint32_t count = ops.load(as<std::uint32_t>, weak, Site::kDispatchReadCount, sent);
    ops.store(weak, Site::kDispatchResetCount, sent, 0u);
    const Address cell = group.window.of(RankId(static_cast<std::int32_t>(peer)))
                             .at(group.at.recv_counters + std::uint64_t{me} * 4);
    ops.store(relaxed_sys, Site::kDispatchStoreCount, cell, count);
  }
}

}  // namespace bodies
}  // namespace assay::one_sided
