// Sanitize: after dispatch, the id rows that no token filled get the invalid id, so that a grouped
// GEMM that walks the whole receive buffer skips them. Touches padding rows only: ids of other
// ranks' experts inside valid rows stay (SPEC KER-1.5). Any grid.
#pragma once

#include "cuda/kernels/one_sided/params.hpp"

namespace assay::one_sided {
inline namespace bodies {  // a mutant's copy has a name of its own here

template <Ops O>
ASSAY_HD void sanitize(O& ops, const SanitizeParams& p) {
  ops.wait_for_grid(Site::kSanitizeWaitForGrid);
  const GroupParams& group = p.group;
  const Address own = group.window.of(ops.rank());
  // After a failed dispatch, counts and rows may still be arriving (SPEC KER-3.3).
  if (ops.load(as<std::uint32_t>, weak, Site::kSanitizeReadStatus, own.at(group.at.status)) != 0)
    return;
  const std::uint64_t rows = std::uint64_t{group.ep_size} * group.max_tokens_per_rank;
  for (std::uint64_t row = ops.cta(); row < rows; row += ops.num_ctas()) {
    const std::uint64_t source = row / group.max_tokens_per_rank;
    const std::uint64_t slot = row % group.max_tokens_per_rank;
    const std::uint32_t count = ops.load(as<std::uint32_t>, weak, Site::kSanitizeReadCount,
                                         own.at(group.at.recv_counters + source * 4));
    if (slot < count) continue;
    for (std::uint32_t k = ops.thread(); k < p.top_k; k += ops.group_size())
      ops.store(weak, Site::kSanitizeStoreId, own.at(p.ids_offset + (row * p.top_k + k) * 4),
                static_cast<std::uint32_t>(p.invalid_expert_id));
  }
}

}  // namespace bodies
}  // namespace assay::one_sided
