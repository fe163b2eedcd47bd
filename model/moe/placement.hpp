// Which rank owns which expert, and which of several replicas of an expert a token uses. It decides
// the split of experts over ranks and the replica rule; it does not decide what is sent (dispatch).
//
// Routers speak of logical experts (ExpertId). The wire speaks of physical places
// (PhysicalExpertId): without replicas they are the same number; with replicas (EPLB) several
// places hold one expert.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "model/core/expected.hpp"
#include "model/core/id.hpp"
#include "model/moe/rank_mask.hpp"

namespace assay::moe {

// The places of one rank: `first`, first + 1, ... `count` of them.
struct ExpertRange {
  PhysicalExpertId first;
  std::int32_t count = 0;
};

class Placement {
 public:
  // `num_experts` experts, one place each. Errors: ep_size outside 1..256, num_experts below
  // ep_size (a rank without experts) or above kMaxExperts.
  static Expected<Placement> contiguous(std::int32_t ep_size, std::int32_t num_experts);
  // physical_to_logical [places]: the logical expert at each place. Errors: as above with places
  // for num_experts, an entry outside [0, num_logical), a logical expert without a place.
  static Expected<Placement> replicated(std::int32_t ep_size, std::int32_t num_logical,
                                        std::span<const std::int32_t> physical_to_logical);

  std::int32_t ep_size() const { return ep_size_; }
  // Places: the wire ids that mean something are [0, num_experts).
  std::int32_t num_experts() const { return num_experts_; }
  std::int32_t num_logical_experts() const { return num_logical_; }

  // The place that a wire id names; nothing for every id outside [0, num_experts) (SPEC MOE-1.4).
  std::optional<PhysicalExpertId> place_of_wire(std::int32_t wire_id) const {
    if (wire_id < 0 || wire_id >= num_experts_) return std::nullopt;
    return PhysicalExpertId{wire_id};
  }
  // The owner of a place; nothing for a place that does not exist.
  std::optional<RankId> rank_of(PhysicalExpertId place) const;
  // The places of a rank, and a place's number among them. `place` must exist.
  ExpertRange experts_of(RankId rank) const;
  LocalExpertId local_of(PhysicalExpertId place) const;

  ExpertId logical_of(PhysicalExpertId place) const;
  // Ascending. `expert` must exist.
  std::span<const PhysicalExpertId> replicas_of(ExpertId expert) const;
  // The place that token `token` of rank `source` uses for `expert` (SPEC MOE-1.3).
  PhysicalExpertId replica_for(ExpertId expert, RankId source, TokenId token) const;

 private:
  Placement() = default;
  std::int32_t ep_size_ = 1;
  std::int32_t num_experts_ = 1;
  std::int32_t num_logical_ = 1;
  std::vector<ExpertId> logical_of_;          // [places]
  std::vector<PhysicalExpertId> replicas_;    // grouped by logical expert
  std::vector<std::int32_t> replicas_begin_;  // [num_logical + 1] into replicas_
};

// Ids are int16 in traces: 0 to 32,767 (SPEC MOE-1.1).
inline constexpr std::int32_t kMaxExperts = 32768;

}  // namespace assay::moe
