// The matrix instruction of a warpgroup (wgmma, sm_90a): m 64, n from the accumulators, k of 32
// bytes; A in shared memory or registers, B in shared memory as matrix_descriptor.hpp has it.
// Decides which spelling belongs to a type, nothing else. Other architectures compile it to
// nothing; launchers refuse them.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/ops/matrix_descriptor.hpp"
#include "cuda/probe/wgmma_macros.inc"
#include "model/core/bits.hpp"

namespace assay::cuda {

// Accumulators and fragments in registers: before the first instruction after anything else wrote
// them; the group that follows; and how many groups may still be running after a wait.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kGroups>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}
#else
__device__ inline void wgmma_fence() {}
__device__ inline void wgmma_commit() {}
template <int>
__device__ inline void wgmma_wait() {}
#endif

// Keeps the compiler from moving accesses of these registers across: an asm statement that might
// change them. No instruction.
template <int kCount>
__device__ inline void pin(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}
// Likewise of kCount of them from kFirst on.
template <int kFirst, int kCount, int kAll>
__device__ inline void pin_part(float (&registers)[kAll]) {
#pragma unroll
  for (int i = kFirst; i < kFirst + kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}
template <int kCount>
__device__ inline void pin(std::uint32_t (&registers)[kCount][4]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) asm volatile("" : "+r"(registers[i][j])::"memory");
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define ASSAY_WGMMA_FOR_N(FORM, TYPES, TAIL)                                        \
  if constexpr (kN == 64) {                                                         \
    ASSAY_WGMMA_F32_32_##FORM("wgmma.mma_async.sync.aligned.m64n64" TYPES, TAIL);   \
  } else if constexpr (kN == 128) {                                                 \
    ASSAY_WGMMA_F32_64_##FORM("wgmma.mma_async.sync.aligned.m64n128" TYPES, TAIL);  \
  } else {                                                                          \
    static_assert(kN == 256, "n is 64, 128 or 256");                                \
    ASSAY_WGMMA_F32_128_##FORM("wgmma.mma_async.sync.aligned.m64n256" TYPES, TAIL); \
  }
#else
#define ASSAY_WGMMA_FOR_N(FORM, TYPES, TAIL) static_cast<void>(scale_d);
#endif

// d = a b^T (+ d if scale_d): A [64, k] and B [kN, k] in shared memory, k contiguous, 32 bytes.
template <class T, int kN>
__device__ inline void wgmma_shared(float (&d)[kN / 2], std::uint64_t desc_a, std::uint64_t desc_b,
                                    int scale_d) {
  if constexpr (std::is_same_v<T, Bf16>) {
    ASSAY_WGMMA_FOR_N(SS, "k16.f32.bf16.bf16", ", 0, 0")
  } else if constexpr (std::is_same_v<T, F16>) {
    ASSAY_WGMMA_FOR_N(SS, "k16.f32.f16.f16", ", 0, 0")
  } else {
    static_assert(std::is_same_v<T, E4m3>);
    ASSAY_WGMMA_FOR_N(SS, "k32.f32.e4m3.e4m3", "")
  }
}
// d = a b (+ d if scale_d): A [64, k] in registers, B in shared memory: [16, kN] with n contiguous
// for 16-bit types, [kN, 32] with k contiguous for e4m3.
template <class T, int kN>
__device__ inline void wgmma_registers(float (&d)[kN / 2], const std::uint32_t (&a)[4],
                                       std::uint64_t desc_b, int scale_d) {
  if constexpr (std::is_same_v<T, Bf16>) {
    ASSAY_WGMMA_FOR_N(RS, "k16.f32.bf16.bf16", ", 1")
  } else if constexpr (std::is_same_v<T, F16>) {
    ASSAY_WGMMA_FOR_N(RS, "k16.f32.f16.f16", ", 1")
  } else {
    static_assert(std::is_same_v<T, E4m3>);
    ASSAY_WGMMA_FOR_N(RS, "k32.f32.e4m3.e4m3", "")
  }
}
// Likewise with B [kN, 32 bytes], k contiguous, for every type.
template <class T, int kN>
__device__ inline void wgmma_registers_k_major(float (&d)[kN / 2], const std::uint32_t (&a)[4],
                                               std::uint64_t desc_b, int scale_d) {
  if constexpr (std::is_same_v<T, Bf16>) {
    ASSAY_WGMMA_FOR_N(RS, "k16.f32.bf16.bf16", ", 0")
  } else if constexpr (std::is_same_v<T, F16>) {
    ASSAY_WGMMA_FOR_N(RS, "k16.f32.f16.f16", ", 0")
  } else {
    wgmma_registers<T, kN>(d, a, desc_b, scale_d);
  }
}
#undef ASSAY_WGMMA_FOR_N

}  // namespace assay::cuda
