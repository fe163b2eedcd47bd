// The slots of each local expert: what a grouped GEMM that gathers its rows consumes. It decides
// the order of such a list, to which a subject that makes lists is held.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/core/id.hpp"
#include "model/moe/dispatch.hpp"
#include "model/moe/placement.hpp"
#include "model/moe/routing.hpp"

namespace assay::moe {

struct ExpertSlot {
  RankId src;
  SlotId slot;
  TopKIndex k;  // which pick of the token wants this expert; its router weight is at the same k
  friend bool operator==(const ExpertSlot&, const ExpertSlot&) = default;
};

struct ExpertLists {
  ExpertRange experts;                // of this rank
  std::vector<std::int64_t> offsets;  // [experts.count + 1] into entries
  std::vector<ExpertSlot> entries;    // per local expert ascending by (src, slot, k) (SPEC MOE-2.8)

  std::span<const ExpertSlot> of(LocalExpertId expert) const;
};

// A token that picks one expert twice is listed twice, once per k.
ExpertLists list_expert_slots(const Placement& placement, const Routing& routing,
                              const DispatchPlan& plan, RankId dst);

}  // namespace assay::moe
