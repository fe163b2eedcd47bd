// Copies of what will not be read again, which leave L2 first. One instruction per function, but
// for the policy. Decides nothing.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/ops/mbarrier.hpp"

namespace assay::cuda {

// How the cache treats what a copy brings.
__device__ inline std::uint64_t leaves_first() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// tensor_load() with a policy.
__device__ inline void tensor_load_with(SharedAddress to, const CUtensorMap& map, int c0, int c1,
                                        int c2, int c3, SharedAddress barrier,
                                        std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
      "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(barrier), "l"(policy)
      : "memory");
}

}  // namespace assay::cuda
