// Combine by Sentinel: each rank pushes every row that its experts gave back into the inbox at the
// token's home, one cell per (token, pick); the home waits for the cells that its target table
// names and adds them in the same order as combine.hpp does. Decides SPEC KER-6.6 and how a row
// crosses; arithmetic is reduce.hpp's.
//
// Grid: at least `waiters` groups, in any order of admission; `waiters` resident groups are enough.
#pragma once

#include "cuda/kernels/one_sided/combine.hpp"
#include "cuda/kernels/one_sided/sentinel_rows.hpp"

namespace assay::one_sided {
inline namespace bodies {  // a mutant's copy has a name of its own here

// Shared words for the cells of a token: the key of each, and whether one of them has failed. Two
// sets take turns, token by token: while one is read, what comes next is written into the other.
struct CellsShared {
  static constexpr std::uint32_t kCells = 32;
  std::uint32_t turn = 0;
  ASSAY_HD constexpr SharedWord key(std::uint32_t leaf) const {
    return {SentinelShared::kCells + turn * (kCells + 1) + leaf};
  }
  ASSAY_HD constexpr SharedWord failed() const { return key(kCells); }
  ASSAY_HD constexpr CellsShared next() const { return {1 - turn}; }
  static constexpr std::uint32_t kWords = 2 * (kCells + 1);
};
static_assert(CellsShared::kWords == SentinelShared::kCellsWords);

// What all steps of a launch know: its phase, and where the bank of cells that the phase uses
// begins in every window.
struct CombineRound {
  std::uint32_t phase;
  std::uint64_t bank;
  ASSAY_HD CombineRound(const SentinelCombineParams& p, std::uint32_t number, std::uint64_t top_k)
      : phase(number),
        bank(p.combine.group.at.sentinel.inbox +
             std::uint64_t{(number / 2) % p.sentinel.combine_generations} *
                 p.sentinel.slots_per_source * top_k * p.sentinel.cell_bytes) {}
};

// Where a token's rows went, by pick: kNoTarget where there is none. Indexed by constants only.
template <int kTopK>
struct Targets {
  std::uint32_t rank[kTopK] = {};
};

template <Ops O>
ASSAY_HD std::uint32_t contents_of(O& ops, const SentinelCombineParams& p, std::uint32_t pair);
template <BitFormat Wire, int kTopK, Ops O>
ASSAY_HD void push_rows(O& ops, const SentinelCombineParams& p, const CombineRound& round,
                        std::uint32_t contents, BadKeys& bad);
template <int kTopK, Ops O>
ASSAY_HD void load_targets(O& ops, const SentinelCombineParams& p, std::uint32_t token,
                           Targets<kTopK>& targets);
template <class Arithmetic, BitFormat In, BitFormat Out, int kTopK, Ops O>
ASSAY_HD void sum_tokens(O& ops, const SentinelCombineParams& p, const CombineRound& round,
                         std::uint32_t waiter, Targets<kTopK>& targets);

template <class Arithmetic, BitFormat In, BitFormat Out, int kTopK, Ops O>
ASSAY_HD void sentinel_combine(O& ops, const SentinelCombineParams& p) {
  ops.wait_for_grid(Site::kSentinelCombineWaitForGrid);
  const GroupParams& group = p.combine.group;
  const Address own = group.window.of(ops.rank());
  const Arrival arrival =
      arrive(ops, group, takes_tickets(ops, p.sentinel), group.at.sentinel.combine_ticket,
             {Site::kSentinelCombineTicket, Site::kSentinelCombineReadStatus});
  const std::uint32_t contents = contents_of(ops, p, ops.cta());
  const std::uint32_t phase = ops.load(as<std::uint32_t>, weak, Site::kSentinelCombineReadPhase,
                                       own.at(group.at.sentinel.combine_phase));
  Targets<kTopK> targets;  // of the token that this group most likely adds first
  if (ops.cta() < p.combine.num_tokens) load_targets(ops, p, ops.cta(), targets);
  BadKeys bad{SentinelShared::kBadKeys};
  share_arrival(ops, arrival, bad, Site::kSentinelCombineShare);
  if (ops.thread() == 0) {
    ops.shared_store(Site::kSentinelCombineShare, CellsShared{0}.failed(), 0u);
    ops.shared_store(Site::kSentinelCombineShare, CellsShared{1}.failed(), 0u);
  }
  ops.barrier(Site::kSentinelCombineBegun);
  if (ops.shared_load(Site::kSentinelCombineShare, SentinelShared::failed()) != 0)
    return;  // SPEC KER-3.3

  const CombineRound round(p, phase, kTopK);
  push_rows<In, kTopK>(ops, p, round, contents, bad);
  const std::uint32_t waiter = waiter_number(ops, p.sentinel, Site::kSentinelCombineShare);
  if (waiter < p.sentinel.waiters)
    sum_tokens<Arithmetic, In, Out, kTopK>(ops, p, round, waiter, targets);
  if (ops.cta() == 0) {  // nobody reads these words before the next dispatch
    for (std::uint32_t source = ops.thread(); source < group.ep_size; source += ops.group_size())
      ops.store(weak, Site::kSentinelCombineResetCount,
                own.at(group.at.sentinel.recv_counters + std::uint64_t{source} * 4), 0u);
    if (ops.thread() == 0) {
      ops.store(weak, Site::kSentinelCombineResetTicket, own.at(group.at.sentinel.dispatch_ticket),
                0u);
      ops.store(weak, Site::kSentinelCombineAdvancePhase, own.at(group.at.sentinel.dispatch_phase),
                phase + 1);
    }
  }
}

// The cell of one pick of one token at its home.
ASSAY_HD constexpr std::uint64_t cell_offset(const SentinelCombineParams& p,
                                             const CombineRound& round, std::uint64_t token,
                                             std::uint64_t k, std::uint64_t top_k) {
  return round.bank + (token * top_k + k) * p.sentinel.cell_bytes;
}

// Pairs of (slot, source) are numbered with the sources side by side, so that low slots come first.
// 32 bits hold any: a slot takes at least 16 bytes.
ASSAY_HD constexpr std::uint32_t pairs_of(const SentinelCombineParams& p) {
  const GroupParams& group = p.combine.group;
  return group.ep_size * group.max_tokens_per_rank;
}
ASSAY_HD constexpr std::uint64_t row_of(const SentinelCombineParams& p, std::uint32_t pair) {
  const GroupParams& group = p.combine.group;
  return std::uint64_t{pair % group.ep_size} * group.max_tokens_per_rank + pair / group.ep_size;
}

// What dispatch recorded of a pair: 1 + the pick of its row, or kAbsent.
template <Ops O>
ASSAY_HD std::uint32_t contents_of(O& ops, const SentinelCombineParams& p, std::uint32_t pair) {
  const GroupParams& group = p.combine.group;
  if (pair >= pairs_of(p)) return HeaderWord::kAbsent;
  return ops.load(as<std::uint32_t>, weak, Site::kSentinelCombineReadPick,
                  group.window.of(ops.rank()).at(group.at.sentinel.picks + row_of(p, pair) * 4));
}

// Every row that dispatch received goes back to its token's home, into the cell of the pick that it
// was sent for. Rows of a slot are one group's. `contents` is that of the group's first pair; that
// of the next is always under way.
template <BitFormat Wire, int kTopK, Ops O>
ASSAY_HD void push_rows(O& ops, const SentinelCombineParams& p, const CombineRound& round,
                        std::uint32_t contents, BadKeys& bad) {
  const GroupParams& group = p.combine.group;
  const Address own = group.window.of(ops.rank());
  for (std::uint32_t pair = ops.cta(); pair < pairs_of(p); pair += ops.num_ctas()) {
    const std::uint32_t here = contents;
    contents = contents_of(ops, p, pair + ops.num_ctas());
    if (here == HeaderWord::kAbsent) continue;
    const ExpertRow<Wire> expert(p, row_of(p, pair), own);
    Outgoing<ExpertRow<Wire>> outgoing{{expert}};
    outgoing.load(ops);
    const auto begin = [&](std::uint32_t key) {
      Slots<1> cell;
      cell.at[0] = group.window.of(RankId(static_cast<std::int32_t>(pair % group.ep_size)))
                       .at(cell_offset(p, round, pair / group.ep_size, here - 1, kTopK));
      cell.present = 1;
      if (ops.thread() == 0)
        ops.store(relaxed_sys, Site::kSentinelCombineStoreHeader, cell.at[0],
                  Vec16{{HeaderWord::make(group.layout_digest, round.phase, here), key, 0, 0}});
      return cell;
    };
    outgoing.template send<1>(ops, bad,
                              {Site::kSentinelCombineShare, Site::kSentinelCombineRowScanned,
                               Site::kSentinelCombineKeysTried},
                              Site::kSentinelCombineStoreRow, begin);
  }
}

template <Ops O>
ASSAY_HD std::uint32_t target_rank(O& ops, const SentinelCombineParams& p, std::uint64_t token,
                                   std::uint64_t k) {
  const GroupParams& group = p.combine.group;
  return ops.load(as<std::uint32_t>, weak, Site::kSentinelCombineReadTarget,
                  group.window.of(ops.rank())
                      .at(group.at.target_rank + (token * p.top_k + k) * sizeof(std::int32_t)));
}

// The cells of a token: leaf i is that of pick i, or of the i-th pick that has one. They lie side
// by side, so that a pick's number says where its cell is. Indexed by constants only.
template <Holes kHoles, int kTopK>
struct Cells {
  Address first;
  std::uint64_t bytes = 0;
  std::uint32_t present = 0;
  std::uint32_t count = 0;
  std::uint32_t pick[kTopK] = {};
  ASSAY_HD void add(int k) {
    if constexpr (kHoles == Holes::kAddZero) {
      present |= 1u << k;
    } else {
      ASSAY_UNROLL
      for (int i = 0; i < kTopK; ++i)  // pick[count] = k, by constant indices
        if (static_cast<std::uint32_t>(i) == count) pick[i] = static_cast<std::uint32_t>(k);
      present |= 1u << count;
    }
    ++count;
  }
  ASSAY_HD Address at(int leaf) const {
    return first.at((kHoles == Holes::kAddZero ? static_cast<std::uint64_t>(leaf) : pick[leaf]) *
                    bytes);
  }
};

template <int kTopK, Ops O>
ASSAY_HD void load_targets(O& ops, const SentinelCombineParams& p, std::uint32_t token,
                           Targets<kTopK>& targets) {
  ASSAY_UNROLL
  for (int k = 0; k < kTopK; ++k)
    targets.rank[k] = target_rank(ops, p, token, static_cast<unsigned>(k));
}

template <Holes kHoles, int kTopK, Ops O>
ASSAY_HD Cells<kHoles, kTopK> find_cells(O& ops, const SentinelCombineParams& p,
                                         const CombineRound& round, std::uint32_t token,
                                         const Targets<kTopK>& targets) {
  Cells<kHoles, kTopK> cells;
  cells.first = p.combine.group.window.of(ops.rank()).at(cell_offset(p, round, token, 0, kTopK));
  cells.bytes = p.sentinel.cell_bytes;
  ASSAY_UNROLL
  for (int k = 0; k < kTopK; ++k)
    if (targets.rank[k] != kNoTarget) cells.add(k);
  return cells;
}

// The rank whose row is leaf `leaf` of a token, for a report.
template <Holes kHoles, Ops O>
ASSAY_HD std::uint32_t rank_of_leaf(O& ops, const SentinelCombineParams& p, std::uint32_t token,
                                    std::uint32_t leaf) {
  if (kHoles == Holes::kAddZero) return target_rank(ops, p, token, leaf);
  std::uint32_t rank = kNoTarget;
  std::uint32_t count = 0;
  for (std::uint32_t k = 0; k < p.top_k && count <= leaf; ++k) {
    rank = target_rank(ops, p, token, k);
    if (rank != kNoTarget) ++count;
  }
  return rank;
}

// Vectors that a thread waits for at once: one of each row, and the header of one cell, for which
// it speaks to the group. Rows take the leaves of picks; leaves behind them never have one.
template <int kTopK>
struct Waited {
  static constexpr int kHeader = kTopK;
  Address at[kTopK + 1] = {};
  Vec16 vector[kTopK + 1] = {};  // zero bytes are +0: what a hole adds
  std::uint32_t present = 0;
  std::uint32_t header_leaf = 0;
  // A leaf with a word that has not arrived.
  ASSAY_HD std::uint32_t missing_leaf() const {
    std::uint32_t leaf = 0;
    ASSAY_UNROLL
    for (int i = 0; i <= kTopK; ++i)
      for (const std::uint32_t word : vector[i].word)
        if (((present >> i) & 1) != 0 && word == kSentinel)
          leaf = i == kHeader ? header_leaf : static_cast<std::uint32_t>(i);
    return leaf;
  }
};

// Waits for the vectors in `waited`, arms a header again, which nobody else reads, and shares its
// key. False after a time-out, or if the header is of another round (SPEC KER-6.2).
template <class Arithmetic, int kTopK, Ops O>
ASSAY_HD bool wait_for_cells(O& ops, const SentinelCombineParams& p, const CombineRound& round,
                             std::uint32_t token, CellsShared shared, Waited<kTopK>& waited) {
  const GroupParams& group = p.combine.group;
  const std::uint32_t expected = HeaderWord::make(group.layout_digest, round.phase, 0);
  const Awaited got =
      ops.wait_for_words(relaxed_sys, Site::kSentinelCombineWaitCell, waited.at, waited.present,
                         until_written(round.phase, RankId(-1)), waited.vector);
  const bool has_header = ((waited.present >> Waited<kTopK>::kHeader) & 1) != 0;
  const Vec16& header = waited.vector[Waited<kTopK>::kHeader];
  const bool other_round = has_header && !HeaderWord::same_round(header.word[0], expected);
  if (got.timed_out || other_round) {
    report_failure(ops, group, got.timed_out ? Failure::kTimeOut : Failure::kOtherLayout,
                   round.phase + 1,
                   rank_of_leaf<Arithmetic::kHoles>(
                       ops, p, token, got.timed_out ? waited.missing_leaf() : waited.header_leaf),
                   got.timed_out ? got.seen : header.word[0], expected);
    return false;
  }
  if (has_header) {
    ops.store(relaxed_sys, Site::kSentinelCombineRearmHeader, waited.at[Waited<kTopK>::kHeader],
              kArmed);
    ops.shared_store(Site::kSentinelCombineShare, shared.key(waited.header_leaf), header.word[1]);
  }
  return true;
}

// Stores the elements of a vector that the output row has.
template <int kPerWord, BitFormat Out, Ops O>
ASSAY_HD void store_sums(O& ops, const CombineParams& p, std::uint32_t token, std::uint64_t v,
                         const Out (&sums)[kPerWord]) {
  const std::uint64_t first = v * kPerWord;
  const Address out = p.out.at((std::uint64_t{token} * p.hidden_size + first) * sizeof(Out));
  if (p.vector_bytes == 16) return store_elements(ops, Site::kSentinelCombineStoreOut, out, sums);
  ASSAY_UNROLL
  for (int e = 0; e < kPerWord; ++e) {
    const auto i = static_cast<std::uint64_t>(e);
    if (first + i < p.hidden_size)
      ops.store(weak, Site::kSentinelCombineStoreOut, out.at(i * sizeof(Out)), sums[e].bits);
  }
}

// Lets a thread wait for vector `v` of all rows.
template <Holes kHoles, int kTopK>
ASSAY_HD void choose_rows(const Cells<kHoles, kTopK>& cells, std::uint64_t v,
                          Waited<kTopK>& waited) {
  waited.present = cells.present;
  ASSAY_UNROLL
  for (int i = 0; i < kTopK; ++i) waited.at[i] = cells.at(i).at(kHeaderBytes + v * sizeof(Vec16));
}
// Lets it wait for the header of leaf `leaf` as well, if there is such a cell.
template <Holes kHoles, int kTopK>
ASSAY_HD void choose_header(const Cells<kHoles, kTopK>& cells, std::uint32_t leaf,
                            Waited<kTopK>& waited) {
  waited.header_leaf = leaf;
  ASSAY_UNROLL
  for (int i = 0; i < kTopK; ++i) {
    if (static_cast<std::uint32_t>(i) != leaf || ((cells.present >> i) & 1) == 0) continue;
    waited.at[Waited<kTopK>::kHeader] = cells.at(i);
    waited.present |= 1u << Waited<kTopK>::kHeader;
  }
}

// One token: its rows are added as they arrive, vector by vector, and their words armed again,
// which nobody else reads. Each header is read by one thread, which waits for it and for the first
// vector of its rows at once; a barrier brings the keys to the others. False, for all threads,
// after a failure; one that comes behind the barrier is seen with the next token.
template <class Arithmetic, BitFormat In, BitFormat Out, int kTopK, Ops O>
ASSAY_HD bool sum_cells(O& ops, const SentinelCombineParams& p, const CombineRound& round,
                        std::uint32_t token, const Targets<kTopK>& targets, CellsShared shared) {
  constexpr int kLeaves = leaves_of<Arithmetic>(kTopK);
  constexpr int kPerWord = static_cast<int>(sizeof(Vec16) / sizeof(In));
  const auto cells = find_cells<Arithmetic::kHoles, kTopK>(ops, p, round, token, targets);
  const std::uint64_t vectors = landing_vectors(p.combine.hidden_size * sizeof(In));
  Waited<kTopK> waited;
  if (ops.thread() < vectors) choose_rows(cells, ops.thread(), waited);
  std::uint32_t leaf = ops.thread();
  bool keys_known = false;
  for (std::uint64_t v = ops.thread();;) {  // waits and adds by code that is there once
    if (!keys_known) choose_header(cells, leaf, waited);
    if (!wait_for_cells<Arithmetic>(ops, p, round, token, shared, waited)) {
      ops.shared_store(Site::kSentinelCombineShare, (keys_known ? shared.next() : shared).failed(),
                       1u);
      if (keys_known) return true;
    }
    if (!keys_known) {
      leaf += ops.group_size();
      if (leaf < kTopK) {  // a small group: more headers, behind rows that have come
        waited.present = 0;
        continue;
      }
      ops.barrier(Site::kSentinelCombineKeysKnown);
      if (ops.shared_load(Site::kSentinelCombineShare, shared.failed()) != 0) return false;
      keys_known = true;
    }
    if (v >= vectors) return true;
    Vec16 vector[kLeaves] = {};  // zero bytes are +0: what a hole or an unused leaf adds
    ASSAY_UNROLL
    for (int i = 0; i < kTopK; ++i) {
      if (((cells.present >> i) & 1) == 0) continue;
      ops.store(relaxed_sys, Site::kSentinelCombineRearmRow, waited.at[i], kArmed);
      vector[i] = with_key(
          waited.vector[i],
          ops.shared_load(Site::kSentinelCombineShare, shared.key(static_cast<std::uint32_t>(i))));
    }
    Out sums[kPerWord];
    sum_words<Arithmetic, In>(ops, vector, cells.count, sums);
    store_sums(ops, p.combine, token, v, sums);
    v += ops.group_size();
    if (v >= vectors) return true;
    choose_rows(cells, v, waited);
  }
}

// Every `waiters`-th token of this rank. `targets` are those of token cta: the first one's, if all
// groups wait.
template <class Arithmetic, BitFormat In, BitFormat Out, int kTopK, Ops O>
ASSAY_HD void sum_tokens(O& ops, const SentinelCombineParams& p, const CombineRound& round,
                         std::uint32_t waiter, Targets<kTopK>& targets) {
  CellsShared shared;
  for (std::uint32_t token = waiter; token < p.combine.num_tokens; token += p.sentinel.waiters) {
    if (token != waiter || token != ops.cta()) load_targets(ops, p, token, targets);
    if (!sum_cells<Arithmetic, In, Out, kTopK>(ops, p, round, token, targets, shared)) return;
    shared = shared.next();
  }
}

}  // namespace bodies
}  // namespace assay::one_sided
