// The matrix instructions themselves: wgmma with A in shared memory or in registers and B K-major
// or transposed, and mma.sync. One block of 128 threads computes one tile d [64, n] as a chain of
// `steps` instructions. Shared memory holds operands without swizzle, in 8-row by 16-byte cores.
#pragma once

#include <type_traits>

#include "cuda/probe/probe.cuh"
#include "cuda/probe/wgmma_macros.inc"
#include "model/core/bits.hpp"
#include "model/numerics/convert.hpp"

namespace assay::probe {

// Bytes of one row that one full-width instruction consumes, for every type.
inline constexpr int kStepBytes = 32;

struct TileProblem {
  const std::uint8_t* a;  // [tiles, 64, steps * kStepBytes]
  const std::uint8_t* b;  // [tiles, n, steps * kStepBytes]
  const F32* c;           // [tiles, 64, n]; not read if scale_d is 0
  F32* d;                 // [tiles, 64, n]
  int steps;
  int scale_d;
};

// --- the spelling of each type's instruction
// ------------------------------------------------------

// `kN` selects among the accumulator counts that wgmma_macros.inc has.
#define ASSAY_WGMMA_BY_N(KIND, C8, C64, C128, C176, C256, FORM, K, TYPES, TAIL)                 \
  if constexpr (kN == 8)                                                                        \
    ASSAY_WGMMA_##KIND##_##C8##_##FORM("wgmma.mma_async.sync.aligned.m64n8" K TYPES, TAIL);     \
  else if constexpr (kN == 64)                                                                  \
    ASSAY_WGMMA_##KIND##_##C64##_##FORM("wgmma.mma_async.sync.aligned.m64n64" K TYPES, TAIL);   \
  else if constexpr (kN == 128)                                                                 \
    ASSAY_WGMMA_##KIND##_##C128##_##FORM("wgmma.mma_async.sync.aligned.m64n128" K TYPES, TAIL); \
  else if constexpr (kN == 176)                                                                 \
    ASSAY_WGMMA_##KIND##_##C176##_##FORM("wgmma.mma_async.sync.aligned.m64n176" K TYPES, TAIL); \
  else                                                                                          \
    ASSAY_WGMMA_##KIND##_##C256##_##FORM("wgmma.mma_async.sync.aligned.m64n256" K TYPES, TAIL);

#define ASSAY_WGMMA_TYPE(Name, KIND, Element, C8, C64, C128, C176, C256, K, TYPES, TSS, TSST, TRS, \
                         TRST)                                                                     \
  struct Name {                                                                                    \
    using Accumulator = Element;                                                                   \
    template <int kN, bool kTransposedB>                                                           \
    static __device__ void ss(Accumulator* d, std::uint64_t desc_a, std::uint64_t desc_b,          \
                              int scale_d) {                                                       \
      if constexpr (kTransposedB) {                                                                \
        ASSAY_WGMMA_BY_N(KIND, C8, C64, C128, C176, C256, SS, K, TYPES, TSST)                      \
      } else {                                                                                     \
        ASSAY_WGMMA_BY_N(KIND, C8, C64, C128, C176, C256, SS, K, TYPES, TSS)                       \
      }                                                                                            \
    }                                                                                              \
    template <int kN, bool kTransposedB>                                                           \
    static __device__ void rs(Accumulator* d, const std::uint32_t* a, std::uint64_t desc_b,        \
                              int scale_d) {                                                       \
      if constexpr (kTransposedB) {                                                                \
        ASSAY_WGMMA_BY_N(KIND, C8, C64, C128, C176, C256, RS, K, TYPES, TRST)                      \
      } else {                                                                                     \
        ASSAY_WGMMA_BY_N(KIND, C8, C64, C128, C176, C256, RS, K, TYPES, TRS)                       \
      }                                                                                            \
    }                                                                                              \
  };
#define ASSAY_WGMMA_F32_TYPE(Name, K, TYPES, TSS, TSST, TRS, TRST) \
  ASSAY_WGMMA_TYPE(Name, F32, float, 4, 32, 64, 88, 128, K, TYPES, TSS, TSST, TRS, TRST)
#define ASSAY_WGMMA_F16_TYPE(Name, K, TYPES, TSS, TSST, TRS, TRST) \
  ASSAY_WGMMA_TYPE(Name, F16, std::uint32_t, 2, 16, 32, 44, 64, K, TYPES, TSS, TSST, TRS, TRST)

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
ASSAY_WGMMA_F32_TYPE(WgmmaBf16, "k16", ".f32.bf16.bf16", ", 0, 0", ", 0, 1", ", 0", ", 1")
ASSAY_WGMMA_F32_TYPE(WgmmaF16, "k16", ".f32.f16.f16", ", 0, 0", ", 0, 1", ", 0", ", 1")
ASSAY_WGMMA_F16_TYPE(WgmmaF16AccF16, "k16", ".f16.f16.f16", ", 0, 0", ", 0, 1", ", 0", ", 1")
ASSAY_WGMMA_F32_TYPE(WgmmaTf32, "k8", ".f32.tf32.tf32", "", "", "", "")
ASSAY_WGMMA_F32_TYPE(WgmmaE4m3E4m3, "k32", ".f32.e4m3.e4m3", "", "", "", "")
ASSAY_WGMMA_F32_TYPE(WgmmaE4m3E5m2, "k32", ".f32.e4m3.e5m2", "", "", "", "")
ASSAY_WGMMA_F32_TYPE(WgmmaE5m2E4m3, "k32", ".f32.e5m2.e4m3", "", "", "", "")
ASSAY_WGMMA_F32_TYPE(WgmmaE5m2E5m2, "k32", ".f32.e5m2.e5m2", "", "", "", "")
ASSAY_WGMMA_F16_TYPE(WgmmaE4m3E4m3AccF16, "k32", ".f16.e4m3.e4m3", "", "", "", "")
ASSAY_WGMMA_F16_TYPE(WgmmaE4m3E5m2AccF16, "k32", ".f16.e4m3.e5m2", "", "", "", "")
ASSAY_WGMMA_F16_TYPE(WgmmaE5m2E4m3AccF16, "k32", ".f16.e5m2.e4m3", "", "", "", "")
ASSAY_WGMMA_F16_TYPE(WgmmaE5m2E5m2AccF16, "k32", ".f16.e5m2.e5m2", "", "", "", "")
#else  // other architectures compile the program without the instruction; the host does not launch
       // it
#define ASSAY_NO_WGMMA(Name, Element)                                                    \
  struct Name {                                                                          \
    using Accumulator = Element;                                                         \
    template <int, bool>                                                                 \
    static __device__ void ss(Accumulator*, std::uint64_t, std::uint64_t, int) {}        \
    template <int, bool>                                                                 \
    static __device__ void rs(Accumulator*, const std::uint32_t*, std::uint64_t, int) {} \
  };
ASSAY_NO_WGMMA(WgmmaBf16, float)
ASSAY_NO_WGMMA(WgmmaF16, float)
ASSAY_NO_WGMMA(WgmmaF16AccF16, std::uint32_t)
ASSAY_NO_WGMMA(WgmmaTf32, float)
ASSAY_NO_WGMMA(WgmmaE4m3E4m3, float)
ASSAY_NO_WGMMA(WgmmaE4m3E5m2, float)
ASSAY_NO_WGMMA(WgmmaE5m2E4m3, float)
ASSAY_NO_WGMMA(WgmmaE5m2E5m2, float)
ASSAY_NO_WGMMA(WgmmaE4m3E4m3AccF16, std::uint32_t)
ASSAY_NO_WGMMA(WgmmaE4m3E5m2AccF16, std::uint32_t)
ASSAY_NO_WGMMA(WgmmaE5m2E4m3AccF16, std::uint32_t)
ASSAY_NO_WGMMA(WgmmaE5m2E5m2AccF16, std::uint32_t)
#endif

// --- fragments
// ------------------------------------------------------------------------------------

// fp32 accumulators: register 4b + j of block b of 8 columns is row lane / 4 + 8 * (j / 2), column
// 2 * (lane % 4) + j % 2. fp16 ones pack two columns into one register.
template <int n>
__device__ void load_fragment(float* d, const F32* c, int lane) {
#pragma unroll
  for (int j = 0; j < n / 2; ++j) {
    const int row = lane / 4 + 8 * (j / 2 % 2), column = 8 * (j / 4) + 2 * (lane % 4) + j % 2;
    d[j] = __uint_as_float(c[row * n + column].bits);
  }
}
template <int n>
__device__ void store_fragment(const float* d, F32* out, int lane) {
#pragma unroll
  for (int j = 0; j < n / 2; ++j) {
    const int row = lane / 4 + 8 * (j / 2 % 2), column = 8 * (j / 4) + 2 * (lane % 4) + j % 2;
    out[row * n + column] = F32{__float_as_uint(d[j])};
  }
}
template <int n>
__device__ void load_fragment(std::uint32_t* d, const F32* c, int lane) {
#pragma unroll
  for (int j = 0; j < n / 4; ++j) {
    const int row = lane / 4 + 8 * (j % 2), column = 8 * (j / 2) + 2 * (lane % 4);
    const std::uint32_t low = numerics::cvt_rn_f16_f32(c[row * n + column]).bits;
    const std::uint32_t high = numerics::cvt_rn_f16_f32(c[row * n + column + 1]).bits;
    d[j] = low | high << 16;
  }
}
template <int n>
__device__ void store_fragment(const std::uint32_t* d, F32* out, int lane) {
#pragma unroll
  for (int j = 0; j < n / 4; ++j) {
    const int row = lane / 4 + 8 * (j % 2), column = 8 * (j / 2) + 2 * (lane % 4);
    out[row * n + column] = numerics::widen(F16{static_cast<std::uint16_t>(d[j])});
    out[row * n + column + 1] = numerics::widen(F16{static_cast<std::uint16_t>(d[j] >> 16)});
  }
}

// A row block's 4 registers: rows lane / 4 and + 8, bytes 4 * (lane % 4) and + 16 (of `row_bytes`).
__device__ inline std::uint32_t load_word(const std::uint8_t* p) {
  return *reinterpret_cast<const std::uint32_t*>(p);
}

// --- wgmma
// ----------------------------------------------------------------------------------------

// Start address, stride between cores along k (128 bytes) and along rows (256), all in units of 16.
__device__ inline std::uint64_t descriptor(const void* shared) {
  const auto address = static_cast<std::uint64_t>(__cvta_generic_to_shared(shared));
  return ((address >> 4) & 0x3FFF) | (std::uint64_t{128 >> 4} << 16) |
         (std::uint64_t{256 >> 4} << 32);
}

__device__ inline int core_offset(int row, int byte) {
  return row / 8 * 256 + byte / 16 * 128 + row % 8 * 16 + byte % 16;
}
// 16-bit elements with rows (n) contiguous inside a core: 8 n by 8 k.
__device__ inline int transposed_core_offset(int row, int k) {
  return row / 8 * 256 + k / 8 * 128 + k % 8 * 16 + row % 8 * 2;
}

template <class Type, int kN, bool kRegisters, bool kTransposedB>
__global__ void __launch_bounds__(128) wgmma_tile(TileProblem p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(128) std::uint8_t shared[];
  const std::uint64_t tile = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int row_bytes = p.steps * kStepBytes;
  const std::uint8_t* a = p.a + tile * 64 * row_bytes;
  const std::uint8_t* b = p.b + tile * kN * row_bytes;
  std::uint8_t* shared_a = shared;
  std::uint8_t* shared_b = shared + p.steps * 64 * kStepBytes;
  for (int i = thread; i < 64 * row_bytes; i += 128) {
    const int row = i / row_bytes, byte = i % row_bytes;
    shared_a[byte / 32 * 64 * kStepBytes + core_offset(row, byte % 32)] = a[i];
  }
  for (int i = thread; i < kN * row_bytes; i += 128) {
    const int row = i / row_bytes, byte = i % row_bytes;
    const int within = kTransposedB ? transposed_core_offset(row, byte % 32 / 2) + byte % 2
                                    : core_offset(row, byte % 32);
    shared_b[byte / 32 * kN * kStepBytes + within] = b[i];
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  constexpr int kRegistersD = std::is_same_v<typename Type::Accumulator, float> ? kN / 2 : kN / 4;
  typename Type::Accumulator d[kRegistersD];
  for (int j = 0; j < kRegistersD; ++j) d[j] = 0;
  const std::uint64_t first = (tile * 64 + warp * 16) * kN;
  if (p.scale_d) load_fragment<kN>(d, p.c + first, lane);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  for (int step = 0; step < p.steps; ++step) {
    const int scale_d = step > 0 || p.scale_d;
    const std::uint64_t desc_b = descriptor(shared_b + step * kN * kStepBytes);
    if constexpr (kRegisters) {
      std::uint32_t fragment[4];
      for (int j = 0; j < 4; ++j) {
        const int row = warp * 16 + lane / 4 + 8 * (j % 2);
        fragment[j] = load_word(a + row * row_bytes + step * 32 + 4 * (lane % 4) + 16 * (j / 2));
      }
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
      Type::template rs<kN, kTransposedB>(d, fragment, desc_b, scale_d);
    } else {
      Type::template ss<kN, kTransposedB>(d, descriptor(shared_a + step * 64 * kStepBytes), desc_b,
                                          scale_d);
    }
    // Speed does not matter here, and A's registers may not change while the instruction reads
    // them.
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
  }
  store_fragment<kN>(d, p.d + first, lane);
#endif
}

// --- mma.sync
// -------------------------------------------------------------------------------------

// n is 8; each warp computes 16 rows. kBytes: bytes of k that the instruction consumes.
#define ASSAY_MMA_F32(Name, spelling)                                                          \
  struct Name {                                                                                \
    using Accumulator = float;                                                                 \
    static constexpr int kBytes = 32;                                                          \
    static __device__ void run(float* d, const std::uint32_t* a, const std::uint32_t* b) {     \
      asm volatile(spelling " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                   : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                            \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));        \
    }                                                                                          \
  };
#define ASSAY_MMA_F32_HALF(Name, spelling)                                                 \
  struct Name {                                                                            \
    using Accumulator = float;                                                             \
    static constexpr int kBytes = 16;                                                      \
    static __device__ void run(float* d, const std::uint32_t* a, const std::uint32_t* b) { \
      asm volatile(spelling " {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"         \
                   : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                        \
                   : "r"(a[0]), "r"(a[1]), "r"(b[0]));                                     \
    }                                                                                      \
  };
#define ASSAY_MMA_F16(Name, spelling)                                                              \
  struct Name {                                                                                    \
    using Accumulator = std::uint32_t;                                                             \
    static constexpr int kBytes = 32;                                                              \
    static __device__ void run(std::uint32_t* d, const std::uint32_t* a, const std::uint32_t* b) { \
      asm volatile(spelling " {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"                     \
                   : "+r"(d[0]), "+r"(d[1])                                                        \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));            \
    }                                                                                              \
  };
#define ASSAY_MMA_F16_HALF(Name, spelling)                                                         \
  struct Name {                                                                                    \
    using Accumulator = std::uint32_t;                                                             \
    static constexpr int kBytes = 16;                                                              \
    static __device__ void run(std::uint32_t* d, const std::uint32_t* a, const std::uint32_t* b) { \
      asm volatile(spelling " {%0, %1}, {%2, %3}, {%4}, {%0, %1};"                                 \
                   : "+r"(d[0]), "+r"(d[1])                                                        \
                   : "r"(a[0]), "r"(a[1]), "r"(b[0]));                                             \
    }                                                                                              \
  };
ASSAY_MMA_F32(MmaBf16, "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32")
ASSAY_MMA_F32(MmaF16, "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")
ASSAY_MMA_F32(MmaTf32, "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32")
ASSAY_MMA_F32(MmaE4m3E4m3, "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32")
ASSAY_MMA_F32(MmaE4m3E5m2, "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32")
ASSAY_MMA_F32(MmaE5m2E4m3, "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e4m3.f32")
ASSAY_MMA_F32(MmaE5m2E5m2, "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32")
ASSAY_MMA_F32_HALF(MmaBf16K8, "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32")
ASSAY_MMA_F32_HALF(MmaF16K8, "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32")
ASSAY_MMA_F32_HALF(MmaTf32K4, "mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32")
ASSAY_MMA_F16(MmaF16AccF16, "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16")
ASSAY_MMA_F16(MmaE4m3E4m3AccF16, "mma.sync.aligned.m16n8k32.row.col.f16.e4m3.e4m3.f16")
ASSAY_MMA_F16(MmaE4m3E5m2AccF16, "mma.sync.aligned.m16n8k32.row.col.f16.e4m3.e5m2.f16")
ASSAY_MMA_F16(MmaE5m2E4m3AccF16, "mma.sync.aligned.m16n8k32.row.col.f16.e5m2.e4m3.f16")
ASSAY_MMA_F16(MmaE5m2E5m2AccF16, "mma.sync.aligned.m16n8k32.row.col.f16.e5m2.e5m2.f16")
ASSAY_MMA_F16_HALF(MmaF16K8AccF16, "mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16")

template <class Type>
__global__ void __launch_bounds__(128) mma_sync_tile(TileProblem p) {
  constexpr int n = 8;
  const std::uint64_t tile = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int row_bytes = p.steps * Type::kBytes;
  const std::uint8_t* a = p.a + (tile * 64 + warp * 16) * row_bytes;
  const std::uint8_t* b = p.b + tile * n * row_bytes;
  typename Type::Accumulator d[4] = {};
  const std::uint64_t first = (tile * 64 + warp * 16) * n;
  if (p.scale_d) load_fragment<n>(d, p.c + first, lane);
  for (int step = 0; step < p.steps; ++step) {
    std::uint32_t fragment_a[4] = {}, fragment_b[2] = {};
    for (int j = 0; j < Type::kBytes / 8; ++j) {
      const int row = lane / 4 + 8 * (j % 2);
      fragment_a[j] =
          load_word(a + row * row_bytes + step * Type::kBytes + 4 * (lane % 4) + 16 * (j / 2));
    }
    for (int j = 0; j < Type::kBytes / 16; ++j)
      fragment_b[j] =
          load_word(b + lane / 4 * row_bytes + step * Type::kBytes + 4 * (lane % 4) + 16 * j);
    Type::run(d, fragment_a, fragment_b);
  }
  store_fragment<n>(d, p.d + first, lane);
}

}  // namespace assay::probe
