// Adds, products and fused multiply-adds of single values, with the bits of the PTX instructions
// add.rn[.ftz].f32, add.bf16, add.f16, mul.rn[.ftz].f32, div.rn[.ftz].f32 and fma.rn[.ftz].f32 /
// fma.rz. Decides SPEC NUM-3.1 to NUM-3.6 and NUM-3.10. Not decided here: the order of several
// adds, which belongs to a profile.
//
// On the host these use the floating-point unit, which is IEEE 754 for finite results, and repair
// what IEEE leaves open (NaN bits) or does not have (flushing). In device code and in constant
// expressions they use exact.hpp. reference_add.hpp states the same sums a third time, as a
// definition; the tests hold all three together.
#pragma once

#include <cmath>
#include <type_traits>

#include "model/core/platform.hpp"
#include "model/numerics/convert.hpp"
#include "model/numerics/exact.hpp"
#include "model/numerics/formats.hpp"

namespace assay::numerics {

namespace add_detail {

// True where the host's floating-point unit may not be used.
ASSAY_HD constexpr bool integers_only() {
#ifdef __CUDA_ARCH__
  return true;
#else
  return std::is_constant_evaluated();
#endif
}

// The NaN and flushing rules of a result (SPEC NUM-3.2, NUM-3.3).
ASSAY_HD constexpr F32 finish(float value, bool flush) {
  const F32 x = from_float(value);
  if (is_nan(x)) return canonical_nan<F32>();
  return flush ? flush_subnormal(x) : x;
}

// Whether the host's result leaves open what flushing yields: the host rounded to a multiple of
// 2^-149, so +-2^-126 may stand for a number below it (SPEC NUM-3.2). Sums are never such: one of
// f32 numbers is a multiple of 2^-149.
ASSAY_HD constexpr bool undecided(float value, bool flush) {
  return flush && magnitude(from_float(value)) == Format<F32>::kMinNormal;
}

}  // namespace add_detail

// add.rn.f32, or add.rn.ftz.f32 with `flush`.
ASSAY_HD constexpr F32 add_rn(F32 a, F32 b, bool flush) {
  if (add_detail::integers_only()) return exact_add(a, b, Rounding::kNearestEven, flush);
  if (flush) {
    a = flush_subnormal(a);
    b = flush_subnormal(b);
  }
  return add_detail::finish(to_float(a) + to_float(b), flush);
}

// add.bf16: one rounding, subnormals kept. Through f32 this still rounds once in effect: 24 bits
// are at least 2 * 8 + 2, and the exponent range is the same (SPEC NUM-3.4).
ASSAY_HD constexpr Bf16 add_rn(Bf16 a, Bf16 b) {
  return cvt_rn_bf16_f32(add_rn(widen(a), widen(b), false));
}

// add.f16: likewise, 24 bits being exactly 2 * 11 + 2 (SPEC NUM-3.4).
ASSAY_HD constexpr F16 add_rn(F16 a, F16 b) {
  return cvt_rn_f16_f32(add_rn(widen(a), widen(b), false));
}

// mul.rn.f32, or mul.rn.ftz.f32 with `flush`.
ASSAY_HD constexpr F32 mul_rn(F32 a, F32 b, bool flush) {
  if (add_detail::integers_only()) return exact_mul(a, b, Rounding::kNearestEven, flush);
  if (flush) {
    a = flush_subnormal(a);
    b = flush_subnormal(b);
  }
  const float product = to_float(a) * to_float(b);
  if (add_detail::undecided(product, flush)) return exact_mul(a, b, Rounding::kNearestEven, flush);
  return add_detail::finish(product, flush);
}

// fma.rn.f32, or fma.rn.ftz.f32 with `flush`. std::fma is exactly IEEE 754's operation.
ASSAY_HD constexpr F32 fma_rn(F32 a, F32 b, F32 c, bool flush) {
  if (add_detail::integers_only()) return exact_fma(a, b, c, Rounding::kNearestEven, flush);
  if (flush) {
    a = flush_subnormal(a);
    b = flush_subnormal(b);
    c = flush_subnormal(c);
  }
  const float sum = std::fma(to_float(a), to_float(b), to_float(c));
  if (add_detail::undecided(sum, flush)) return exact_fma(a, b, c, Rounding::kNearestEven, flush);
  return add_detail::finish(sum, flush);
}

// div.rn.f32, or div.rn.ftz.f32 with `flush` (SPEC NUM-3.10).
ASSAY_HD constexpr F32 div_rn(F32 a, F32 b, bool flush) {
  if (add_detail::integers_only()) return exact_div(a, b, Rounding::kNearestEven, flush);
  if (flush) {
    a = flush_subnormal(a);
    b = flush_subnormal(b);
  }
  const float quotient = to_float(a) / to_float(b);
  if (add_detail::undecided(quotient, flush)) return exact_div(a, b, Rounding::kNearestEven, flush);
  return add_detail::finish(quotient, flush);
}

// The directed roundings, always in integers: fma.rz, add.rz, add.rm, add.rp, mul.rz ...
ASSAY_HD constexpr F32 fma_rz(F32 a, F32 b, F32 c, bool flush) {
  return exact_fma(a, b, c, Rounding::kTowardZero, flush);
}

// Whether the calling thread's floating-point unit rounds to nearest and keeps subnormals. A host
// program may have changed that (PyTorch's set_flush_denormal does); the answers here would then be
// wrong, so entry points that other programs call check it (SPEC NUM-0.2).
inline bool host_arithmetic_is_ieee() {
  volatile float smallest = std::bit_cast<float>(std::uint32_t{1});
  volatile float one = 1.0f;
  volatile float quarter_ulp = 0x1p-25f;
  volatile float three_quarter_ulp = 0x1.8p-24f;
  const volatile float doubled = smallest + smallest;
  return std::bit_cast<std::uint32_t>(static_cast<float>(doubled)) == 2 &&
         one + quarter_ulp == one && one + three_quarter_ulp == 0x1.000002p0f &&
         -one - quarter_ulp == -one;
}

}  // namespace assay::numerics
