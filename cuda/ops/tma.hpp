// The copy engine: boxes of a tensor of four axes from device memory into shared memory, through a
// map that the host encoded; and the fence between ordinary stores to shared memory and what reads
// it next. One instruction per function. Decides nothing.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/ops/mbarrier.hpp"

namespace assay::cuda {

__device__ inline void tensor_map_prefetch(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Coordinates are of the box's first element, innermost axis first; elements outside the tensor
// arrive as zeros and count as bytes. The barrier's phase completes no sooner than the copy.
__device__ inline void tensor_load(SharedAddress to, const CUtensorMap& map, int c0, int c1, int c2,
                                   int c3, SharedAddress barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
      "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(barrier)
      : "memory");
}

// Likewise into the same place of every block of the cluster whose bit is set, each block's barrier
// at that address counting its own bytes.
__device__ inline void tensor_load_to(std::uint16_t blocks, SharedAddress to,
                                      const CUtensorMap& map, int c0, int c1, int c2, int c3,
                                      SharedAddress barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
      "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(barrier), "h"(blocks)
      : "memory");
}

// Ordinary accesses to shared memory before this come before those of the copy engine and the
// tensor cores after it.
__device__ inline void async_proxy_fence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ inline void shared_store_zero16(SharedAddress to) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
}

__device__ inline std::uint32_t shared_load4(SharedAddress from) {
  std::uint32_t value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(from) : "memory");
  return value;
}
__device__ inline void shared_store4(SharedAddress to, std::uint32_t value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
}

// Four matrices of 8 rows of 16 bytes: lanes 8 i to 8 i + 7 give the rows of the i-th, whose bytes
// 4 q to 4 q + 3 of row g lane 4 g + q gets.
__device__ inline void load_matrix(std::uint32_t (&to)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

}  // namespace assay::cuda
