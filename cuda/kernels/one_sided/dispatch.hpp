// Dispatch: each group takes one token, finds the ranks of its experts, takes a slot at each, and
// stores every payload row straight into those ranks' receive buffers. The last group to finish
// publishes the counts (a launch's only group as soon as it knows its token's targets), signals all
// peers and waits for them. Decides target rank, deduplication, slot and the end of the phase (SPEC
// KER-1, KER-2). Expert ids are only compared, never trusted.
//
// Grid: max(num_tokens, 1) groups, in any order of admission; one resident group is enough.
#pragma once

#include "cuda/kernels/one_sided/barrier.hpp"
#include "cuda/kernels/one_sided/pieces.hpp"
#include "cuda/kernels/one_sided/rows.hpp"
#include "cuda/kernels/one_sided/statistics.hpp"

namespace assay::one_sided {
inline namespace bodies {  // a mutant's copy has a name of its own here

// Shared words of a dispatch group: the rank of each pick, the slot of each that sends and that
// rank's window, and one verdict.
template <int kTopK>
struct DispatchShared {
  static constexpr SharedWord rank(int k) { return {static_cast<std::uint32_t>(k)}; }
  static constexpr SharedWord slot(int k) { return {static_cast<std::uint32_t>(kTopK + k)}; }
  static constexpr SharedWord window_low(int k) {
    return {static_cast<std::uint32_t>(2 * kTopK + k)};
  }
  static constexpr SharedWord window_high(int k) {
    return {static_cast<std::uint32_t>(3 * kTopK + k)};
  }
  static constexpr SharedWord last() { return {static_cast<std::uint32_t>(4 * kTopK)}; }
  static constexpr std::uint32_t kWords = 4 * kTopK + 1;
};

template <int kTopK, Ops O>
ASSAY_HD std::uint32_t load_id(O& ops, const DispatchParams& p, std::uint32_t token,
                               std::uint32_t k, Site site);
template <int kTopK, Ops O>
ASSAY_HD void send_token(O& ops, const DispatchParams& p, InFlight<WholeRow, kInFlight>& moving,
                         const OtherRows& others, std::uint32_t first_id);
template <int kTopK, Ops O>
ASSAY_HD bool is_last_group(O& ops, Address ticket);
template <Ops O>
ASSAY_HD void publish_counts(O& ops, const DispatchParams& p);

template <int kTopK, Ops O>
ASSAY_HD void dispatch(O& ops, const DispatchParams& p) {
  ops.wait_for_grid(Site::kDispatchWaitForGrid);
  const GroupParams& group = p.group;
  const Address own = group.window.of(ops.rank());
  // All that a group reads is under way before it looks at any of it, and what most depends on
  // comes first.
  const bool sends = ops.cta() < p.num_tokens;
  std::uint32_t first_id = 0;
  if (sends) first_id = load_id<kTopK>(ops, p, ops.cta(), ops.thread(), Site::kDispatchReadIds);
  // Only the last group writes these words, after every group has taken its ticket.
  const std::uint32_t failed =
      ops.load(as<std::uint32_t>, weak, Site::kDispatchReadPhase, own.at(group.at.status));
  const WholeRow row{p, ops.cta(), Site::kDispatchReadPayload};
  InFlight<WholeRow, kInFlight> moving{row};
  OtherRows others{p, ops.cta(), Site::kDispatchReadPayload};
  if (sends) moving.load(ops, ops.thread());
  if (sends) others.load(ops);
  const std::uint32_t phase =
      ops.load(as<std::uint32_t>, weak, Site::kDispatchReadPhase, own.at(group.at.phase));
  if (failed != 0) return;  // SPEC KER-3.3

  if (sends) send_token<kTopK>(ops, p, moving, others, first_id);
  if (!is_last_group<kTopK>(ops, own.at(group.at.dispatch_ticket))) return;

  if (!sends || !is_sole_group(ops)) publish_counts(ops, p);
  publish_statistics(ops, p);
  const std::uint64_t flag = FlagWord::make(group.layout_digest, phase + 1);
  release_to_peers(ops, group, Site::kDispatchRelease);
  signal_peers(ops, group, group.at.dispatch_flags, flag, Site::kDispatchFlag);
  if (ops.thread() == 0) {
    ops.store(weak, Site::kDispatchResetTicket, own.at(group.at.dispatch_ticket), 0u);
    ops.store(weak, Site::kDispatchResetCombineTicket, own.at(group.at.combine_ticket), 0u);
    ops.store(weak, Site::kDispatchAdvancePhase, own.at(group.at.phase), phase + 2);
  }
  // No barrier behind it: the acquires reach whoever needs them at the end of the kernel.
  wait_for_peers(ops, group, group.at.dispatch_flags, flag,
                 {Site::kDispatchWait, Site::kDispatchAcquire});
}

// The rank that owns an expert, or kNoTarget for an id outside [0, num_experts) and for a dead rank
// (SPEC KER-1.1, KER-1.2).
ASSAY_HD constexpr std::uint32_t target_of(const DispatchParams& p, std::uint32_t wire_id) {
  const ExpertSplit& split = p.experts;
  if (wire_id >= split.num_experts) return kNoTarget;  // -1 and INT_MIN are large as unsigned
  const std::uint32_t in_larger = split.ranks_with_one_more * (split.experts_per_rank + 1);
  const std::uint32_t rank =
      wire_id < in_larger ? split.one_more.times(wire_id)
                          : split.ranks_with_one_more + split.even.times(wire_id - in_larger);
  return p.group.alive.has(rank) ? rank : kNoTarget;
}

// The expert of pick k of a token; any value where there is no such pick.
template <int kTopK, Ops O>
ASSAY_HD std::uint32_t load_id(O& ops, const DispatchParams& p, std::uint32_t token,
                               std::uint32_t k, Site site) {
  if (k >= kTopK) return 0;
  return ops.load(as<std::uint32_t>, weak, site,
                  p.topk_ids.at((std::uint64_t{token} * kTopK + k) * sizeof(std::int32_t)));
}

// Shares the target rank of every pick. `first_id` is what load_id() gave for this thread's first
// pick: its latency is that of all loads that were issued with it.
template <int kTopK, class Shared, Ops O>
ASSAY_HD void share_targets(O& ops, const DispatchParams& p, std::uint32_t token,
                            std::uint32_t first_id, Site read, Site share) {
  for (std::uint32_t k = ops.thread(); k < kTopK; k += ops.group_size()) {
    const std::uint32_t id = k == ops.thread() ? first_id : load_id<kTopK>(ops, p, token, k, read);
    ops.shared_store(share, Shared::rank(static_cast<int>(k)), target_of(p, id));
  }
}

// The rank that pick k sends to, or kNoTarget: an earlier pick of the same rank sends (SPEC
// KER-1.3).
template <int kTopK, class Shared, Ops O>
ASSAY_HD std::uint32_t rank_to_send_to(O& ops, std::uint32_t k, Site share) {
  std::uint32_t rank = ops.shared_load(share, Shared::rank(static_cast<int>(k)));
  ASSAY_UNROLL
  for (int j = 0; j < kTopK; ++j)  // a loop to k would be code for every length
    if (j < static_cast<int>(k) && ops.shared_load(share, Shared::rank(j)) == rank)
      rank = kNoTarget;
  return rank;
}

// The slot of each pick that sends, and the window that it sends to: one thread finds that out for
// all. A launch of one group counts nothing, because its token is the first at each target.
template <int kTopK, Ops O>
ASSAY_HD void share_slots(O& ops, const DispatchParams& p, std::uint32_t token) {
  using Shared = DispatchShared<kTopK>;
  const GroupParams& group = p.group;
  const Address own = group.window.of(ops.rank());
  for (std::uint32_t k = ops.thread(); k < kTopK; k += ops.group_size()) {
    const std::uint32_t rank = rank_to_send_to<kTopK, Shared>(ops, k, Site::kDispatchShareTarget);
    std::uint32_t slot = kNoTarget;
    if (rank != kNoTarget && p.ordered_slots)
      slot = ops.load(as<std::uint32_t>, weak, Site::kDispatchReadSlot,
                      own.at(group.at.target_slot + (std::uint64_t{token} * kTopK + k) * 4));
    else if (rank != kNoTarget)
      slot = is_sole_group(ops)
                 ? 0
                 : ops.atomic_add(relaxed_gpu, Site::kDispatchTakeSlot,
                                  own.at(group.at.send_counters + std::uint64_t{rank} * 4), 1u);
    const auto pick = static_cast<int>(k);
    ops.shared_store(Site::kDispatchShareTarget, Shared::slot(pick), slot);
    if (rank == kNoTarget) continue;
    const Address window = group.window.of(RankId(static_cast<std::int32_t>(rank)));
    ops.shared_store(Site::kDispatchShareTarget, Shared::window_low(pick), window.low());
    ops.shared_store(Site::kDispatchShareTarget, Shared::window_high(pick), window.high());
  }
}

// For combine: the rank and slot of each pick that sends. Nobody waits for these stores.
template <int kTopK, Ops O>
ASSAY_HD void record_targets(O& ops, const DispatchParams& p, std::uint32_t token) {
  using Shared = DispatchShared<kTopK>;
  const Address own = p.group.window.of(ops.rank());
  for (std::uint32_t k = ops.thread(); k < kTopK; k += ops.group_size()) {
    const auto pick = static_cast<int>(k);
    const std::uint32_t slot = ops.shared_load(Site::kDispatchShareTarget, Shared::slot(pick));
    const std::uint32_t rank = ops.shared_load(Site::kDispatchShareTarget, Shared::rank(pick));
    const std::uint64_t entry = (std::uint64_t{token} * kTopK + k) * 4;
    ops.store(weak, Site::kDispatchRecordTarget, own.at(p.group.at.target_rank + entry),
              slot == kNoTarget ? kNoTarget : rank);
    ops.store(weak, Site::kDispatchRecordTarget, own.at(p.group.at.target_slot + entry), slot);
  }
}

// The rows that one payload of the token becomes, as share_slots() has found them.
template <int kTopK, Ops O>
ASSAY_HD RowCopies<kTopK> copies_of(O& ops, const DispatchParams& p, std::uint32_t i) {
  using Shared = DispatchShared<kTopK>;
  const PayloadParams& payload = p.payload[i];
  const std::uint64_t bytes = payload.bytes_per_token;
  const auto me = static_cast<std::uint64_t>(ops.rank().value());
  const std::uint64_t block = payload.recv_offset + me * p.group.max_tokens_per_rank * bytes;
  RowCopies<kTopK> copies{{}, 0, bytes, payload.vector_bytes};
  ASSAY_UNROLL
  for (int k = 0; k < kTopK; ++k) {
    const std::uint32_t slot = ops.shared_load(Site::kDispatchShareTarget, Shared::slot(k));
    if (slot == kNoTarget) continue;
    const Address window =
        Address::of_words(ops.shared_load(Site::kDispatchShareTarget, Shared::window_low(k)),
                          ops.shared_load(Site::kDispatchShareTarget, Shared::window_high(k)));
    copies.present |= 1u << k;
    copies.row[k] = window.at(block + slot * bytes);
  }
  return copies;
}

template <int kTopK, Ops O>
ASSAY_HD void publish_sole_token(O& ops, const DispatchParams& p);

// `moving` and `others` have the first vectors and pieces of the token's rows under way: they do
// not depend on where the token goes.
template <int kTopK, Ops O>
ASSAY_HD void send_token(O& ops, const DispatchParams& p, InFlight<WholeRow, kInFlight>& moving,
                         const OtherRows& others, std::uint32_t first_id) {
  using Shared = DispatchShared<kTopK>;
  const std::uint32_t token = moving.rows.token;
  share_targets<kTopK, Shared>(ops, p, token, first_id, Site::kDispatchReadIds,
                               Site::kDispatchShareTarget);
  ops.barrier(Site::kDispatchTargetsReady);
  share_slots<kTopK>(ops, p, token);
  if (is_sole_group(ops)) publish_sole_token<kTopK>(ops, p);
  ops.barrier(Site::kDispatchTargetsReady);

  const RowCopies<kTopK> whole = copies_of<kTopK>(ops, p, p.vectors.whole_payload);
  moving.all(ops, [&](std::uint32_t v, const Vec16& vector) {
    store_whole_vector(ops, relaxed_sys, Site::kDispatchStorePayload, whole, v, vector);
  });
  others.each(ops, [&](std::uint32_t payload, std::uint32_t number, const Vec16& piece) {
    store_piece(ops, relaxed_sys, Site::kDispatchStorePayload, copies_of<kTopK>(ops, p, payload),
                number, piece);
  });
  record_targets<kTopK>(ops, p, token);
}

// Whether this group is the last of the launch to have sent its token. Its acquire, and the others'
// releases, put every group's stores before whatever the last group signals (SPEC KER-2.3). The
// barrier before brings the stores of the group's other threads to thread 0.
template <int kTopK, Ops O>
ASSAY_HD bool is_last_group(O& ops, Address ticket) {
  using Shared = DispatchShared<kTopK>;
  ops.barrier(Site::kDispatchTokenDone);
  if (is_sole_group(ops)) return true;
  if (ops.thread() == 0) {
    const std::uint32_t taken = ops.atomic_add(acq_rel_gpu, Site::kDispatchTicket, ticket, 1u);
    ops.shared_store(Site::kDispatchShareLast, Shared::last(),
                     taken + 1 == ops.num_ctas() ? 1u : 0u);
  }
  ops.barrier(Site::kDispatchLastKnown);
  return ops.shared_load(Site::kDispatchShareLast, Shared::last()) != 0;
}

// Tells every living peer how many rows came from this rank, and says of dead ranks that nothing
// came (SPEC KER-1.6).
template <Ops O, class CountOf>
ASSAY_HD void publish(O& ops, const DispatchParams& p, const CountOf& count_of) {
  const GroupParams& group = p.group;
  const auto count_at = [&](RankId at, std::uint32_t source) {
    return group.window.of(at).at(group.at.recv_counters + std::uint64_t{source} * 4);
  };
  const auto me = static_cast<std::uint32_t>(ops.rank().value());
  for (std::uint32_t peer = first_peer(ops); peer < group.ep_size; peer += ops.group_size()) {
    if (!group.alive.has(peer)) {  // what an earlier round left there is not of this one
      ops.store(weak, Site::kDispatchClearDeadCount, count_at(ops.rank(), peer), 0u);
      continue;
    }
    ops.store(relaxed_sys, Site::kDispatchStoreCount,
              count_at(RankId(static_cast<std::int32_t>(peer)), me), count_of(peer));
  }
}

// What the launch's groups have counted. Only the last group touches the counters now, and empties
// them for the next round.
template <Ops O>
ASSAY_HD void publish_counts(O& ops, const DispatchParams& p) {
  const GroupParams& group = p.group;
  const Address own = group.window.of(ops.rank());
  publish(ops, p, [&](std::uint32_t peer) {
    const Address sent = own.at(group.at.send_counters + std::uint64_t{peer} * 4);
    const std::uint32_t count = ops.load(as<std::uint32_t>, weak, Site::kDispatchReadCount, sent);
    ops.store(weak, Site::kDispatchResetCount, sent, 0u);
    return count;
  });
}

// Of a launch of one group with a token: its row, if any of its picks is there. As early as that is
// known.
template <int kTopK, Ops O>
ASSAY_HD void publish_sole_token(O& ops, const DispatchParams& p) {
  publish(ops, p, [&](std::uint32_t peer) {
    std::uint32_t count = 0;
    ASSAY_UNROLL
    for (int k = 0; k < kTopK; ++k)
      if (ops.shared_load(Site::kDispatchShareTarget, DispatchShared<kTopK>::rank(k)) == peer)
        count = 1;
    return count;
  });
}

}  // namespace bodies
}  // namespace assay::one_sided
