// See token_placement.hpp.
#include "traces/replay/token_placement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "model/core/text.hpp"

namespace assay::traces {
namespace {

constexpr std::array<std::string_view, 3> kNames = {"contiguous", "round_robin", "request"};

// Token i of t on one of ep_size ranks: the first t mod ep_size ranks hold one token more.
std::int32_t contiguous_rank(std::int64_t i, std::int64_t t, std::int32_t ep_size) {
  const std::int64_t base = t / ep_size;
  const std::int64_t larger = t % ep_size;
  if (i < larger * (base + 1)) return static_cast<std::int32_t>(i / (base + 1));
  return static_cast<std::int32_t>(larger + (i - larger * (base + 1)) / base);
}

}  // namespace

std::vector<std::int32_t> place_tokens(TokenPlacement placement, std::int32_t ep_size,
                                       std::span<const std::int32_t> request,
                                       std::span<const std::int32_t> requests) {
  CONTRACT(ep_size >= 1, ep_size);
  const std::int64_t t = static_cast<std::int64_t>(request.size());
  std::vector<std::int32_t> rank(request.size());
  for (std::int64_t i = 0; i < t; ++i) {
    const std::size_t at = static_cast<std::size_t>(i);
    switch (placement) {  // (SPEC TRC-3.1)
      case TokenPlacement::kContiguous:
        rank[at] = contiguous_rank(i, t, ep_size);
        break;
      case TokenPlacement::kRoundRobin:
        rank[at] = static_cast<std::int32_t>(i % ep_size);
        break;
      case TokenPlacement::kRequest: {
        const auto found = std::lower_bound(requests.begin(), requests.end(), request[at]);
        CONTRACT(found != requests.end() && *found == request[at], request[at]);
        rank[at] = static_cast<std::int32_t>((found - requests.begin()) % ep_size);
        break;
      }
    }
  }
  return rank;
}

std::span<const std::string_view> token_placement_names() { return kNames; }

std::string_view token_placement_name(TokenPlacement placement) {
  return kNames[static_cast<std::size_t>(placement)];
}

Expected<TokenPlacement> parse_token_placement(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<TokenPlacement>(i);
  }
  return bad_input(fmt::format("placement is {}; allowed are contiguous, round_robin, request",
                               in_quotes(name)));
}

}  // namespace assay::traces
