// On which rank a token of a trace lives. A trace was captured on other machines than those that
// are asked about, so this is a choice, not a fact of the trace (SPEC TRC-3.1).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "model/core/expected.hpp"

namespace assay::traces {

enum class TokenPlacement : std::uint8_t {
  kContiguous,  // the tokens of a step in file order, split evenly, earlier ranks one more
  kRoundRobin,  // token i of a step on rank i mod ep_size
  kRequest,     // the i-th request of the trace, in ascending order of its number, on i mod ep_size
};
std::span<const std::string_view> token_placement_names();  // "contiguous", "round_robin", ...
std::string_view token_placement_name(TokenPlacement placement);
Expected<TokenPlacement> parse_token_placement(std::string_view name);

// The rank of each token of one step: request [t] -> [t], values 0..ep_size-1. `requests` is every
// request number of the whole trace, ascending and once each, so that a request stays on its rank
// from step to step. CONTRACT: ep_size >= 1, each of `request` occurs in `requests`.
std::vector<std::int32_t> place_tokens(TokenPlacement placement, std::int32_t ep_size,
                                       std::span<const std::int32_t> request,
                                       std::span<const std::int32_t> requests);

}  // namespace assay::traces
