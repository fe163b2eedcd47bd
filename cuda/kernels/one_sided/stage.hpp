// Stage: for a low-precision combine, the rows that hold a token become e4m3 in a region of their
// own before peers may pull them: round to nearest even, saturate, no scale (SPEC KER-4.3). Padding
// rows are not read. Any grid; it ends before combine starts on the same stream.
#pragma once

#include "cuda/kernels/one_sided/params.hpp"
#include "cuda/kernels/one_sided/reduce.hpp"

namespace assay::one_sided {
inline namespace bodies {  // a mutant's copy has a name of its own here

template <BitFormat In, Ops O>
ASSAY_HD void stage(O& ops, const StageParams& p) {
  ops.wait_for_grid(Site::kStageWaitForGrid);
  const GroupParams& group = p.group;
  const Address own = group.window.of(ops.rank());
  // After a failed dispatch, counts and rows may still be arriving (SPEC KER-3.3).
  if (ops.load(as<std::uint32_t>, weak, Site::kStageReadStatus, own.at(group.at.status)) != 0)
    return;
  const std::uint64_t rows = std::uint64_t{group.ep_size} * group.max_tokens_per_rank;
  for (std::uint64_t row = ops.cta(); row < rows; row += ops.num_ctas()) {
    const std::uint64_t source = row / group.max_tokens_per_rank;
    const std::uint32_t count = ops.load(as<std::uint32_t>, weak, Site::kStageReadCount,
                                         own.at(group.at.recv_counters + source * 4));
    if (row % group.max_tokens_per_rank >= count) continue;
    const Address from = own.at(p.rows_offset + row * p.hidden_size * sizeof(In));
    const Address to = own.at(p.staged_offset + row * p.hidden_size);
    for (std::uint32_t e = ops.thread(); e < p.hidden_size; e += ops.group_size()) {
      using Bits = decltype(In::bits);
      const In x{
          ops.load(as<Bits>, weak, Site::kStageReadRow, from.at(std::uint64_t{e} * sizeof(In)))};
      const E4m3 y = ops.narrow_e4m3(InF32<false>::from(ops, x));
      ops.store(weak, Site::kStageStoreRow, to.at(e), y.bits);
    }
  }
}

}  // namespace bodies
}  // namespace assay::one_sided
