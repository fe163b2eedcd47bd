// Who a CUDA thread is, what its warp and its block do together, and how it ends when it must. One
// instruction per function. Decides nothing. The one-sided kernels do not use it: their bodies see
// threads through Ops.
#pragma once

#include <cstdint>

#include "cuda/ops/wait_record.hpp"

namespace assay::cuda {

__device__ inline int thread_index() { return static_cast<int>(threadIdx.x); }
__device__ inline int block_index() { return static_cast<int>(blockIdx.x); }
__device__ inline int num_blocks() { return static_cast<int>(gridDim.x); }
// A block among those of its cluster.
__device__ inline int cluster_rank() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// Equal in all lanes as far as the compiler can see, so that branches on it are uniform.
__device__ inline int warp_index() {
  return __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0);
}

__device__ inline void block_barrier() { __syncthreads(); }
// All threads of all blocks of the cluster: none has ended, and what they stored can be seen.
__device__ inline void cluster_barrier() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}
// What the thread did before, in any block of the cluster, comes before what it does after.
__device__ inline void cluster_fence() { asm volatile("fence.acq_rel.cluster;" ::: "memory"); }
__device__ inline void warp_barrier() { __syncwarp(); }
__device__ inline float shuffle_xor(float value, int lanes) {
  return __shfl_xor_sync(0xFFFFFFFFu, value, lanes);
}
__device__ inline std::uint32_t shuffle_xor(std::uint32_t value, int lanes) {
  return __shfl_xor_sync(0xFFFFFFFFu, value, lanes);
}
__device__ inline int broadcast(int value, int lane) {
  return __shfl_sync(0xFFFFFFFFu, value, lane);
}
__device__ inline float broadcast(float value, int lane) {
  return __shfl_sync(0xFFFFFFFFu, value, lane);
}
// Lane i gets the value of lane i - distance, or keeps its own where there is none.
__device__ inline int shuffle_up(int value, int distance) {
  return __shfl_up_sync(0xFFFFFFFFu, value, static_cast<unsigned>(distance));
}
__device__ inline float shuffle_up(float value, int distance) {
  return __shfl_up_sync(0xFFFFFFFFu, value, static_cast<unsigned>(distance));
}
// A bit per lane.
__device__ inline std::uint32_t ballot(bool value) { return __ballot_sync(0xFFFFFFFFu, value); }

// Relaxed, at gpu scope: what it counts orders nothing else.
__device__ inline std::uint32_t count_up(std::uint32_t* counter, std::uint32_t by) {
  std::uint32_t before;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(counter), "r"(by)
               : "memory");
  return before;
}
__device__ inline void add_to(std::uint64_t* counter, std::uint64_t by) {
  asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(counter), "l"(by) : "memory");
}

// Registers per thread of the calling warpgroup, all of whose warps must call it.
template <int kRegisters>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

__device__ inline std::uint64_t time_ns() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// Ends the kernel and the context, by a store to address 0, whose fault comes soon after: a trap
// instruction would keep ptxas from giving warpgroups unequal numbers of registers. The record is
// whoever's stores come last; any one is true.
__device__ inline void give_up(WaitRecord* record, std::uint32_t site, std::uint32_t stage,
                               std::uint32_t parity) {
  if (record != nullptr) {
    asm volatile(
        "st.relaxed.sys.global.u32 [%0 + 4], %1;\n"
        "st.relaxed.sys.global.u32 [%0 + 8], %2;\n"
        "st.relaxed.sys.global.u32 [%0 + 12], %3;\n"
        "st.relaxed.sys.global.u32 [%0 + 16], %4;\n"
        "st.relaxed.sys.global.u32 [%0 + 20], %5;\n"
        "st.release.sys.global.u32 [%0], 1;\n"
        "fence.sc.sys;" ::"l"(record),
        "r"(site), "r"(stage), "r"(parity), "r"(blockIdx.x), "r"(threadIdx.x)
        : "memory");
  }
  asm volatile("st.global.u32 [%0], 0;" ::"l"(std::uint64_t{0}) : "memory");
}

}  // namespace assay::cuda
