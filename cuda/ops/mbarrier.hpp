// Barriers in shared memory that count arrivals and bytes (mbarrier), and waits on them with an
// end. One instruction per function but for the wait, which polls. Decides that no wait is
// unbounded (SPEC CUD-6.4). Phases are counted by the caller: a barrier's n-th completion has
// parity n % 2, n from 0.
#pragma once

#include <cstdint>

#include "cuda/ops/thread.hpp"

namespace assay::cuda {

// An address in the block's shared memory, as instructions take it.
using SharedAddress = std::uint32_t;
__device__ inline SharedAddress shared_address(const void* pointer) {
  return static_cast<SharedAddress>(__cvta_generic_to_shared(pointer));
}

__device__ inline void barrier_init(SharedAddress barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes the initialisation visible to the copy engine; the block's threads need a barrier besides.
__device__ inline void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void barrier_arrive(SharedAddress barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Blocks of a cluster reach into each other's shared memory: where `address` lies in the block of
// that rank, and an arrival there. It publishes nothing (that would be a fence of the whole GPU):
// it tells that what came before has been read.
using ClusterAddress = std::uint32_t;
__device__ inline ClusterAddress cluster_address(SharedAddress address, int rank) {
  ClusterAddress there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
__device__ inline void barrier_arrive_at(ClusterAddress barrier) {
  asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier)
               : "memory");
}
// Stores a word there, which counts as four bytes at a barrier of the same block.
__device__ inline void store_counted(ClusterAddress to, std::uint32_t word,
                                     ClusterAddress barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
      "r"(word), "r"(barrier)
      : "memory");
}

// Arrives, and adds bytes that copies must have written before the phase completes.
__device__ inline void barrier_arrive_expecting(SharedAddress barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Waits a time of the hardware's choosing; acquires what arrivals released.
__device__ inline bool barrier_try_wait(SharedAddress barrier, std::uint32_t parity) {
  std::uint32_t done;
  asm volatile(
      "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p;}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

// How long a wait may take, and where the one that took longer is told.
struct Watch {
  std::uint64_t timeout_ns;
  WaitRecord* record;  // or null
};

// Returns when the phase of that parity has completed, or ends the kernel.
__device__ inline void barrier_wait(SharedAddress barrier, std::uint32_t parity, const Watch& watch,
                                    std::uint32_t site, std::uint32_t stage) {
  if (barrier_try_wait(barrier, parity)) [[likely]]
    return;
  const std::uint64_t start = time_ns();
  while (!barrier_try_wait(barrier, parity))
    if (time_ns() - start > watch.timeout_ns) [[unlikely]]
      give_up(watch.record, site, stage, parity);
}

}  // namespace assay::cuda
