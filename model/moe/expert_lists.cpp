// Slot lists per local expert, by two passes over the rows in canonical order.
#include "model/moe/expert_lists.hpp"

namespace assay::moe {

namespace {

// Calls visit(local expert, entry) for every local pick in canonical order: by (src, slot, k).
template <class Visit>
void for_each_local_pick(const Placement& placement, const Routing& routing,
                         const DispatchPlan& plan, RankId dst, Visit&& visit) {
  for (RankId src{0}; src.value() < plan.ep_size(); src = src.next())
    for (const auto& row : plan.rows(dst, src)) {
      TopKIndex k{0};
      for (const std::int32_t id : routing.topk_ids(src, row.token)) {
        const auto place = placement.place_of_wire(id);
        if (place && placement.rank_of(*place) == dst)
          visit(placement.local_of(*place), ExpertSlot{src, row.slot, k});
        k = k.next();
      }
    }
}

}  // namespace

std::span<const ExpertSlot> ExpertLists::of(LocalExpertId expert) const {
  CONTRACT(expert.value() >= 0 && expert.value() < experts.count, expert, experts.count);
  const auto index = static_cast<std::size_t>(expert.value());
  const auto begin = static_cast<std::size_t>(offsets[index]);
  return std::span(entries).subspan(begin, static_cast<std::size_t>(offsets[index + 1]) - begin);
}

ExpertLists list_expert_slots(const Placement& placement, const Routing& routing,
                              const DispatchPlan& plan, RankId dst) {
  ExpertLists lists;
  lists.experts = placement.experts_of(dst);
  lists.offsets.assign(static_cast<std::size_t>(lists.experts.count) + 1, 0);
  for_each_local_pick(placement, routing, plan, dst, [&](LocalExpertId expert, ExpertSlot) {
    ++lists.offsets[static_cast<std::size_t>(expert.value()) + 1];
  });
  for (std::size_t i = 1; i < lists.offsets.size(); ++i) lists.offsets[i] += lists.offsets[i - 1];
  lists.entries.resize(static_cast<std::size_t>(lists.offsets.back()));
  auto next = lists.offsets;
  for_each_local_pick(placement, routing, plan, dst, [&](LocalExpertId expert, ExpertSlot entry) {
    const auto at = next[static_cast<std::size_t>(expert.value())]++;
    lists.entries[static_cast<std::size_t>(at)] = entry;
  });
  return lists;
}

}  // namespace assay::moe
