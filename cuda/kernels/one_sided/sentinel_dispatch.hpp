// Dispatch by Sentinel: a token's slot is its own index, its rows carry their own arrival, and
// every rank writes the header of every slot of the round to every living peer, so that a receiver
// needs neither counts nor flags. Each group first sends its tokens; the groups that wait then take
// the slots that arrive, restore the rows in the receive buffers and arm the slots again. Decides
// SPEC KER-6; expert ids are only compared, never trusted.
//
// Grid: at least `waiters` groups, in any order of admission; `waiters` resident groups are enough.
#pragma once

#include "cuda/kernels/one_sided/dispatch.hpp"
#include "cuda/kernels/one_sided/sentinel_rows.hpp"

namespace assay::one_sided {
inline namespace bodies {  // a mutant's copy has a name of its own here

// Shared words behind the common ones: the rank of each pick, and the rank of each pick that sends.
template <int kTopK>
struct SentinelDispatchShared {
  static constexpr std::uint32_t kFirst = SentinelShared::kWords;
  static constexpr SharedWord rank(int k) { return {kFirst + static_cast<std::uint32_t>(k)}; }
  static constexpr SharedWord winner(int k) {
    return {kFirst + static_cast<std::uint32_t>(kTopK + k)};
  }
  static constexpr std::uint32_t kWords = kFirst + 2 * kTopK;
};

// What all steps of a launch know: its phase, and where the bank of slots that the phase uses
// begins in every window.
struct DispatchRound {
  std::uint32_t phase = 0;
  std::uint64_t bank = 0;
  ASSAY_HD DispatchRound() {}
  ASSAY_HD DispatchRound(const SentinelDispatchParams& p, std::uint32_t number)
      : phase(number),
        bank(p.dispatch.group.at.sentinel.slots +
             std::uint64_t{(number / 2) % p.sentinel.dispatch_generations} *
                 p.dispatch.group.ep_size * p.sentinel.slots_per_source * p.sentinel.slot_bytes) {}
};

template <int kTopK, Ops O>
ASSAY_HD void sentinel_send_token(O& ops, const SentinelDispatchParams& p,
                                  const DispatchRound& round, Outgoing<TokenRows>& outgoing,
                                  BadKeys& bad);
template <Ops O>
ASSAY_HD void send_absences(O& ops, const SentinelDispatchParams& p, const DispatchRound& round);
template <Ops O>
ASSAY_HD void receive_slots(O& ops, const SentinelDispatchParams& p, const TokenRows& rows,
                            const DispatchRound& round, std::uint32_t waiter);

template <int kTopK, Ops O>
ASSAY_HD void sentinel_dispatch(O& ops, const SentinelDispatchParams& p) {
  using Shared = SentinelDispatchShared<kTopK>;
  ops.wait_for_grid(Site::kSentinelDispatchWaitForGrid);
  const DispatchParams& d = p.dispatch;
  const GroupParams& group = d.group;
  const Address own = group.window.of(ops.rank());
  // In the threads that will store headers: with them goes out that this rank has armed again what
  // it took in earlier rounds, and has finished with its peers' rows (SPEC KER-6.4). First of all,
  // because it takes as long as what the other threads load.
  release_to_peers(ops, group, Site::kSentinelDispatchRelease);
  const Arrival arrival =
      arrive(ops, group, takes_tickets(ops, p.sentinel), group.at.sentinel.dispatch_ticket,
             {Site::kSentinelDispatchTicket, Site::kSentinelDispatchReadStatus});
  const std::uint32_t phase = ops.load(as<std::uint32_t>, weak, Site::kSentinelDispatchReadPhase,
                                       own.at(group.at.sentinel.dispatch_phase));
  DispatchRound round;
  BadKeys bad{SentinelShared::kBadKeys};
  TokenRows rows{d, ops.cta(), Site::kSentinelDispatchReadPayload};
  Outgoing<TokenRows> outgoing{{rows}};
  for (bool begun = false;; begun = true, rows.token += ops.num_ctas()) {
    // A group's loads are all under way before it looks at any of them.
    const bool sends = rows.token < d.num_tokens;
    if (begun && !sends) break;
    std::uint32_t first_id = 0;
    if (sends) {
      first_id = load_id<kTopK>(ops, d, rows.token, ops.thread(), Site::kSentinelDispatchReadIds);
      outgoing.load(ops);
    }
    if (!begun) share_arrival(ops, arrival, bad, Site::kSentinelDispatchShare);
    if (sends)  // a key's choice has a barrier behind the last use of the ranks before
      share_targets<kTopK, Shared>(ops, d, rows.token, first_id, Site::kSentinelDispatchReadIds,
                                   Site::kSentinelDispatchShare);
    ops.barrier(Site::kSentinelDispatchTargetsReady);
    if (!begun && ops.shared_load(Site::kSentinelDispatchShare, SentinelShared::failed()) != 0)
      return;  // SPEC KER-3.3
    if (!begun) round = DispatchRound(p, phase);
    if (!sends) break;
    sentinel_send_token<kTopK>(ops, p, round, outgoing, bad);
  }
  send_absences(ops, p, round);
  const std::uint32_t waiter = waiter_number(ops, p.sentinel, Site::kSentinelDispatchShare);
  if (waiter < p.sentinel.waiters) receive_slots(ops, p, rows, round, waiter);
  if (ops.cta() == 0 && ops.thread() == 0) {  // nobody reads these words before combine
    ops.store(weak, Site::kSentinelDispatchResetTicket, own.at(group.at.sentinel.combine_ticket),
              0u);
    ops.store(weak, Site::kSentinelDispatchAdvancePhase, own.at(group.at.sentinel.combine_phase),
              phase + 1);
  }
}

// Slot `slot` of `source` in the bank of a round.
ASSAY_HD constexpr std::uint64_t slot_offset(const SentinelDispatchParams& p,
                                             const DispatchRound& round, std::uint64_t source,
                                             std::uint64_t slot) {
  return round.bank + (source * p.sentinel.slots_per_source + slot) * p.sentinel.slot_bytes;
}

// Of the picks with one target the lowest sends (SPEC KER-1.3). Where it goes is recorded as by
// Fence; the slot is the token.
template <int kTopK, Ops O>
ASSAY_HD void record_winners(O& ops, const DispatchParams& p, std::uint32_t token) {
  using Shared = SentinelDispatchShared<kTopK>;
  const Address own = p.group.window.of(ops.rank());
  for (std::uint32_t k = ops.thread(); k < kTopK; k += ops.group_size()) {
    const std::uint32_t rank = rank_to_send_to<kTopK, Shared>(ops, k, Site::kSentinelDispatchShare);
    ops.shared_store(Site::kSentinelDispatchShare, Shared::winner(static_cast<int>(k)), rank);
    const std::uint64_t entry = (std::uint64_t{token} * kTopK + k) * 4;
    ops.store(weak, Site::kSentinelDispatchRecordTarget, own.at(p.group.at.target_rank + entry),
              rank);
    ops.store(weak, Site::kSentinelDispatchRecordTarget, own.at(p.group.at.target_slot + entry),
              rank == kNoTarget ? kNoTarget : token);
  }
}

// Stores the header of one slot at one peer.
template <Ops O>
ASSAY_HD void store_header(O& ops, const SentinelDispatchParams& p, const DispatchRound& round,
                           std::uint32_t peer, std::uint32_t slot, std::uint32_t contents,
                           std::uint32_t key) {
  const GroupParams& group = p.dispatch.group;
  const auto me = static_cast<std::uint32_t>(ops.rank().value());
  const Vec16 header{{HeaderWord::make(group.layout_digest, round.phase, contents), key, 0, 0}};
  ops.store(
      relaxed_sys, Site::kSentinelDispatchStoreHeader,
      group.window.of(RankId(static_cast<std::int32_t>(peer))).at(slot_offset(p, round, me, slot)),
      header);
}

template <int kTopK, Ops O>
ASSAY_HD void sentinel_send_token(O& ops, const SentinelDispatchParams& p,
                                  const DispatchRound& round, Outgoing<TokenRows>& outgoing,
                                  BadKeys& bad) {
  using Shared = SentinelDispatchShared<kTopK>;
  const GroupParams& group = p.dispatch.group;
  const std::uint32_t token = outgoing.moving.rows.token;
  record_winners<kTopK>(ops, p.dispatch, token);
  const auto begin = [&](std::uint32_t key) {
    std::uint32_t winner[kTopK];
    ASSAY_UNROLL
    for (int k = 0; k < kTopK; ++k)
      winner[k] = ops.shared_load(Site::kSentinelDispatchShare, Shared::winner(k));
    for (std::uint32_t peer = first_peer(ops); peer < group.ep_size; peer += ops.group_size()) {
      if (!group.alive.has(peer)) continue;
      std::uint32_t contents = HeaderWord::kAbsent;
      ASSAY_UNROLL
      for (int k = 0; k < kTopK; ++k)
        if (winner[k] == peer) contents = 1 + static_cast<std::uint32_t>(k);
      store_header(ops, p, round, peer, token, contents, contents == HeaderWord::kAbsent ? 0 : key);
    }
    const auto me = static_cast<std::uint32_t>(ops.rank().value());
    const std::uint64_t slot = slot_offset(p, round, me, token);
    Slots<kTopK> slots;
    ASSAY_UNROLL
    for (int k = 0; k < kTopK; ++k) {
      if (winner[k] == kNoTarget) continue;
      slots.present |= 1u << k;
      slots.at[k] = group.window.of(RankId(static_cast<std::int32_t>(winner[k]))).at(slot);
    }
    return slots;
  };
  outgoing.template send<kTopK>(ops, bad,
                                {Site::kSentinelDispatchShare, Site::kSentinelDispatchRowsScanned,
                                 Site::kSentinelDispatchKeysTried},
                                Site::kSentinelDispatchStoreRow, begin);
}

// Slots of the round that no token of this rank fills say so to every living peer. A rank without
// tokens says nothing else, and says it in every slot (SPEC KER-6.4).
template <Ops O>
ASSAY_HD void send_absences(O& ops, const SentinelDispatchParams& p, const DispatchRound& round) {
  const GroupParams& group = p.dispatch.group;
  for (std::uint32_t slot = p.dispatch.num_tokens + ops.cta(); slot < group.max_tokens_per_rank;
       slot += ops.num_ctas())
    for (std::uint32_t peer = first_peer(ops); peer < group.ep_size; peer += ops.group_size())
      if (group.alive.has(peer)) store_header(ops, p, round, peer, slot, HeaderWord::kAbsent, 0);
}

// What a slot turned out to hold.
struct SlotHeader {
  bool arrived;
  std::uint32_t contents;
  std::uint32_t key;
};

// Waits for the header of a slot. A header of another round is a failure and not a wait (SPEC
// KER-6.2).
template <Ops O>
ASSAY_HD SlotHeader wait_for_header(O& ops, const SentinelDispatchParams& p,
                                    const DispatchRound& round, std::uint32_t source,
                                    Address slot) {
  const GroupParams& group = p.dispatch.group;
  const Address at[1] = {slot};
  Vec16 header[1] = {};
  const Awaited got = ops.wait_for_words(
      relaxed_sys, Site::kSentinelDispatchWaitHeader, at, 1u,
      until_written(round.phase, RankId(static_cast<std::int32_t>(source))), header);
  const std::uint32_t word = header[0].word[0];
  const std::uint32_t expected =
      HeaderWord::make(group.layout_digest, round.phase, HeaderWord::kAbsent);
  if (got.timed_out || !HeaderWord::same_round(word, expected)) {
    report_failure(ops, group, got.timed_out ? Failure::kTimeOut : Failure::kOtherLayout,
                   round.phase + 1, source, got.timed_out ? got.seen : word, expected);
    return {false, HeaderWord::kAbsent, 0};
  }
  return {true, HeaderWord::contents(word), header[0].word[1]};
}

// Takes the rows of one slot: waits for their words, arms them again (nobody else reads them) and
// restores the rows in the receive buffers. `rows` is only asked how rows are made of vectors.
// False after a time-out.
template <Ops O>
ASSAY_HD bool receive_rows(O& ops, const SentinelDispatchParams& p, const TokenRows& rows,
                           const DispatchRound& round, std::uint32_t source, std::uint64_t row,
                           Address slot, std::uint32_t key) {
  const DispatchParams& d = p.dispatch;
  const Address own = d.group.window.of(ops.rank());
  const Await await = until_written(round.phase, RankId(static_cast<std::int32_t>(source)));
  const auto received = [&](std::uint32_t i) {
    const PayloadParams& payload = d.payload[i];
    const std::uint64_t bytes = payload.bytes_per_token;
    return RowCopies<1>{
        {own.at(payload.recv_offset + row * bytes)}, 1u, bytes, payload.vector_bytes};
  };
  const RowCopies<1> whole = received(d.vectors.whole_payload);
  InFlight<TokenRows, kSentinelInFlight> arrived{rows};
  for (std::uint32_t first = ops.thread(); first < rows.vectors(); first += arrived.step(ops)) {
    Address at[kSentinelInFlight];
    std::uint32_t present = 0;
    ASSAY_UNROLL
    for (int i = 0; i < kSentinelInFlight; ++i) {
      const std::uint32_t v = arrived.index(ops, first, i);
      at[i] = slot.at(kHeaderBytes + std::uint64_t{v} * sizeof(Vec16));
      if (v < rows.vectors()) present |= 1u << i;
    }
    const Awaited got = ops.wait_for_words(relaxed_sys, Site::kSentinelDispatchWaitRow, at, present,
                                           await, arrived.kept);
    if (got.timed_out) {
      report_failure(ops, d.group, Failure::kTimeOut, round.phase + 1, source, got.seen,
                     HeaderWord::make(d.group.layout_digest, round.phase, HeaderWord::kAbsent));
      return false;
    }
    ASSAY_UNROLL
    for (int i = 0; i < kSentinelInFlight; ++i)
      if ((present >> i) & 1)
        ops.store(relaxed_sys, Site::kSentinelDispatchRearmRow, at[i], kArmed);
    arrived.each(
        ops, first,
        [&](std::uint32_t v, const Vec16& vector) {
          store_whole_vector(ops, weak, Site::kSentinelDispatchStoreReceived, whole,
                             v - rows.whole().first, with_key(vector, key));
        },
        [&](std::uint32_t v, const Vec16& vector) {
          const std::uint32_t payload = rows.payload_of(v);
          store_row_vector(ops, weak, Site::kSentinelDispatchStoreReceived, received(payload), v,
                           with_key(vector, key));
        });
  }
  return true;
}

// A row without a token gets the invalid id in every pick, and nothing else (SPEC KER-1.5,
// KER-6.9).
template <Ops O>
ASSAY_HD void invalidate_ids(O& ops, const SentinelDispatchParams& p, std::uint64_t row) {
  if (p.ids_payload >= p.dispatch.num_payloads) return;
  const Address ids = p.dispatch.group.window.of(ops.rank())
                          .at(p.dispatch.payload[p.ids_payload].recv_offset + row * p.top_k * 4);
  for (std::uint32_t k = ops.thread(); k < p.top_k; k += ops.group_size())
    ops.store(weak, Site::kSentinelDispatchStoreInvalidId, ids.at(std::uint64_t{k} * 4),
              static_cast<std::uint32_t>(p.invalid_expert_id));
}

// One slot of one source, into row [source, slot] of the receive buffers. False after a failure.
template <Ops O>
ASSAY_HD bool receive_slot(O& ops, const SentinelDispatchParams& p, const TokenRows& rows,
                           const DispatchRound& round, std::uint32_t source, std::uint32_t slot) {
  const GroupParams& group = p.dispatch.group;
  const Address own = group.window.of(ops.rank());
  const std::uint64_t row = std::uint64_t{source} * group.max_tokens_per_rank + slot;
  SlotHeader header{true, HeaderWord::kAbsent, 0};  // of a dead source nothing is awaited
  if (group.alive.has(source)) {
    const Address from = own.at(slot_offset(p, round, source, slot));
    header = wait_for_header(ops, p, round, source, from);
    if (!header.arrived) return false;
    if (header.contents != HeaderWord::kAbsent &&
        !receive_rows(ops, p, rows, round, source, row, from, header.key))
      return false;
  }
  if (header.contents == HeaderWord::kAbsent) invalidate_ids(ops, p, row);
  if (ops.thread() == 0) {
    ops.store(weak, Site::kSentinelDispatchRecordPick, own.at(group.at.sentinel.picks + row * 4),
              header.contents);
    if (header.contents != HeaderWord::kAbsent)
      ops.atomic_add(relaxed_gpu, Site::kSentinelDispatchCountRow,
                     own.at(group.at.sentinel.recv_counters + std::uint64_t{source} * 4),
                     std::uint32_t{1});
  }
  return true;
}

// Every `waiters`-th slot of all sources, low slots first. Headers are read by all threads of the
// group, so they are armed again after a barrier.
template <Ops O>
ASSAY_HD void receive_slots(O& ops, const SentinelDispatchParams& p, const TokenRows& rows,
                            const DispatchRound& round, std::uint32_t waiter) {
  const GroupParams& group = p.dispatch.group;
  // 32 bits hold any pair of (slot, source): a slot takes at least 16 bytes.
  const std::uint32_t pairs = group.ep_size * group.max_tokens_per_rank;
  bool received = true;
  for (std::uint32_t pair = waiter; pair < pairs && received; pair += p.sentinel.waiters)
    received = receive_slot(ops, p, rows, round, pair % group.ep_size, pair / group.ep_size);
  // Thread 0 has seen a header of every living source of its slots: what their senders did before,
  // in earlier rounds, is now before everything that this rank does after this kernel.
  if (ops.thread() == 0) ops.fence(acquire_sys, Site::kSentinelDispatchAcquire);
  ops.barrier(Site::kSentinelDispatchSlotsDone);
  if (!received) return;
  for (std::uint32_t pair = waiter + ops.thread() * p.sentinel.waiters; pair < pairs;
       pair += ops.group_size() * p.sentinel.waiters) {
    const std::uint32_t source = pair % group.ep_size;
    if (group.alive.has(source))
      ops.store(relaxed_sys, Site::kSentinelDispatchRearmHeader,
                group.window.of(ops.rank()).at(slot_offset(p, round, source, pair / group.ep_size)),
                kArmed);
  }
}

}  // namespace bodies
}  // namespace assay::one_sided
