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

template <Ops O>
ASSAY_HD void push_rows(O& ops, const SentinelCombineParams& p, std::uint32_t phase, BadKeys& bad);
template <class Arithmetic, BitFormat In, BitFormat Out, int kTopK, Ops O>
ASSAY_HD void sum_tokens(O& ops, const SentinelCombineParams& p, std::uint32_t phase,
                         std::uint32_t waiter);

template <class Arithmetic, BitFormat In, BitFormat Out, int kTopK, Ops O>
ASSAY_HD void sentinel_combine(O& ops, const SentinelCombineParams& p) {
  ops.wait_for_grid(Site::kSentinelCombineWaitForGrid);
  const GroupParams& group = p.combine.group;
  const Address own = group.window.of(ops.rank());
  BadKeys bad{SentinelShared::kBadKeys};
  const std::uint32_t phase = ops.load(as<std::uint32_t>, weak, Site::kSentinelCombineReadPhase,
                                       own.at(group.at.sentinel.combine_phase));
  begin_launch(ops, group, group.at.sentinel.combine_ticket, bad,
               {Site::kSentinelCombineReadStatus, Site::kSentinelCombineTicket,
                Site::kSentinelCombineShare});
  ops.barrier(Site::kSentinelCombineBegun);
  if (ops.shared_load(Site::kSentinelCombineShare, SentinelShared::failed()) != 0)
    return;  // SPEC KER-3.3

  push_rows(ops, p, phase, bad);
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
  const std::uint32_t waiter = waiter_number(ops, p.sentinel.waiters, Site::kSentinelCombineShare);
  if (waiter < p.sentinel.waiters) sum_tokens<Arithmetic, In, Out, kTopK>(ops, p, phase, waiter);
}

// The cell of one pick of one token at its home, in the bank that this phase uses.
ASSAY_HD constexpr std::uint64_t cell_offset(const SentinelCombineParams& p, std::uint32_t phase,
                                             std::uint64_t token, std::uint64_t k,
                                             std::uint64_t top_k) {
  const SentinelParams& s = p.sentinel;
  const std::uint64_t bank = (phase / 2) % s.combine_generations;
  return p.combine.group.at.sentinel.inbox +
         ((bank * s.slots_per_source + token) * top_k + k) * s.cell_bytes;
}

// An expert's row as it crosses: its bytes, or its elements as e4m3 (SPEC KER-4.3).
struct ExpertRow {
  Address row;
  RowFormat from;
  bool as_e4m3;
  std::uint32_t hidden_size;
  std::uint32_t piece_bytes;
  ASSAY_HD static constexpr std::uint64_t element_bytes(RowFormat format) {
    return format == RowFormat::kE4m3 ? 1 : format == RowFormat::kF32 ? 4 : 2;
  }
  ASSAY_HD std::uint64_t vectors() const {
    return landing_vectors(hidden_size * (as_e4m3 ? 1 : element_bytes(from)));
  }
  template <Ops O>
  ASSAY_HD Vec16 vector(O& ops, std::uint64_t v) const {
    if (!as_e4m3)
      return load_row_vector(ops, Site::kSentinelCombineReadRow,
                             {row, hidden_size * element_bytes(from), piece_bytes}, v);
    if (from == RowFormat::kBf16) return narrowed<Bf16>(ops, v);
    if (from == RowFormat::kF16) return narrowed<F16>(ops, v);
    return narrowed<F32>(ops, v);
  }
  template <BitFormat In, Ops O>
  ASSAY_HD Vec16 narrowed(O& ops, std::uint64_t v) const {
    using Bits = decltype(In::bits);
    Vec16 vector{};
    ASSAY_UNROLL
    for (std::uint64_t e = 0; e < sizeof(Vec16); ++e) {
      const std::uint64_t i = v * sizeof(Vec16) + e;
      if (i >= hidden_size) break;
      const In x{ops.load(as<Bits>, weak, Site::kSentinelCombineReadRow, row.at(i * sizeof(In)))};
      const E4m3 y = ops.narrow_e4m3(InF32<false>::from(ops, x));
      vector.word[e / 4] |= std::uint32_t{y.bits} << (8 * (e % 4));
    }
    return vector;
  }
};

// Every row that dispatch received goes back to its token's home, into the cell of the pick that it
// was sent for. Rows of a slot are one group's.
template <Ops O>
ASSAY_HD void push_rows(O& ops, const SentinelCombineParams& p, std::uint32_t phase, BadKeys& bad) {
  const GroupParams& group = p.combine.group;
  const Address own = group.window.of(ops.rank());
  const std::uint64_t element_bytes = ExpertRow::element_bytes(p.rows);
  const std::uint64_t row_bytes = p.combine.hidden_size * element_bytes;
  const std::uint64_t pairs = std::uint64_t{group.ep_size} * group.max_tokens_per_rank;
  for (std::uint64_t pair = ops.cta(); pair < pairs; pair += ops.num_ctas()) {
    const auto source = static_cast<std::int32_t>(pair % group.ep_size);
    const std::uint64_t slot = pair / group.ep_size;
    const std::uint64_t row = static_cast<std::uint64_t>(source) * group.max_tokens_per_rank + slot;
    const std::uint32_t contents = ops.load(as<std::uint32_t>, weak, Site::kSentinelCombineReadPick,
                                            own.at(group.at.sentinel.picks + row * 4));
    if (contents == HeaderWord::kAbsent) continue;
    const ExpertRow expert{own.at(p.combine.rows_offset + row * row_bytes), p.rows, p.as_e4m3,
                           p.combine.hidden_size, p.pull_bytes};
    Outgoing<ExpertRow> outgoing{expert};
    outgoing.choose_key(ops, bad,
                        {Site::kSentinelCombineShare, Site::kSentinelCombineRowScanned,
                         Site::kSentinelCombineKeysTried});
    const Address cell[1] = {
        group.window.of(RankId(source)).at(cell_offset(p, phase, slot, contents - 1, p.top_k))};
    if (ops.thread() == 0)
      ops.store(
          relaxed_sys, Site::kSentinelCombineStoreHeader, cell[0],
          Vec16{{HeaderWord::make(group.layout_digest, phase, contents), outgoing.key, 0, 0}});
    outgoing.send(ops, Site::kSentinelCombineStoreRow, 1u, cell);
  }
}

// The cells of a token: leaf i is that of pick i, or of the i-th pick that has one. Indexed by
// constants only, so that it stays in registers.
template <int kLeaves>
struct Cells {
  std::uint32_t present = 0;
  std::uint32_t count = 0;
  Address cell[kLeaves] = {};
  std::uint32_t key[kLeaves] = {};
};

template <Ops O>
ASSAY_HD std::uint32_t target_rank(O& ops, const SentinelCombineParams& p, std::uint64_t token,
                                   std::uint64_t k) {
  const GroupParams& group = p.combine.group;
  return ops.load(as<std::uint32_t>, weak, Site::kSentinelCombineReadTarget,
                  group.window.of(ops.rank())
                      .at(group.at.target_rank + (token * p.top_k + k) * sizeof(std::int32_t)));
}

template <Holes kHoles, int kLeaves, int kTopK, Ops O>
ASSAY_HD void find_cells(O& ops, const SentinelCombineParams& p, std::uint32_t phase,
                         std::uint32_t token, Cells<kLeaves>& cells) {
  const Address own = p.combine.group.window.of(ops.rank());
  ASSAY_UNROLL
  for (int k = 0; k < kTopK; ++k) {
    const auto pick = static_cast<std::uint64_t>(k);
    if (target_rank(ops, p, token, pick) == kNoTarget) continue;
    const Address cell = own.at(cell_offset(p, phase, token, pick, kTopK));
    if constexpr (kHoles == Holes::kAddZero) {
      cells.cell[k] = cell;
      cells.present |= 1u << k;
    } else {
      ASSAY_UNROLL
      for (int i = 0; i < kTopK; ++i)  // cell[count] = cell, by constant indices
        if (static_cast<std::uint32_t>(i) == cells.count) cells.cell[i] = cell;
      cells.present |= 1u << cells.count;
    }
    ++cells.count;
  }
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

// A leaf with a word that has not arrived.
template <int kLeaves>
ASSAY_HD std::uint32_t missing_leaf(std::uint32_t present, const Vec16 (&vector)[kLeaves]) {
  std::uint32_t leaf = 0;
  ASSAY_UNROLL
  for (int i = 0; i < kLeaves; ++i)
    for (const std::uint32_t word : vector[i].word)
      if (((present >> i) & 1) != 0 && word == kSentinel) leaf = static_cast<std::uint32_t>(i);
  return leaf;
}

// Waits for the headers of a token's cells and learns their keys. False after a failure.
template <Holes kHoles, int kLeaves, Ops O>
ASSAY_HD bool wait_for_cells(O& ops, const SentinelCombineParams& p, std::uint32_t phase,
                             std::uint32_t token, Cells<kLeaves>& cells) {
  const GroupParams& group = p.combine.group;
  const std::uint32_t expected = HeaderWord::make(group.layout_digest, phase, 0);
  Vec16 header[kLeaves] = {};
  const Awaited got = ops.wait_for_words(relaxed_sys, Site::kSentinelCombineWaitHeader, cells.cell,
                                         cells.present, until_written(phase, RankId(-1)), header);
  std::uint32_t other = 0;  // 1 + a leaf whose header is of another round
  ASSAY_UNROLL
  for (int i = 0; i < kLeaves; ++i) {
    if (((cells.present >> i) & 1) == 0) continue;
    cells.key[i] = header[i].word[1];
    if (!HeaderWord::same_round(header[i].word[0], expected))
      other = 1 + static_cast<std::uint32_t>(i);
  }
  if (!got.timed_out && other == 0) return true;
  const std::uint32_t leaf = got.timed_out ? missing_leaf(cells.present, header) : other - 1;
  std::uint32_t seen = 0;
  ASSAY_UNROLL
  for (int i = 0; i < kLeaves; ++i)
    if (static_cast<std::uint32_t>(i) == leaf) seen = header[i].word[0];
  report_failure(ops, group, got.timed_out ? Failure::kTimeOut : Failure::kOtherLayout, phase + 1,
                 rank_of_leaf<kHoles>(ops, p, token, leaf), seen, expected);
  return false;
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

// One token: its rows are added as they arrive, vector by vector, and their words armed again,
// which nobody else reads. False after a failure.
template <class Arithmetic, BitFormat In, BitFormat Out, int kTopK, Ops O>
ASSAY_HD bool sum_cells(O& ops, const SentinelCombineParams& p, std::uint32_t phase,
                        std::uint32_t token) {
  constexpr int kLeaves = leaves_of<Arithmetic>(kTopK);
  constexpr int kPerWord = static_cast<int>(sizeof(Vec16) / sizeof(In));
  Cells<kLeaves> cells;
  find_cells<Arithmetic::kHoles, kLeaves, kTopK>(ops, p, phase, token, cells);
  if (!wait_for_cells<Arithmetic::kHoles>(ops, p, phase, token, cells)) return false;
  const std::uint64_t vectors = landing_vectors(p.combine.hidden_size * sizeof(In));
  for (std::uint64_t v = ops.thread(); v < vectors; v += ops.group_size()) {
    Address from[kLeaves];
    Vec16 vector[kLeaves] = {};  // zero bytes are +0: what a hole or an unused leaf adds
    ASSAY_UNROLL
    for (int i = 0; i < kLeaves; ++i) from[i] = cells.cell[i].at(kHeaderBytes + v * sizeof(Vec16));
    const Awaited got = ops.wait_for_words(relaxed_sys, Site::kSentinelCombineWaitRow, from,
                                           cells.present, until_written(phase, RankId(-1)), vector);
    if (got.timed_out) {
      const GroupParams& group = p.combine.group;
      report_failure(
          ops, group, Failure::kTimeOut, phase + 1,
          rank_of_leaf<Arithmetic::kHoles>(ops, p, token, missing_leaf(cells.present, vector)),
          got.seen, HeaderWord::make(group.layout_digest, phase, 0));
      return false;
    }
    ASSAY_UNROLL
    for (int i = 0; i < kLeaves; ++i) {
      if (((cells.present >> i) & 1) == 0) continue;
      ops.store(relaxed_sys, Site::kSentinelCombineRearmRow, from[i], kArmed);
      vector[i] = with_key(vector[i], cells.key[i]);
    }
    Out sums[kPerWord];
    sum_words<Arithmetic, In>(ops, vector, cells.count, sums);
    store_sums(ops, p.combine, token, v, sums);
  }
  return true;
}

// Every `waiters`-th token of this rank. Headers are read by all threads of the group, so they are
// armed again after a barrier.
template <class Arithmetic, BitFormat In, BitFormat Out, int kTopK, Ops O>
ASSAY_HD void sum_tokens(O& ops, const SentinelCombineParams& p, std::uint32_t phase,
                         std::uint32_t waiter) {
  const GroupParams& group = p.combine.group;
  const Address own = group.window.of(ops.rank());
  const std::uint32_t num_tokens = p.combine.num_tokens;
  bool summed = true;
  for (std::uint32_t token = waiter; token < num_tokens && summed; token += p.sentinel.waiters)
    summed = sum_cells<Arithmetic, In, Out, kTopK>(ops, p, phase, token);
  ops.barrier(Site::kSentinelCombineTokensDone);
  if (!summed) return;
  const std::uint64_t summed_tokens =
      waiter < num_tokens ? (num_tokens - waiter - 1) / p.sentinel.waiters + 1 : 0;
  for (std::uint64_t i = ops.thread(); i < summed_tokens * kTopK; i += ops.group_size()) {
    const std::uint64_t token = waiter + i / kTopK * p.sentinel.waiters;
    const std::uint64_t k = i % kTopK;
    if (target_rank(ops, p, token, k) != kNoTarget)
      ops.store(relaxed_sys, Site::kSentinelCombineRearmHeader,
                own.at(cell_offset(p, phase, token, k, kTopK)), kArmed);
  }
}

}  // namespace bodies
}  // namespace assay::one_sided
