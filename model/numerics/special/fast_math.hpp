// What CUDA's compiler makes of the names that kernels write. None is an instruction: each is one
// MUFU with comparisons and multiplications around it, which differ between builds with and without
// -use_fast_math (or -ftz=true). Decides SPEC NUM-5.6. Read from the machine code that nvcc 13.0.88
// emits for sm_90a; the probe repeats the comparison on a GPU.
#pragma once

#include "model/numerics/add.hpp"
#include "model/numerics/exact.hpp"
#include "model/numerics/special/mufu.hpp"

namespace assay::numerics {

namespace fast_math_detail {

inline constexpr F32 kHalf{0x3F000000};
inline constexpr F32 kQuarter{0x3E800000};
inline constexpr F32 kTwoTo12{0x45800000};
inline constexpr F32 kTwoTo24{0x4B800000};
inline constexpr F32 kMinus24{0xC1C00000};
inline constexpr F32 kLog2E{0x3FB8AA3B};  // 1.4426950216293335
inline constexpr F32 kLn2{0x3F317218};    // 0.6931471824645996

// |x| < 2^-126: what the compiler tests before a MUFU, whose inputs flush. False for NaN.
ASSAY_HD constexpr bool tiny(F32 x) { return magnitude(x) < 0x00800000u; }
// |x| > 2^126: whose reciprocal would flush. False for NaN.
ASSAY_HD constexpr bool huge(F32 x) {
  return magnitude(x) > 0x7E800000u && magnitude(x) <= 0x7F800000u;
}

}  // namespace fast_math_detail

// ex2.approx.f32, and exp2f(x) without fast-math: below -126 half the argument, and the square of
// the result. With fast-math exp2f(x) is ex2_approx_ftz(x).
ASSAY_HD constexpr F32 ex2_approx(F32 x) {
  const bool below = is_negative(x) && magnitude(x) > 0x42FC0000u && !is_nan(x);  // x < -126
  if (!below) return ex2_approx_ftz(x);
  const F32 root = ex2_approx_ftz(mul_rn(x, fast_math_detail::kHalf, false));
  return mul_rn(root, root, false);
}

// rcp.approx.f32: a subnormal is scaled up and a huge number down, and the result by as much again.
ASSAY_HD constexpr F32 rcp_approx(F32 x) {
  using namespace fast_math_detail;
  if (!tiny(x) && !huge(x)) return rcp_approx_ftz(x);
  const F32 scale = huge(x) ? kQuarter : kTwoTo24;
  return mul_rn(scale, rcp_approx_ftz(mul_rn(x, scale, false)), false);
}

// rsqrt.approx.f32, and rsqrtf(x) without fast-math.
ASSAY_HD constexpr F32 rsqrt_approx(F32 x) {
  using namespace fast_math_detail;
  if (!tiny(x)) return rsqrt_approx_ftz(x);
  return mul_rn(rsqrt_approx_ftz(mul_rn(x, kTwoTo24, false)), kTwoTo12, false);
}

// lg2.approx.f32, and __log2f(x) without fast-math.
ASSAY_HD constexpr F32 lg2_approx(F32 x) {
  using namespace fast_math_detail;
  if (!tiny(x)) return lg2_approx_ftz(x);
  return add_rn(lg2_approx_ftz(mul_rn(x, kTwoTo24, false)), kMinus24, false);
}

// div.approx.ftz.f32: x / y and __fdividef(x, y) with fast-math.
ASSAY_HD constexpr F32 div_approx_ftz(F32 x, F32 y) { return mul_rn(x, rcp_approx_ftz(y), true); }

// div.approx.f32: __fdividef(x, y) without fast-math.
ASSAY_HD constexpr F32 div_approx(F32 x, F32 y) {
  using namespace fast_math_detail;
  if (!tiny(y)) return mul_rn(rcp_approx_ftz(y), x, false);
  return mul_rn(rcp_approx_ftz(mul_rn(y, kTwoTo24, false)), mul_rn(x, kTwoTo24, false), false);
}

// div.full.ftz.f32: both operands are scaled down where the reciprocal of y would flush.
ASSAY_HD constexpr F32 div_full_ftz(F32 x, F32 y) {
  using namespace fast_math_detail;
  if (!huge(y)) return mul_rn(rcp_approx_ftz(y), x, true);
  return mul_rn(rcp_approx_ftz(mul_rn(y, kQuarter, true)), mul_rn(x, kQuarter, true), true);
}

// __expf(x), and expf(x) with fast-math.
ASSAY_HD constexpr F32 intrinsic_expf(F32 x, bool fast_math) {
  const F32 scaled = mul_rn(x, fast_math_detail::kLog2E, fast_math);
  return fast_math ? ex2_approx_ftz(scaled) : ex2_approx(scaled);
}

// __logf(x).
ASSAY_HD constexpr F32 intrinsic_logf(F32 x, bool fast_math) {
  const F32 log2 = fast_math ? lg2_approx_ftz(x) : lg2_approx(x);
  return mul_rn(log2, fast_math_detail::kLn2, fast_math);
}

// expf(x) without fast-math: the integer part of x / ln 2 is split off by a saturating and a
// rounding-down multiply-add, and enters the result as an exponent.
ASSAY_HD constexpr F32 expf_default(F32 x) {
  constexpr F32 kScale{0x3BBB989D};       // log2(e) / 252
  constexpr F32 kRange{0x437C0000};       // 252
  constexpr F32 kMagic{0x4B400001};       // 12582913: its low bits hold the integer
  constexpr F32 kMinusMagic{0xCB40007F};  // -(12582912 + 127)
  constexpr F32 kLog2ELow{0x32A57060};    // log2(e) - kLog2E
  F32 part = exact_fma(x, kScale, fast_math_detail::kHalf, Rounding::kNearestEven, false);
  if (is_nan(part) || is_negative(part)) part = F32{0};  // .sat
  if (magnitude(part) > 0x3F800000u) part = F32{0x3F800000u};
  const F32 shifted = exact_fma(part, kRange, kMagic, Rounding::kDown, false);
  const F32 whole = add_rn(shifted, kMinusMagic, false);
  F32 rest = fma_rn(x, fast_math_detail::kLog2E, F32{whole.bits ^ 0x80000000u}, false);
  rest = fma_rn(x, kLog2ELow, rest, false);
  return mul_rn(F32{shifted.bits << 23}, ex2_approx_ftz(rest), false);
}

}  // namespace assay::numerics
