// Barriers among some warps of a block, by number (1 to 15; 0 is the whole block's). One
// instruction per function. Decides nothing. They have no end of their own: that every arrival
// comes is what the schedule's tests show.
#pragma once

#include <cstdint>

namespace assay::cuda {

// `threads` counts those that wait and those that only arrive.
__device__ inline void named_wait(int barrier, int threads) {
  asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ inline void named_arrive(int barrier, int threads) {
  asm volatile("barrier.cta.arrive.aligned %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
// Waits for all, and tells whether all said yes.
__device__ inline bool named_all(int barrier, int threads, bool yes) {
  std::uint32_t all;
  asm volatile(
      "{.reg .pred p, q; setp.ne.b32 p, %3, 0; barrier.cta.red.and.pred.aligned q, %1, %2, p; "
      "selp.b32 %0, 1, 0, q;}"
      : "=r"(all)
      : "r"(barrier), "r"(threads), "r"(static_cast<std::uint32_t>(yes))
      : "memory");
  return __all_sync(0xFFFFFFFFu, all != 0);
}

}  // namespace assay::cuda
