// Statistics that ride along with dispatch: loads of experts, which a balancer of experts (EPLB)
// wants of every rank at every rank. To dispatch they are opaque words. Decides SPEC MOE-2.10.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "model/core/contract.hpp"
#include "model/moe/rank_mask.hpp"

namespace assay::moe {

// What every living rank must hold: [ep, n] of told [src] -> [n], zeroes for dead ranks.
inline std::vector<std::int32_t> gathered_statistics(
    std::span<const std::vector<std::int32_t>> told, const RankMask& alive) {
  std::vector<std::int32_t> gathered;
  for (std::size_t src = 0; src < told.size(); ++src) {
    CONTRACT(told[src].size() == told[0].size(), src, told[src].size(), told[0].size());
    const auto begin = gathered.insert(gathered.end(), told[src].begin(), told[src].end());
    if (!alive.alive(RankId(static_cast<std::int32_t>(src)))) std::fill(begin, gathered.end(), 0);
  }
  return gathered;
}

}  // namespace assay::moe
