// One round as the routers left it: how many tokens each rank has and which experts they picked, in
// wire form. It decides what a well-formed round is and what the perfect router picks; targets and
// slots are decided in dispatch.hpp.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/core/expected.hpp"
#include "model/core/id.hpp"
#include "model/moe/placement.hpp"

namespace assay::moe {

// Dispatch takes any top_k up to this. Combine takes those that a kernel is known for
// (reduction_tree.hpp); 22 is the largest of them (SPEC MOE-1.1).
inline constexpr std::int32_t kMaxTopK = 22;

class Routing {
 public:
  // topk_ids [ep] -> [t, k], row-major: the picks of each rank's tokens, physical ids; any id
  // outside [0, num_experts) is a pick without a target. The number of tokens of a rank is ids /
  // top_k. max_tokens_per_rank is the round's, equal on all ranks: the row stride of receive
  // buffers. Errors: ep outside 1..256, top_k outside 1..22, max_tokens_per_rank < 1, a rank's ids
  // not a multiple of top_k, a rank with more tokens than max_tokens_per_rank.
  static Expected<Routing> make(std::int32_t top_k, std::int32_t max_tokens_per_rank,
                                const std::vector<std::vector<std::int32_t>>& topk_ids);

  std::int32_t ep_size() const { return static_cast<std::int32_t>(first_token_.size()) - 1; }
  std::int32_t top_k() const { return top_k_; }
  std::int32_t max_tokens_per_rank() const { return max_tokens_per_rank_; }

  std::int32_t num_tokens(RankId rank) const;
  std::int64_t total_tokens() const { return first_token_.back(); }
  // [t, k]
  std::span<const std::int32_t> topk_ids(RankId rank) const;
  // [k]
  std::span<const std::int32_t> topk_ids(RankId rank, TokenId token) const;

 private:
  Routing() = default;
  std::int32_t top_k_ = 1;
  std::int32_t max_tokens_per_rank_ = 1;
  std::vector<std::int64_t> first_token_;  // [ep + 1], tokens of all ranks counted through
  std::vector<std::int32_t> topk_ids_;     // [all tokens, k]
};

// Spreads picks evenly over ranks and over each rank's experts (SPEC MOE-1.5). num_tokens [ep].
Expected<Routing> perfect_router(const Placement& placement, std::int32_t top_k,
                                 std::int32_t max_tokens_per_rank,
                                 std::span<const std::int32_t> num_tokens);

}  // namespace assay::moe
