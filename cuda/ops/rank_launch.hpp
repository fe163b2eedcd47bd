// What a launch copies to the device: whose blocks it holds and each rank's parameters. Plain data
// for both sides; launched_rank.hpp is what a block makes of it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/core/id.hpp"

namespace assay::cuda {

// Rank i of the launch has the blocks first_block[i] to first_block[i + 1] - 1.
template <int kRanksMax>
struct RanksOfLaunch {
  std::uint64_t timeout_ns;  // budget of one wait (SPEC KER-3.1)
  std::uint32_t num_ranks;
  std::uint32_t first_block[kRanksMax + 1];
  std::uint64_t delay_ns[kRanksMax];  // before the body begins
  RankId rank[kRanksMax];
};

template <class Params, int kRanksMax>
struct LaunchParams {
  RanksOfLaunch<kRanksMax> ranks;
  Params params[kRanksMax];
};
// What a kernel may be given as parameters from CUDA 12.1 on.
inline constexpr std::size_t kLaunchBytesMax = 32764;

}  // namespace assay::cuda
