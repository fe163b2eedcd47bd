// Products and fused sums with .ftz around 2^-126: does flushing look at the exact result or at the
// rounded one (SPEC NUM-3.2)? Part of the sweeps.
#pragma once

#include "cuda/probe/sweeps.cuh"

namespace assay::probe {

// Products and fused sums around 2^-126, where three rules of flushing differ: of what is below
// 2^-126 exactly, after rounding to 24 bits, or after rounding to a multiple of 2^-149 (which the
// run of random pairs excluded). Three kinds by the seed's two highest bits of 24:
//   0, 1: c is the zero of the product's other sign, x * y within 2^-24 of 2^-126, relatively: y is
//         the f32 nearest to 2^-126 / x, x having exponent -63;
//   2:    x * y is that near 2^-125, and c takes 2^-126 away;
//   3:    c is 2^-126, of which a product of 2^-127 to 2^-158 is taken away.
// Bit 21 sets the sign. In each the exact sum has at most 53 bits, so a double holds it.
struct Near {
  float x, y, c;
};
__device__ inline Near near_smallest(std::uint32_t seed) {
  const std::uint32_t kind = seed >> 22 & 3;
  Near n;
  n.x = as_float(0x20000000u | (seed & 0x1FFFFFu) << 2 | (seed >> 22 & 1));
  n.y = static_cast<float>((kind == 2 ? 0x1p-125 : 0x1p-126) / static_cast<double>(n.x));
  n.c = kind == 2 ? -0x1p-126f : -0.0f;
  if (kind == 3) {
    n.x = -0x1p-63f;
    n.y = as_float(((63u - (seed & 31u)) << 23) | (seed >> 5 & 0xFFFFu) << 7);
    n.c = 0x1p-126f;
  }
  if (seed & 0x200000u) {
    n.y = -n.y;
    n.c = -n.c;
  }
  return n;
}
__device__ inline std::uint32_t hw_fma_near(std::uint32_t seed) {
  const Near n = near_smallest(seed);
  float z;
  asm volatile("fma.rn.ftz.f32 %0, %1, %2, %3;" : "=f"(z) : "f"(n.x), "f"(n.y), "f"(n.c));
  return as_bits(z);
}
__device__ inline std::uint32_t hw_fma_rz_near(std::uint32_t seed) {
  const Near n = near_smallest(seed);
  float z;
  asm volatile("fma.rz.ftz.f32 %0, %1, %2, %3;" : "=f"(z) : "f"(n.x), "f"(n.y), "f"(n.c));
  return as_bits(z);
}
__device__ inline std::uint32_t hw_mul_near(std::uint32_t seed) {
  const Near n = near_smallest(seed);
  return hw_mul_ftz(as_bits(n.x), as_bits(n.y));
}
// The two rules that are left, each as a definition in double.
__device__ inline std::uint32_t flushed(double exact, bool round_first) {
  const double compared =
      round_first ? static_cast<double>(static_cast<float>(exact * 0x1p64)) * 0x1p-64 : exact;
  if (fabs(compared) < 0x1p-126) return exact < 0 ? 0x80000000u : 0u;
  return as_bits(static_cast<float>(exact));
}
__device__ inline std::uint32_t flushed_mul(std::uint32_t seed, bool round_first) {
  const Near n = near_smallest(seed);
  return flushed(static_cast<double>(n.x) * static_cast<double>(n.y), round_first);
}
__device__ inline std::uint32_t flushed_fma(std::uint32_t seed, bool round_first) {
  const Near n = near_smallest(seed);
  const double product = static_cast<double>(n.x) * static_cast<double>(n.y);
  return flushed(product + static_cast<double>(n.c), round_first);
}
__device__ inline std::uint32_t model_mul_near(std::uint32_t seed) {
  const Near n = near_smallest(seed);
  return mul_rn(F32{as_bits(n.x)}, F32{as_bits(n.y)}, true).bits;
}
__device__ inline std::uint32_t model_fma_near(std::uint32_t seed, bool nearest) {
  const Near n = near_smallest(seed);
  const F32 x{as_bits(n.x)}, y{as_bits(n.y)}, c{as_bits(n.c)};
  return (nearest ? fma_rn(x, y, c, true) : fma_rz(x, y, c, true)).bits;
}
ASSAY_UNARY(MulNear, hw_mul_near(x), model_mul_near(x))
ASSAY_UNARY(FmaNear, hw_fma_near(x), model_fma_near(x, true))
ASSAY_UNARY(FmaRzNear, hw_fma_rz_near(x), model_fma_near(x, false))
ASSAY_UNARY(MulNearExact, hw_mul_near(x), flushed_mul(x, false))
ASSAY_UNARY(MulNearRounded, hw_mul_near(x), flushed_mul(x, true))
ASSAY_UNARY(FmaNearExact, hw_fma_near(x), flushed_fma(x, false))
ASSAY_UNARY(FmaNearRounded, hw_fma_near(x), flushed_fma(x, true))

// Around 2^-126, and two hypotheses: the one that differs nowhere is the hardware's rule.
inline void run_flushing(const std::function<void(const SweepResult&)>& each) {
  constexpr std::uint64_t seeds = 1u << 24;
  each(run_unary<MulNear>("mul.rn.ftz.f32 near 2^-126", seeds));
  each(run_unary<FmaNear>("fma.rn.ftz.f32 near 2^-126", seeds));
  each(run_unary<FmaRzNear>("fma.rz.ftz.f32 near 2^-126", seeds));
  each(run_unary<MulNearExact>("hypothesis: mul.ftz flushes before rounding", seeds));
  each(run_unary<MulNearRounded>("hypothesis: mul.ftz flushes after rounding to 24 bits", seeds));
  each(run_unary<FmaNearExact>("hypothesis: fma.ftz flushes before rounding", seeds));
  each(run_unary<FmaNearRounded>("hypothesis: fma.ftz flushes after rounding to 24 bits", seeds));
}

}  // namespace assay::probe
