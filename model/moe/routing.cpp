// Well-formed rounds and the perfect router (SPEC MOE-1.4, MOE-1.5).
#include "model/moe/routing.hpp"

#include <fmt/format.h>

namespace assay::moe {

namespace {

Status check_shape(std::size_t ep_size, std::int32_t top_k, std::int32_t max_tokens_per_rank) {
  if (ep_size < 1 || ep_size > static_cast<std::size_t>(kMaxRanks))
    return bad_input(fmt::format("ep is {}; allowed are 1 to {}", ep_size, kMaxRanks));
  if (top_k < 1 || top_k > kMaxTopK)
    return bad_input(fmt::format("top_k is {}; allowed are 1 to {}", top_k, kMaxTopK));
  if (max_tokens_per_rank < 1)
    return bad_input(
        fmt::format("max_tokens_per_rank is {}; it must be at least 1", max_tokens_per_rank));
  return Done{};
}

}  // namespace

Expected<Routing> Routing::make(std::int32_t top_k, std::int32_t max_tokens_per_rank,
                                const std::vector<std::vector<std::int32_t>>& topk_ids) {
  ASSAY_CHECK(check_shape(topk_ids.size(), top_k, max_tokens_per_rank));
  Routing routing;
  routing.top_k_ = top_k;
  routing.max_tokens_per_rank_ = max_tokens_per_rank;
  routing.first_token_.push_back(0);
  const auto k = static_cast<std::size_t>(top_k);
  for (std::size_t rank = 0; rank < topk_ids.size(); ++rank) {
    const auto& ids = topk_ids[rank];
    if (ids.size() % k != 0)
      return bad_input(fmt::format("rank {} has {} expert ids, which is no multiple of top_k {}",
                                   rank, ids.size(), top_k));
    const std::size_t tokens = ids.size() / k;
    if (tokens > static_cast<std::size_t>(max_tokens_per_rank))
      return bad_input(
          fmt::format("rank {} has {} tokens; allowed are 0 to {} "
                      "(max_tokens_per_rank)",
                      rank, tokens, max_tokens_per_rank));
    routing.first_token_.push_back(routing.first_token_.back() + static_cast<std::int64_t>(tokens));
    routing.topk_ids_.insert(routing.topk_ids_.end(), ids.begin(), ids.end());
  }
  return routing;
}

std::int32_t Routing::num_tokens(RankId rank) const {
  CONTRACT(rank.value() >= 0 && rank.value() < ep_size(), rank, ep_size());
  const auto index = static_cast<std::size_t>(rank.value());
  return static_cast<std::int32_t>(first_token_[index + 1] - first_token_[index]);
}

std::span<const std::int32_t> Routing::topk_ids(RankId rank) const {
  const auto tokens = static_cast<std::size_t>(num_tokens(rank));
  const auto k = static_cast<std::size_t>(top_k_);
  const auto first = static_cast<std::size_t>(first_token_[static_cast<std::size_t>(rank.value())]);
  return std::span(topk_ids_).subspan(first * k, tokens * k);
}

std::span<const std::int32_t> Routing::topk_ids(RankId rank, TokenId token) const {
  CONTRACT(token.value() >= 0 && token.value() < num_tokens(rank), rank, token, num_tokens(rank));
  const auto k = static_cast<std::size_t>(top_k_);
  return topk_ids(rank).subspan(static_cast<std::size_t>(token.value()) * k, k);
}

// Pick s = token * top_k + k of a rank goes to rank s mod ep, and there to its local expert
// (s div ep) mod (the number of experts of that rank) (SPEC MOE-1.5).
Expected<Routing> perfect_router(const Placement& placement, std::int32_t top_k,
                                 std::int32_t max_tokens_per_rank,
                                 std::span<const std::int32_t> num_tokens) {
  const auto ep = static_cast<std::size_t>(placement.ep_size());
  if (num_tokens.size() != ep)
    return bad_input(
        fmt::format("{} token counts for {} ranks; one per rank is needed", num_tokens.size(), ep));
  ASSAY_CHECK(check_shape(ep, top_k, max_tokens_per_rank));
  std::vector<std::vector<std::int32_t>> ids(ep);
  for (std::size_t src = 0; src < ep; ++src) {
    if (num_tokens[src] < 0 || num_tokens[src] > max_tokens_per_rank)
      return bad_input(
          fmt::format("rank {} has {} tokens; allowed are 0 to {} "
                      "(max_tokens_per_rank)",
                      src, num_tokens[src], max_tokens_per_rank));
    const std::int64_t picks = std::int64_t{num_tokens[src]} * top_k;
    ids[src].reserve(static_cast<std::size_t>(picks));
    for (std::int64_t s = 0; s < picks; ++s) {
      const auto there =
          placement.experts_of(RankId{static_cast<std::int32_t>(s % placement.ep_size())});
      const auto local = static_cast<std::int32_t>(s / placement.ep_size() % there.count);
      ids[src].push_back(there.first.value() + local);
    }
  }
  return Routing::make(top_k, max_tokens_per_rank, ids);
}

}  // namespace assay::moe
