// The split of places over ranks and the map of replicas (SPEC MOE-1).
#include "model/moe/placement.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace assay::moe {

namespace {

Status check_counts(std::int32_t ep_size, std::int32_t places) {
  if (ep_size < 1 || ep_size > kMaxRanks)
    return bad_input(fmt::format("ep is {}; allowed are 1 to {}", ep_size, kMaxRanks));
  if (places < ep_size)
    return bad_input(
        fmt::format("{} experts for {} ranks; every rank needs at least one, so allowed "
                    "are {} to {} experts",
                    places, ep_size, ep_size, kMaxExperts));
  if (places > kMaxExperts)
    return bad_input(
        fmt::format("experts is {}; allowed are {} to {}", places, ep_size, kMaxExperts));
  return Done{};
}

}  // namespace

Expected<Placement> Placement::contiguous(std::int32_t ep_size, std::int32_t num_experts) {
  ASSAY_CHECK(check_counts(ep_size, num_experts));
  std::vector<std::int32_t> identity(static_cast<std::size_t>(num_experts));
  for (std::size_t i = 0; i < identity.size(); ++i) identity[i] = static_cast<std::int32_t>(i);
  return replicated(ep_size, num_experts, identity);
}

Expected<Placement> Placement::replicated(std::int32_t ep_size, std::int32_t num_logical,
                                          std::span<const std::int32_t> physical_to_logical) {
  // Sizes beyond int32 are refused before they are narrowed.
  const auto places = static_cast<std::int32_t>(
      std::min<std::size_t>(physical_to_logical.size(), std::size_t{kMaxExperts} + 1));
  ASSAY_CHECK(check_counts(ep_size, places));
  if (num_logical < 1 || num_logical > places)
    return bad_input(fmt::format("{} logical experts in {} places; allowed are 1 to {}",
                                 num_logical, places, places));
  Placement placement;
  placement.ep_size_ = ep_size;
  placement.num_experts_ = places;
  placement.num_logical_ = num_logical;
  placement.replicas_begin_.assign(static_cast<std::size_t>(num_logical) + 1, 0);
  for (std::int32_t place = 0; place < places; ++place) {
    const std::int32_t expert = physical_to_logical[static_cast<std::size_t>(place)];
    if (expert < 0 || expert >= num_logical)
      return bad_input(fmt::format("physical_to_logical[{}] is {}; allowed are 0 to {}", place,
                                   expert, num_logical - 1));
    placement.logical_of_.push_back(ExpertId{expert});
    ++placement.replicas_begin_[static_cast<std::size_t>(expert) + 1];
  }
  for (std::int32_t expert = 0; expert < num_logical; ++expert) {
    auto& begin = placement.replicas_begin_;
    const auto next = static_cast<std::size_t>(expert) + 1;
    if (begin[next] == 0)
      return bad_input(
          fmt::format("logical expert {} has no place in physical_to_logical", expert));
    begin[next] += begin[next - 1];
  }
  // A stable counting sort: each expert's replicas end up ascending by place.
  placement.replicas_.resize(static_cast<std::size_t>(places));
  auto next = placement.replicas_begin_;
  for (std::int32_t place = 0; place < places; ++place) {
    const auto expert =
        static_cast<std::size_t>(physical_to_logical[static_cast<std::size_t>(place)]);
    placement.replicas_[static_cast<std::size_t>(next[expert]++)] = PhysicalExpertId{place};
  }
  return placement;
}

// Contiguous: the first (experts mod ep) ranks own one more than the others (SPEC MOE-1.2).
ExpertRange Placement::experts_of(RankId rank) const {
  CONTRACT(rank.value() >= 0 && rank.value() < ep_size_, rank, ep_size_);
  const std::int32_t base = num_experts_ / ep_size_;
  const std::int32_t larger = num_experts_ % ep_size_;
  const std::int32_t first = rank.value() * base + std::min(rank.value(), larger);
  return {PhysicalExpertId{first}, base + (rank.value() < larger ? 1 : 0)};
}

std::optional<RankId> Placement::rank_of(PhysicalExpertId place) const {
  if (place.value() < 0 || place.value() >= num_experts_) return std::nullopt;
  const std::int32_t base = num_experts_ / ep_size_;
  const std::int32_t larger = num_experts_ % ep_size_;
  const std::int32_t in_larger = larger * (base + 1);  // places on the ranks that own one more
  if (place.value() < in_larger) return RankId{place.value() / (base + 1)};
  return RankId{larger + (place.value() - in_larger) / base};
}

LocalExpertId Placement::local_of(PhysicalExpertId place) const {
  const auto rank = rank_of(place);
  CONTRACT(rank.has_value(), place, num_experts_);
  return LocalExpertId{place.value() - experts_of(*rank).first.value()};
}

ExpertId Placement::logical_of(PhysicalExpertId place) const {
  CONTRACT(place.value() >= 0 && place.value() < num_experts_, place, num_experts_);
  return logical_of_[static_cast<std::size_t>(place.value())];
}

std::span<const PhysicalExpertId> Placement::replicas_of(ExpertId expert) const {
  CONTRACT(expert.value() >= 0 && expert.value() < num_logical_, expert, num_logical_);
  const auto index = static_cast<std::size_t>(expert.value());
  const auto begin = static_cast<std::size_t>(replicas_begin_[index]);
  const auto end = static_cast<std::size_t>(replicas_begin_[index + 1]);
  return std::span(replicas_).subspan(begin, end - begin);
}

PhysicalExpertId Placement::replica_for(ExpertId expert, RankId source, TokenId token) const {
  const auto replicas = replicas_of(expert);
  const auto turn =
      static_cast<std::uint64_t>(source.value()) + static_cast<std::uint64_t>(token.value());
  return replicas[turn % replicas.size()];  // (SPEC MOE-1.3)
}

}  // namespace assay::moe
