// Combine: after every rank has signalled that its experts are done, each group takes one token,
// pulls the rows of its picks from their ranks into registers, adds them in the order that the
// arithmetic names and stores one row. Decides the start of the phase and what is read (SPEC KER-2,
// KER-4); which order, format and rounding is reduce.hpp.
//
// Grid: groups_of(p), 2^parts_log2 of them for each token's row, in any order of admission; one
// resident group is enough, because the first group to arrive signals, whichever it is (SPEC
// KER-2.4).
#pragma once

#include "cuda/kernels/one_sided/barrier.hpp"
#include "cuda/kernels/one_sided/reduce.hpp"
#include "cuda/kernels/one_sided/rows.hpp"

namespace assay::one_sided {
inline namespace bodies {  // a mutant's copy has a name of its own here

// Shared words of a combine group: what thread 0 has learnt, and whether a wait of one of its
// threads failed.
struct CombineShared {
  static constexpr SharedWord taken() { return {0}; }
  static constexpr SharedWord failed() { return {1}; }
  static constexpr SharedWord wait_failed() { return {2}; }
  static constexpr SharedWord phase() { return {3}; }
  static constexpr std::uint32_t kWords = 4;
};
enum class CombineRole : std::uint32_t { kWait, kSignalAndWait, kGiveUp };
struct CombineStart {
  CombineRole role;
  std::uint32_t phase;
};

// A token's row of the tables that dispatch left: rank and slot of each pick, or kNoTarget.
template <int kTopK>
struct TokenTargets {
  std::uint32_t rank[kTopK] = {};
  std::uint32_t slot[kTopK] = {};
};

// Leaves of an arithmetic's sum.
template <class Arithmetic>
ASSAY_HD constexpr int leaves_of(int top_k) {
  return Arithmetic::kHoles == Holes::kAddZero ? top_k : compact_leaves(top_k);
}

// Where a token's rows are: leaf i is the row of pick i, or of the i-th pick that has one. Indexed
// by constants only, so that it stays in registers.
template <int kLeaves>
struct Leaves {
  std::uint32_t present = 0;
  std::uint32_t count = 0;
  Address at[kLeaves] = {};
  // Puts `row` at position k, or behind those that are there.
  template <Holes kHoles, int kTopK>
  ASSAY_HD void add(int k, Address row) {
    if constexpr (kHoles == Holes::kAddZero) {
      at[k] = row;
      present |= 1u << k;
    } else {
      ASSAY_UNROLL
      for (int i = 0; i < kTopK; ++i)  // at[count] = row, by constant indices
        if (static_cast<std::uint32_t>(i) == count) at[i] = row;
      present |= 1u << count;
    }
    ++count;
  }
};

template <Ops O>
ASSAY_HD std::uint32_t token_of(O& ops, const CombineParams& p);
template <int kTopK, Ops O>
ASSAY_HD void load_targets(O& ops, const CombineParams& p, TokenTargets<kTopK>& targets);
template <Ops O>
ASSAY_HD CombineStart start_combine(O& ops, const GroupParams& group);
template <Ops O>
ASSAY_HD bool peers_are_ready(O& ops, const GroupParams& group, std::uint64_t flag);
template <class Arithmetic, int kTopK, Ops O>
ASSAY_HD Leaves<leaves_of<Arithmetic>(kTopK)> find_rows(O& ops, const CombineParams& p,
                                                        std::uint64_t row_bytes,
                                                        const TokenTargets<kTopK>& targets);
template <class Arithmetic, BitFormat In, BitFormat Out, int kTopK, class Rows, Ops O>
ASSAY_HD void sum_token(O& ops, const CombineParams& p, const Rows& rows);

template <class Arithmetic, BitFormat In, BitFormat Out, int kTopK, Ops O>
ASSAY_HD void combine(O& ops, const CombineParams& p) {
  ops.wait_for_grid(Site::kCombineWaitForGrid);
  const GroupParams& group = p.group;
  // Group 0 will probably be the first to arrive: it fences while it learns whether it is. In the
  // threads that do, before they load anything, which a fence would wait for.
  const bool has_released = ops.cta() == 0;
  if (has_released) release_to_peers(ops, group, Site::kCombineRelease);
  const bool sums = token_of(ops, p) < p.num_tokens;
  TokenTargets<kTopK> targets;
  if (sums) load_targets(ops, p, targets);
  const CombineStart start = start_combine(ops, group);
  if (start.role == CombineRole::kGiveUp) return;

  const std::uint64_t flag = FlagWord::make(group.layout_digest, start.phase);
  if (start.role == CombineRole::kSignalAndWait) {
    if (!has_released) release_to_peers(ops, group, Site::kCombineRelease);
    signal_peers(ops, group, group.at.combine_flags, flag, Site::kCombineFlag);
  }
  // While the flags are on their way the rows are found: behind the flags stands the pull alone.
  const auto rows =
      find_rows<Arithmetic>(ops, p, std::uint64_t{p.hidden_size} * sizeof(In), targets);
  if (peers_are_ready(ops, group, flag) && sums)
    sum_token<Arithmetic, In, Out, kTopK>(ops, p, rows);
}

template <Ops O>
ASSAY_HD std::uint32_t token_of(O& ops, const CombineParams& p) {
  return ops.cta() >> p.parts_log2;
}

template <int kTopK, Ops O>
ASSAY_HD void load_targets(O& ops, const CombineParams& p, TokenTargets<kTopK>& targets) {
  const GroupParams& group = p.group;
  const Address own = group.window.of(ops.rank());
  const std::uint64_t row = std::uint64_t{token_of(ops, p)} * kTopK * 4;
  ASSAY_UNROLL
  for (int k = 0; k < kTopK; ++k)
    targets.rank[k] =
        ops.load(as<std::uint32_t>, weak, Site::kCombineReadTarget,
                 own.at(group.at.target_rank + row + static_cast<std::uint64_t>(k) * 4));
  ASSAY_UNROLL
  for (int k = 0; k < kTopK; ++k)
    targets.slot[k] =
        ops.load(as<std::uint32_t>, weak, Site::kCombineReadTarget,
                 own.at(group.at.target_slot + row + static_cast<std::uint64_t>(k) * 4));
}

// The first group of the launch signals. After a failure of this or an earlier phase nothing may be
// signalled or pulled (SPEC KER-3.3). One answer for the whole group, with the phase that dispatch
// has left, which is also that of combine's flags.
template <Ops O>
ASSAY_HD CombineStart start_combine(O& ops, const GroupParams& group) {
  if (ops.thread() == 0) {
    const std::uint32_t phase = ops.load(as<std::uint32_t>, weak, Site::kCombineReadPhase,
                                         group.window.of(ops.rank()).at(group.at.phase));
    const Arrival arrival = arrive(ops, group, !is_sole_group(ops), group.at.combine_ticket,
                                   {Site::kCombineTicket, Site::kCombineReadStatus});
    ops.shared_store(Site::kCombineShareRole, CombineShared::taken(), arrival.taken);
    ops.shared_store(Site::kCombineShareRole, CombineShared::failed(), arrival.failed);
    ops.shared_store(Site::kCombineShareRole, CombineShared::phase(), phase);
    ops.shared_store(Site::kCombineShareFailure, CombineShared::wait_failed(), 0u);
  }
  ops.barrier(Site::kCombineRoleKnown);
  const std::uint32_t taken = ops.shared_load(Site::kCombineShareRole, CombineShared::taken());
  const std::uint32_t failed = ops.shared_load(Site::kCombineShareRole, CombineShared::failed());
  const CombineRole role = failed != 0  ? CombineRole::kGiveUp
                           : taken == 0 ? CombineRole::kSignalAndWait
                                        : CombineRole::kWait;
  return {role, ops.shared_load(Site::kCombineShareRole, CombineShared::phase())};
}

// Waits for all peers. False for every thread of a group of which one has waited in vain (SPEC
// KER-3.3); other groups have waited for themselves.
template <Ops O>
ASSAY_HD bool peers_are_ready(O& ops, const GroupParams& group, std::uint64_t flag) {
  if (!wait_for_peers(ops, group, group.at.combine_flags, flag,
                      {Site::kCombineWait, Site::kCombineAcquire}))
    ops.shared_store(Site::kCombineShareFailure, CombineShared::wait_failed(), 1u);
  ops.barrier(Site::kCombineWaited);
  return ops.shared_load(Site::kCombineShareFailure, CombineShared::wait_failed()) == 0;
}

template <class Arithmetic, int kTopK, Ops O>
ASSAY_HD Leaves<leaves_of<Arithmetic>(kTopK)> find_rows(O& ops, const CombineParams& p,
                                                        std::uint64_t row_bytes,
                                                        const TokenTargets<kTopK>& targets) {
  const GroupParams& group = p.group;
  const auto me = static_cast<std::uint64_t>(ops.rank().value());
  Leaves<leaves_of<Arithmetic>(kTopK)> rows;
  if (token_of(ops, p) >= p.num_tokens) return rows;
  ASSAY_UNROLL
  for (int k = 0; k < kTopK; ++k) {
    const std::uint32_t rank = targets.rank[k];
    const std::uint32_t slot = targets.slot[k];
    if (rank == kNoTarget) continue;
    const Address row =
        group.window.of(RankId(static_cast<std::int32_t>(rank)))
            .at(p.rows_offset + (me * group.max_tokens_per_rank + slot) * row_bytes);
    rows.template add<Arithmetic::kHoles, kTopK>(k, row);
  }
  return rows;
}

// The elements of one word of every leaf, added element by element. Leaves without a row are zero
// bytes; `count` is the number of rows.
template <class Arithmetic, BitFormat In, BitFormat Out, class WordType, int kLeaves, int kPerWord,
          Ops O>
ASSAY_HD void sum_words(O& ops, const WordType (&word)[kLeaves], std::uint32_t count,
                        Out (&sums)[kPerWord]) {
  using A = typename Arithmetic::Accumulate;
  using Value = typename A::template Value<In>;
  ASSAY_UNROLL
  for (int e = 0; e < kPerWord; ++e) {
    Value term[kLeaves];
    ASSAY_UNROLL
    for (int i = 0; i < kLeaves; ++i) {
      if constexpr (Arithmetic::kThroughE4m3)
        term[i] = ops.widen_e4m3(ops.narrow_e4m3(A::from(ops, element<In>(word[i], e))));
      else
        term[i] = A::from(ops, element<In>(word[i], e));
    }
    if constexpr (Arithmetic::kHoles == Holes::kAddZero)
      A::to(ops, sum_by_position<A>(ops, term), sums[e]);
    else
      A::to(ops, sum_compacted<A>(ops, term, count), sums[e]);
  }
}

template <class Arithmetic, BitFormat In, BitFormat Out, class WordType, int kLeaves, Ops O>
ASSAY_HD void sum_token_by(O& ops, const CombineParams& p, const Leaves<kLeaves>& rows) {
  constexpr int kPerWord = static_cast<int>(sizeof(WordType) / sizeof(In));
  const Address out = p.out.at(std::uint64_t{token_of(ops, p)} * p.hidden_size * sizeof(Out));
  const std::uint64_t vectors = std::uint64_t{p.hidden_size} * sizeof(In) / sizeof(WordType);
  const std::uint32_t part = ops.cta() & ((1u << p.parts_log2) - 1);
  const std::uint64_t step = std::uint64_t{ops.group_size()} << p.parts_log2;
  for (std::uint64_t v = std::uint64_t{part} * ops.group_size() + ops.thread(); v < vectors;
       v += step) {
    Address from[kLeaves];
    WordType word[kLeaves] = {};  // zero bytes are +0: what a hole or an unused leaf adds
    ASSAY_UNROLL
    for (int i = 0; i < kLeaves; ++i) from[i] = rows.at[i].at(v * sizeof(WordType));
    ops.load_batch(relaxed_sys, Site::kCombinePull, from, rows.present, word);

    Out sums[kPerWord];
    sum_words<Arithmetic, In>(ops, word, rows.count, sums);
    store_elements(ops, Site::kCombineStoreOut, out.at(v * kPerWord * sizeof(Out)), sums);
  }
}

template <class Arithmetic, BitFormat In, BitFormat Out, int kTopK, class Rows, Ops O>
ASSAY_HD void sum_token(O& ops, const CombineParams& p, const Rows& rows) {
  using Element = decltype(In::bits);
  if (p.vector_bytes == 16)
    sum_token_by<Arithmetic, In, Out, Vec16>(ops, p, rows);
  else
    sum_token_by<Arithmetic, In, Out, Element>(ops, p, rows);
}

}  // namespace bodies
}  // namespace assay::one_sided
