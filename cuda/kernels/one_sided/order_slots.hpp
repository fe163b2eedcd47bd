// Ordered slots: before a dispatch by Fence, gives each token that goes to a rank the number of
// earlier tokens of this rank that go there. Dispatch then reads its slots instead of taking them
// from a counter, so that the same routing fills the same slots in every run. Decides SPEC KER-1.7;
// which rank a pick aims at is dispatch.hpp's.
//
// Grid: any; a group walks all tokens once for each of its target ranks, one group per rank is
// best. It ends before dispatch starts on the same stream.
#pragma once

#include "cuda/kernels/one_sided/dispatch.hpp"
#include "cuda/kernels/one_sided/group_prefix.hpp"

namespace assay::one_sided {
inline namespace bodies {  // a mutant's copy has a name of its own here

// The lowest pick of a token that aims at `target`: the one that sends (SPEC KER-1.3). top_k if
// none does.
template <Ops O>
ASSAY_HD std::uint32_t pick_for(O& ops, const OrderSlotsParams& p, std::uint32_t token,
                                std::uint32_t target) {
  std::uint32_t k = 0;
  for (; k < p.top_k; ++k) {
    const std::uint64_t pick = std::uint64_t{token} * p.top_k + k;
    const std::uint32_t id = ops.load(as<std::uint32_t>, weak, Site::kOrderSlotsReadIds,
                                      p.dispatch.topk_ids.at(pick * sizeof(std::int32_t)));
    if (target_of(p.dispatch, id) == target) break;
  }
  return k;
}

// Each thread has a run of neighbouring tokens: it counts those with the target, learns how many
// the threads before it have, and numbers its own.
template <Ops O>
ASSAY_HD void order_slots_at(O& ops, const OrderSlotsParams& p, std::uint32_t target) {
  const GroupParams& group = p.dispatch.group;
  const Address own = group.window.of(ops.rank());
  const std::uint32_t tokens = p.dispatch.num_tokens;
  const std::uint32_t run = (tokens + ops.group_size() - 1) / ops.group_size();
  const std::uint32_t first = ops.thread() * run;
  std::uint32_t count = 0;
  for (std::uint32_t token = first; token < tokens && token < first + run; ++token)
    count += pick_for(ops, p, token, target) < p.top_k ? 1 : 0;
  const GroupPrefix prefix =
      prefix_of_group(ops, count, {Site::kOrderSlotsShareCount, Site::kOrderSlotsCounted});
  std::uint32_t slot = prefix.before;
  for (std::uint32_t token = first; token < tokens && token < first + run; ++token) {
    const std::uint32_t k = pick_for(ops, p, token, target);
    if (k == p.top_k) continue;
    ops.store(weak, Site::kOrderSlotsStoreSlot,
              own.at(group.at.target_slot + (std::uint64_t{token} * p.top_k + k) * 4), slot);
    ++slot;
  }
  // What dispatch's groups would have counted; dispatch publishes it and sets it back. A dispatch
  // of one token does not look at these words, and one of none finds zeros.
  if (ops.thread() == 0 && tokens > 1)
    ops.store(weak, Site::kOrderSlotsStoreCount,
              own.at(group.at.send_counters + std::uint64_t{target} * 4), prefix.total);
}

template <Ops O>
ASSAY_HD void order_slots(O& ops, const OrderSlotsParams& p) {
  ops.wait_for_grid(Site::kOrderSlotsWaitForGrid);
  const GroupParams& group = p.dispatch.group;
  const Address status = group.window.of(ops.rank()).at(group.at.status);
  if (ops.load(as<std::uint32_t>, weak, Site::kOrderSlotsReadStatus, status) != 0)
    return;  // SPEC KER-3.3
  for (std::uint32_t target = ops.cta(); target < group.ep_size; target += ops.num_ctas())
    if (group.alive.has(target)) order_slots_at(ops, p, target);
}

}  // namespace bodies
}  // namespace assay::one_sided
