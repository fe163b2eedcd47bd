// Arithmetic of single values, each with the rounding its name says: nothing here contracts, and
// only the special functions flush subnormals. One PTX instruction per function (a division is a
// short sequence of the compiler's). Decides nothing; the bits are SPEC NUM-3 and NUM-5. Where nvcc
// does not compile, the same names are model/numerics' functions, so that tests can run on a host
// what a kernel's thread computes.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "model/core/bits.hpp"
#include "model/core/platform.hpp"

#ifndef __CUDACC__
#include "model/numerics/add.hpp"
#include "model/numerics/max_min.hpp"
#include "model/numerics/special/mufu.hpp"
#endif

namespace assay::cuda {

ASSAY_DEVICE inline float minus_infinity() { return std::bit_cast<float>(0xFF800000u); }
ASSAY_DEVICE inline float lowest_float() { return std::bit_cast<float>(0xFF7FFFFFu); }

#ifdef __CUDACC__

__device__ inline float fma_rn(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ inline float add_rn(float a, float b) { return __fadd_rn(a, b); }
__device__ inline float sub_rn(float a, float b) { return __fsub_rn(a, b); }
__device__ inline float mul_rn(float a, float b) { return __fmul_rn(a, b); }
__device__ inline float div_rn(float a, float b) { return __fdiv_rn(a, b); }
__device__ inline float from_int_rn(int x) { return __int2float_rn(x); }

// NaN if either is.
__device__ inline float max_nan(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}
// The other operand where one is NaN.
__device__ inline float max_number(float a, float b) {
  float larger;
  asm("max.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}
__device__ inline float ex2_approx_ftz(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float lg2_approx_ftz(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two values rounded to nearest even, `low` in the low half.
template <class T>
__device__ inline std::uint32_t pack_rn(float low, float high) {
  std::uint32_t packed;
  if constexpr (std::is_same_v<T, Bf16>)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// Four values, rounded to nearest even and to the largest number beyond it, the first one lowest.
__device__ inline std::uint32_t pack_e4m3(float a, float b, float c, float d) {
  std::uint32_t packed;
  asm("{.reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, %2, %1; "
      "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3; mov.b32 %0, {low, high};}"
      : "=r"(packed)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return packed;
}
// Byte i of the result is byte (selector >> 4 i) & 7 of a, then b.
__device__ inline std::uint32_t bytes_of(std::uint32_t a, std::uint32_t b, std::uint32_t selector) {
  return __byte_perm(a, b, selector);
}

#else

inline F32 f32(float x) { return numerics::from_float(x); }
inline float fma_rn(float a, float b, float c) {
  return numerics::to_float(numerics::fma_rn(f32(a), f32(b), f32(c), false));
}
inline float add_rn(float a, float b) {
  return numerics::to_float(numerics::add_rn(f32(a), f32(b), false));
}
inline float sub_rn(float a, float b) { return add_rn(a, -b); }
inline float mul_rn(float a, float b) {
  return numerics::to_float(numerics::mul_rn(f32(a), f32(b), false));
}
inline float div_rn(float a, float b) {
  return numerics::to_float(numerics::div_rn(f32(a), f32(b), false));
}
inline float from_int_rn(int x) { return static_cast<float>(x); }
inline float max_nan(float a, float b) {
  return numerics::to_float(numerics::max_of(f32(a), f32(b), numerics::NanRule::kPropagate));
}
inline float max_number(float a, float b) {
  return numerics::to_float(numerics::max_of(f32(a), f32(b)));
}
inline float ex2_approx_ftz(float x) {
  return numerics::to_float(numerics::ex2_approx_ftz(f32(x)));
}
inline float lg2_approx_ftz(float x) {
  return numerics::to_float(numerics::lg2_approx_ftz(f32(x)));
}
template <class T>
std::uint32_t pack_rn(float low, float high) {
  const auto narrow = [](float x) -> std::uint32_t {
    if constexpr (std::is_same_v<T, Bf16>)
      return numerics::cvt_rn_bf16_f32(f32(x)).bits;
    else
      return numerics::cvt_rn_f16_f32(f32(x)).bits;
  };
  return narrow(low) | narrow(high) << 16;
}

inline std::uint32_t pack_e4m3(float a, float b, float c, float d) {
  const auto narrow = [](float x) -> std::uint32_t {
    return numerics::cvt_rn_satfinite_e4m3(f32(x)).bits;
  };
  return narrow(a) | narrow(b) << 8 | narrow(c) << 16 | narrow(d) << 24;
}
inline std::uint32_t bytes_of(std::uint32_t a, std::uint32_t b, std::uint32_t selector) {
  const std::uint64_t both = std::uint64_t{b} << 32 | a;
  std::uint32_t out = 0;
  for (int i = 0; i < 4; ++i)
    out |= static_cast<std::uint32_t>(both >> (8 * (selector >> (4 * i) & 7)) & 0xFF) << (8 * i);
  return out;
}

#endif

}  // namespace assay::cuda
