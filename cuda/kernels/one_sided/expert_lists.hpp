// Slot lists: after dispatch, for each expert of this rank the received rows whose ids name it, as
// a grouped GEMM that gathers its rows wants them. Decides SPEC KER-1.9: which rows are looked at,
// and that the order is the specification's (SPEC MOE-2.8) and not a schedule's.
//
// Grid: any; a group makes the whole list of an expert, so one group per local expert is best. A
// group reads all ids that arrived twice and shares nothing with others: it counts what belongs to
// experts before its own to know where its list begins. It ends before the experts start on the
// same stream.
#pragma once

#include "cuda/kernels/one_sided/group_prefix.hpp"
#include "cuda/kernels/one_sided/params.hpp"

namespace assay::one_sided {
inline namespace bodies {  // a mutant's copy has a name of its own here

// The rows of a source that may hold a token: as many as it sent, or, where rows lie apart, all
// slots of the round; those without a token have the invalid id in every pick.
template <Ops O>
ASSAY_HD std::uint32_t rows_from(O& ops, const ExpertListParams& p, std::uint32_t source) {
  if (p.rows_lie_apart) return p.group.max_tokens_per_rank;
  return ops.load(
      as<std::uint32_t>, weak, Site::kExpertListsReadCount,
      p.group.window.of(ops.rank()).at(p.group.at.recv_counters + std::uint64_t{source} * 4));
}

// Calls visit(row, k, local expert) for every pick of this rank's experts among `count` rows from
// number `first` on, by (source, slot, k). Local experts beyond the rank's are no experts.
template <Ops O, class Visit>
ASSAY_HD void visit_local_picks(O& ops, const ExpertListParams& p, std::uint64_t first,
                                std::uint64_t count, Visit& visit) {
  const Address ids = p.group.window.of(ops.rank()).at(p.ids_offset);
  for (std::uint32_t source = 0; source < p.group.ep_size && count > 0; ++source) {
    const std::uint64_t rows = rows_from(ops, p, source);
    if (first >= rows) {
      first -= rows;
      continue;
    }
    for (std::uint64_t slot = first; slot < rows && count > 0; ++slot, --count) {
      const std::uint64_t row = std::uint64_t{source} * p.group.max_tokens_per_rank + slot;
      for (std::uint32_t k = 0; k < p.top_k; ++k) {
        const std::uint32_t id = ops.load(as<std::uint32_t>, weak, Site::kExpertListsReadId,
                                          ids.at((row * p.top_k + k) * 4));
        visit(row, k, id - p.first_expert);  // ids below the first become large
      }
    }
    first = 0;
  }
}

// Picks of experts before `expert`, and of it.
struct CountPicks {
  std::uint32_t expert;
  std::uint32_t before = 0, here = 0;
  ASSAY_HD constexpr void operator()(std::uint64_t, std::uint32_t, std::uint32_t local) {
    before += local < expert ? 1 : 0;
    here += local == expert ? 1 : 0;
  }
};

template <Ops O>
struct StorePicks {
  O& ops;
  Address entries;
  std::uint32_t expert;
  std::uint64_t next;  // entry
  ASSAY_HD void operator()(std::uint64_t row, std::uint32_t k, std::uint32_t local) {
    if (local != expert) return;
    ops.store(weak, Site::kExpertListsStoreEntry, entries.at(next * sizeof(std::uint64_t)),
              ListEntry::make(row, k));
    ++next;
  }
};

// Each thread has a run of neighbouring rows.
template <Ops O>
ASSAY_HD void list_expert(O& ops, const ExpertListParams& p, std::uint32_t expert) {
  constexpr GroupPrefixSites kSites{Site::kExpertListsShareCount, Site::kExpertListsCounted};
  std::uint64_t rows = 0;
  for (std::uint32_t source = 0; source < p.group.ep_size; ++source)
    rows += rows_from(ops, p, source);
  const std::uint64_t run = (rows + ops.group_size() - 1) / ops.group_size();
  const std::uint64_t first = ops.thread() * run;
  CountPicks counted{expert};
  visit_local_picks(ops, p, first, run, counted);
  const std::uint32_t begin = prefix_of_group(ops, counted.before, kSites).total;
  const GroupPrefix own = prefix_of_group(ops, counted.here, kSites);
  if (ops.thread() == 0) {
    ops.store(weak, Site::kExpertListsStoreOffset, p.offsets.at(std::uint64_t{expert} * 4), begin);
    if (expert + 1 == p.num_local_experts)
      ops.store(weak, Site::kExpertListsStoreOffset,
                p.offsets.at(std::uint64_t{p.num_local_experts} * 4), begin + own.total);
  }
  StorePicks<O> store{ops, p.entries, expert, std::uint64_t{begin} + own.before};
  visit_local_picks(ops, p, first, run, store);
}

template <Ops O>
ASSAY_HD void list_experts(O& ops, const ExpertListParams& p) {
  ops.wait_for_grid(Site::kExpertListsWaitForGrid);
  const Address status = p.group.window.of(ops.rank()).at(p.group.at.status);
  // After a failed dispatch, counts and rows may still be arriving (SPEC KER-3.3). Whoever follows
  // the lists on the stream finds them empty.
  if (ops.load(as<std::uint32_t>, weak, Site::kExpertListsReadStatus, status) != 0) {
    if (ops.cta() != 0) return;
    for (std::uint32_t i = ops.thread(); i <= p.num_local_experts; i += ops.group_size())
      ops.store(weak, Site::kExpertListsStoreOffset, p.offsets.at(std::uint64_t{i} * 4), 0u);
    return;
  }
  for (std::uint32_t expert = ops.cta(); expert < p.num_local_experts; expert += ops.num_ctas())
    list_expert(ops, p, expert);
}

}  // namespace bodies
}  // namespace assay::one_sided
