// Combine: after every rank has signalled that its experts are done, each group takes one token,
// pulls the rows of its picks from their ranks into registers, adds them in the order that the
// arithmetic names and stores one row. Decides the start of the phase and what is read (SPEC KER-2,
// KER-4); which order, format and rounding is reduce.hpp.
//
// Grid: max(num_tokens, 1) groups, in any order of admission; one resident group is enough, because
// the first group to arrive signals, whichever it is (SPEC KER-2.4).
#pragma once

#include "cuda/kernels/one_sided/barrier.hpp"
#include "cuda/kernels/one_sided/reduce.hpp"
#include "cuda/kernels/one_sided/rows.hpp"

namespace assay::one_sided {
inline namespace bodies {  // a mutant's copy has a name of its own here

struct CombineShared {
  static constexpr SharedWord role() { return {0}; }
  static constexpr std::uint32_t kWords = 1;
};
enum class CombineRole : std::uint32_t { kWait, kSignalAndWait, kGiveUp };

template <Ops O>
ASSAY_HD bool peers_are_ready(O& ops, const CombineParams& p, Address own, std::uint32_t phase);
template <class Arithmetic, BitFormat In, BitFormat Out, int kTopK, Ops O>
ASSAY_HD void sum_token(O& ops, const CombineParams& p, std::uint32_t token);

template <class Arithmetic, BitFormat In, BitFormat Out, int kTopK, Ops O>
ASSAY_HD void combine(O& ops, const CombineParams& p) {
  ops.wait_for_grid(Site::kCombineWaitForGrid);
  const GroupParams& group = p.group;
  const Address own = group.window.of(ops.rank());
  const std::uint32_t phase =
      ops.load(as<std::uint32_t>, weak, Site::kCombineReadPhase, own.at(group.at.phase));
  const bool ready = peers_are_ready(ops, p, own, phase);
  if (ready && ops.cta() < p.num_tokens) sum_token<Arithmetic, In, Out, kTopK>(ops, p, ops.cta());

  // No barrier: other threads have read the words that are reset before CombineRoleKnown, and
  // nobody needs their sums before the end of the kernel.
  if (ops.thread() != 0) return;
  const std::uint32_t done = ops.atomic_add(acq_rel_gpu, Site::kCombineTailTicket,
                                            own.at(group.at.combine_tail_ticket), 1u);
  if (done + 1 != ops.num_ctas()) return;
  ops.store(weak, Site::kCombineResetTicket, own.at(group.at.combine_head_ticket), 0u);
  ops.store(weak, Site::kCombineResetTicket, own.at(group.at.combine_tail_ticket), 0u);
  ops.store(weak, Site::kCombineAdvancePhase, own.at(group.at.phase), phase + 1);
}

// Signals if this group is the first of the launch, then waits for all peers. False after a failure
// of this or an earlier phase: nothing may be pulled then (SPEC KER-3.3). Threads of one group may
// answer differently after a failure, so no barrier may depend on the answer.
template <Ops O>
ASSAY_HD bool peers_are_ready(O& ops, const CombineParams& p, Address own, std::uint32_t phase) {
  const GroupParams& group = p.group;
  if (ops.thread() == 0) {
    const std::uint32_t taken = ops.atomic_add(relaxed_gpu, Site::kCombineHeadTicket,
                                               own.at(group.at.combine_head_ticket), 1u);
    const std::uint32_t failed =
        ops.load(as<std::uint32_t>, relaxed_gpu, Site::kCombineReadStatus, own.at(group.at.status));
    const CombineRole role = failed != 0  ? CombineRole::kGiveUp
                             : taken == 0 ? CombineRole::kSignalAndWait
                                          : CombineRole::kWait;
    ops.shared_store(Site::kCombineShareRole, CombineShared::role(),
                     static_cast<std::uint32_t>(role));
  }
  ops.barrier(Site::kCombineRoleKnown);
  const auto role =
      static_cast<CombineRole>(ops.shared_load(Site::kCombineShareRole, CombineShared::role()));
  if (role == CombineRole::kGiveUp) return false;

  const std::uint64_t flag = FlagWord::make(group.layout_digest, phase + 1);
  if (role == CombineRole::kSignalAndWait)
    signal_peers(ops, group, group.at.combine_flags, flag,
                 {Site::kCombineRelease, Site::kCombineFlag});
  wait_for_peers(ops, group, group.at.combine_flags, flag,
                 {Site::kCombineWait, Site::kCombineAcquire});
  ops.barrier(Site::kCombineWaited);
  return ops.load(as<std::uint32_t>, relaxed_gpu, Site::kCombineReadStatus,
                  own.at(group.at.status)) == 0;
}

// Where a token's rows are: leaf i is the row of pick i, or of the i-th pick that has one.
template <Holes kHoles, int kLeaves, int kTopK, Ops O>
ASSAY_HD std::uint32_t find_rows(O& ops, const CombineParams& p, std::uint32_t token,
                                 std::uint64_t row_bytes, Address (&leaf)[kLeaves]) {
  const GroupParams& group = p.group;
  const Address own = group.window.of(ops.rank());
  const auto me = static_cast<std::uint64_t>(ops.rank().value());
  std::uint32_t present = 0;
  std::uint32_t count = 0;
  ASSAY_UNROLL
  for (int k = 0; k < kTopK; ++k) {
    const std::uint64_t entry = (std::uint64_t{token} * kTopK + static_cast<std::uint64_t>(k)) * 4;
    const std::uint32_t rank = ops.load(as<std::uint32_t>, weak, Site::kCombineReadTarget,
                                        own.at(group.at.target_rank + entry));
    const std::uint32_t slot = ops.load(as<std::uint32_t>, weak, Site::kCombineReadTarget,
                                        own.at(group.at.target_slot + entry));
    if (rank == 0xFFFFFFFFu) continue;
    const Address row =
        group.window.of(RankId(static_cast<std::int32_t>(rank)))
            .at(p.rows_offset + (me * group.max_tokens_per_rank + slot) * row_bytes);
    if constexpr (kHoles == Holes::kAddZero) {
      leaf[k] = row;
      present |= 1u << k;
    } else {
      ASSAY_UNROLL
      for (int i = 0; i < kTopK; ++i)  // leaf[count] = row, by constant indices
        if (static_cast<std::uint32_t>(i) == count) leaf[i] = row;
      present |= 1u << count;
      ++count;
    }
  }
  return present;
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

// Leaves of an arithmetic's sum.
template <class Arithmetic>
ASSAY_HD constexpr int leaves_of(int top_k) {
  return Arithmetic::kHoles == Holes::kAddZero ? top_k : compact_leaves(top_k);
}

template <class Arithmetic, BitFormat In, BitFormat Out, int kTopK, class WordType, Ops O>
ASSAY_HD void sum_token_by(O& ops, const CombineParams& p, std::uint32_t token) {
  constexpr int kLeaves = leaves_of<Arithmetic>(kTopK);
  constexpr int kPerWord = static_cast<int>(sizeof(WordType) / sizeof(In));
  const std::uint64_t row_bytes = std::uint64_t{p.hidden_size} * sizeof(In);

  Address leaf[kLeaves] = {};
  const std::uint32_t present =
      find_rows<Arithmetic::kHoles, kLeaves, kTopK>(ops, p, token, row_bytes, leaf);
  std::uint32_t count = 0;
  for (std::uint32_t bits = present; bits != 0; bits &= bits - 1) ++count;

  const Address out = p.out.at(std::uint64_t{token} * p.hidden_size * sizeof(Out));
  const std::uint64_t vectors = row_bytes / sizeof(WordType);
  for (std::uint64_t v = ops.thread(); v < vectors; v += ops.group_size()) {
    Address from[kLeaves];
    WordType word[kLeaves] = {};  // zero bytes are +0: what a hole or an unused leaf adds
    ASSAY_UNROLL
    for (int i = 0; i < kLeaves; ++i) from[i] = leaf[i].at(v * sizeof(WordType));
    ops.load_batch(relaxed_sys, Site::kCombinePull, from, present, word);

    Out sums[kPerWord];
    sum_words<Arithmetic, In>(ops, word, count, sums);
    store_elements(ops, Site::kCombineStoreOut, out.at(v * kPerWord * sizeof(Out)), sums);
  }
}

template <class Arithmetic, BitFormat In, BitFormat Out, int kTopK, Ops O>
ASSAY_HD void sum_token(O& ops, const CombineParams& p, std::uint32_t token) {
  using Element = decltype(In::bits);
  if (p.vector_bytes == 16)
    sum_token_by<Arithmetic, In, Out, kTopK, Vec16>(ops, p, token);
  else
    sum_token_by<Arithmetic, In, Out, kTopK, Element>(ops, p, token);
}

}  // namespace bodies
}  // namespace assay::one_sided
