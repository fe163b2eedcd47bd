// The matrix instruction of a warp (mma.sync, m16n8k16) and how its operands come from and go to
// shared memory: eight by eight matrices of 16-bit elements, a lane naming a row of 16 bytes. One
// instruction per function. Decides nothing; the bits are SPEC NUM-4.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/ops/mbarrier.hpp"
#include "model/core/bits.hpp"

namespace assay::cuda {

// Four matrices; lanes 8 i to 8 i + 7 name the rows of matrix i. Register i of lane 4 g + q holds
// elements 2 q and 2 q + 1 of row g of matrix i.
__device__ inline void load_matrices(std::uint32_t (&to)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}
// Likewise transposed: elements g of rows 2 q and 2 q + 1.
__device__ inline void load_transposed(std::uint32_t (&to)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}
// The reverse of load_transposed: register i becomes elements g of rows 2 q and 2 q + 1.
__device__ inline void store_transposed(SharedAddress row, const std::uint32_t (&from)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
               : "memory");
#endif
}

// d += a b: A [16, 16], registers 0 to 3 the quarters (rows 0-7, k 0-7), (rows 8-15, k 0-7), (rows
// 0-7, k 8-15), (rows 8-15, k 8-15); B [16, 8] in b0 (k 0-7) and b1 (k 8-15), lane 4 g + q holding
// k 2 q and 2 q + 1 of column g; d[0], d[1] row g, columns 2 q and 2 q + 1, d[2], d[3] row g + 8.
template <class T>
__device__ inline void warp_mma(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                std::uint32_t b1) {
  if constexpr (std::is_same_v<T, Bf16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    static_assert(std::is_same_v<T, F16>);
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// Two e4m3 in the low or the high half of a word, as two f16, the lower byte low. Exact.
__device__ inline std::uint32_t widen_low_e4m3(std::uint32_t four) {
  std::uint32_t two;
  asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; cvt.rn.f16x2.e4m3x2 %0, low;}"
      : "=r"(two)
      : "r"(four));
  return two;
}
__device__ inline std::uint32_t widen_high_e4m3(std::uint32_t four) {
  std::uint32_t two;
  asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; cvt.rn.f16x2.e4m3x2 %0, high;}"
      : "=r"(two)
      : "r"(four));
  return two;
}

// Copies 16 bytes from device to shared memory, or writes zeros if not `exists`; when all earlier
// ones of the thread have arrived, the barrier gets one of the arrivals it was initialised with.
__device__ inline void copy16_or_zero(SharedAddress to, const void* from, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(exists ? 16 : 0)
               : "memory");
}
__device__ inline void arrive_after_copies(SharedAddress barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

__device__ inline void shared_load_floats(SharedAddress from, float (&to)[2]) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(to[0]), "=f"(to[1])
               : "r"(from)
               : "memory");
}
__device__ inline void shared_store_floats(SharedAddress to, float first, float second) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(first), "f"(second) : "memory");
}
__device__ inline void shared_store_float(SharedAddress to, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
}
__device__ inline void shared_load_words(SharedAddress from, std::uint32_t (&to)[2]) {
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
               : "=r"(to[0]), "=r"(to[1])
               : "r"(from)
               : "memory");
}

}  // namespace assay::cuda
