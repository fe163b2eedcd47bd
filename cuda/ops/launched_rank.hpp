// Which rank a block works for. A launch holds the blocks of one rank, or the blocks of several
// ranks of one device side by side (SPEC CUD-1.3). Decides how a block finds its place and how long
// it waits before it begins (SPEC CUD-4.2); what it does there is the body's text.
#pragma once

#include "cuda/ops/dependent_launch.hpp"
#include "cuda/ops/ptx_ops.hpp"
#include "cuda/ops/rank_launch.hpp"

namespace assay::cuda {

// Which of the launch's ranks this block belongs to.
template <int kRanksMax>
__device__ std::uint32_t index_of_rank(const RanksOfLaunch<kRanksMax>& ranks) {
  std::uint32_t index = 0;
  if constexpr (kRanksMax > 1)
    while (index + 1 < ranks.num_ranks && blockIdx.x >= ranks.first_block[index + 1]) ++index;
  return index;
}

// `shared`: the block's words, as many as the body declares. Returns after the rank's delay.
template <int kRanksMax>
__device__ PtxOps ops_of_rank(const RanksOfLaunch<kRanksMax>& ranks, std::uint32_t index,
                              std::uint32_t* shared) {
  if (ranks.delay_ns[index] != 0) {
    wait_for_kernel_before();  // a delay that ran while that kernel does would be none
    std::uint64_t start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - start < ranks.delay_ns[index]);
  }
  if constexpr (kRanksMax == 1) {
    return PtxOps{ranks.rank[0], blockIdx.x, gridDim.x, shared, ranks.timeout_ns};
  } else {
    const std::uint32_t first = ranks.first_block[index];
    return PtxOps{ranks.rank[index], blockIdx.x - first, ranks.first_block[index + 1] - first,
                  shared, ranks.timeout_ns};
  }
}

}  // namespace assay::cuda
