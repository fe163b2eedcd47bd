// How values move between formats: widening to f32 (exact) and narrowing from it (one rounding).
// Decides SPEC NUM-1.2 to NUM-2. Each narrowing is the bit rule of one PTX cvt instruction; the
// functions at the end carry the instructions' names. Blocks with scales: quantize/.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "model/core/platform.hpp"
#include "model/numerics/formats.hpp"

namespace assay::numerics {

// Where a value between two codes goes: PTX's .rn .rz .rp .rm.
enum class Rounding : std::uint8_t { kNearestEven, kTowardZero, kUp, kDown };

// What happens beyond the largest finite value: Inf (or NaN where the format has no Inf), or
// PTX's .satfinite.
enum class Overflow : std::uint8_t { kInfinity, kSaturate };

// --- widening -----------------------------------------------------------------------------------

// The same number in f32. Always exact: every value of a narrower format is an f32 value. A NaN
// becomes 0x7FFFFFFF, whatever its sign and payload (SPEC NUM-1.3).
template <SignedFormat From>
requires(Format<From>::kMantissaBits < 23) ASSAY_HD constexpr F32 widen(From x) {
  using Src = Format<From>;
  constexpr int gap = 23 - Src::kMantissaBits;
  const std::uint32_t m = magnitude(x);
  const std::uint32_t sign = (x.bits & Src::kSignMask) != 0 ? 0x80000000u : 0u;
  if (is_nan(x)) return canonical_nan<F32>();
  if (is_infinite(x)) return F32{sign | Format<F32>::kInfinity};
  if (m == 0) return F32{sign};
  if (m < Src::kMinNormal) {
    // A subnormal is the integer m times the format's smallest step. The conversion of a small
    // integer to float is exact, and multiplying by a power of two moves the exponent field.
    constexpr std::uint32_t step_exponent = Src::kBias - 1 + Src::kMantissaBits;
    return F32{sign | (from_float(static_cast<float>(m)).bits - (step_exponent << 23))};
  }
  return F32{sign | ((m << gap) + (static_cast<std::uint32_t>(127 - Src::kBias) << 23))};
}

// bf16 is the upper half of f32: widening is a shift, and a NaN keeps its bits (SPEC NUM-1.3).
ASSAY_HD constexpr F32 widen(Bf16 x) { return F32{static_cast<std::uint32_t>(x.bits) << 16}; }

// 2^(code - 127), so code 0 is the f32 subnormal 2^-127; 0xFF is NaN (SPEC NUM-1.4).
ASSAY_HD constexpr F32 widen(Ue8m0 x) {
  if (is_nan(x)) return canonical_nan<F32>();
  return x.bits == 0 ? F32{0x00400000u} : F32{static_cast<std::uint32_t>(x.bits) << 23};
}

ASSAY_HD constexpr F32 widen(F32 x) { return x; }

// --- narrowing ----------------------------------------------------------------------------------

namespace convert_detail {

// `significand` * 2^-shift rounded to an integer, for a value of the given sign. shift >= 1.
ASSAY_HD constexpr std::uint32_t round_shift(std::uint32_t significand, int shift, bool negative,
                                             Rounding rounding) {
  const std::uint32_t kept = significand >> shift;
  const std::uint32_t lost = significand & ((1u << shift) - 1);
  const std::uint32_t half = 1u << (shift - 1);
  bool away = false;
  switch (rounding) {
    case Rounding::kNearestEven:
      away = lost > half || (lost == half && (kept & 1) != 0);
      break;
    case Rounding::kTowardZero:
      away = false;
      break;
    case Rounding::kUp:
      away = lost != 0 && !negative;
      break;
    case Rounding::kDown:
      away = lost != 0 && negative;
      break;
  }
  return kept + (away ? 1 : 0);
}

// The magnitude code for a finite value that rounded beyond the largest finite one, or for Inf
// (`exact`). Rounding that points back toward zero stops at the largest finite value, as in IEEE
// 754; only a true Inf passes (SPEC NUM-2.2).
template <SignedFormat To>
ASSAY_HD constexpr std::uint32_t overflow_code(bool exact, bool negative, Rounding rounding,
                                               Overflow overflow) {
  using Dst = Format<To>;
  const bool inward = rounding == Rounding::kTowardZero ||
                      (rounding == Rounding::kUp && negative) ||
                      (rounding == Rounding::kDown && !negative);
  if (overflow == Overflow::kSaturate || (inward && !exact)) return Dst::kMaxFinite;
  if constexpr (Dst::kHasInfinity) return Dst::kInfinity;
  if constexpr (Dst::kHasNan) return Dst::kNan;
  return Dst::kMaxFinite;  // e2m1 can only saturate
}

}  // namespace convert_detail

// The value of `x` in format To after one rounding. Subnormals of both formats are kept; there is
// no flushing form of a narrowing conversion. NaN becomes To's canonical NaN, or +6 in e2m1, which
// has none (SPEC NUM-2.1 to NUM-2.3).
template <SignedFormat To>
requires(Format<To>::kMantissaBits < 23) ASSAY_HD constexpr To
    narrow(F32 x, Rounding rounding, Overflow overflow) {
  using Dst = Format<To>;
  using Bits = typename Dst::Bits;
  const bool negative = is_negative(x);
  const std::uint32_t sign = negative ? Dst::kSignMask : 0;
  const std::uint32_t m = magnitude(x);
  if (is_nan(x)) {
    if constexpr (Dst::kHasNan) return canonical_nan<To>();
    return To{static_cast<Bits>(Dst::kMaxFinite)};
  }
  if (is_infinite(x)) {
    return To{static_cast<Bits>(
        sign | convert_detail::overflow_code<To>(true, negative, rounding, overflow))};
  }
  // x = significand * 2^(exponent - 150), exponent being 1 for f32 subnormals.
  const bool normal = m >= Format<F32>::kMinNormal;
  const int exponent = normal ? static_cast<int>(m >> 23) : 1;
  const std::uint32_t significand = normal ? (m & 0x7FFFFFu) | 0x800000u : m;
  // `field` is the exponent field x would have in To. Below 1 the value lies among To's subnormals
  // and loses as many more bits; from 25 lost bits on nothing is left but "not zero".
  const int field = exponent - 127 + Dst::kBias;
  const int extra = field < 1 ? 1 - field : 0;
  const int shift = 23 - Dst::kMantissaBits + extra;
  const std::uint32_t rounded =
      convert_detail::round_shift(significand, shift < 25 ? shift : 25, negative, rounding);
  // The significand's leading one, where it is there, adds 1 to the exponent field; a carry out of
  // the mantissa does the same. So codes are formed by addition.
  const int base_field = field < 1 ? 0 : field - 1;
  const std::uint32_t code =
      (static_cast<std::uint32_t>(base_field) << Dst::kMantissaBits) + rounded;
  return To{static_cast<Bits>(
      sign | (code > Dst::kMaxFinite
                  ? convert_detail::overflow_code<To>(false, negative, rounding, overflow)
                  : code))};
}

// The power of two for |x|: the next one at or above it (kUp) or at or below it (kTowardZero). The
// sign is ignored. Values up to 2^-127, zero included, are code 0; beyond 2^127 the code is 0xFE
// (saturating) or 0xFF; NaN is 0xFF (SPEC NUM-2.4).
template <class To>
requires(std::is_same_v<To, Ue8m0>) ASSAY_HD constexpr Ue8m0
    narrow(F32 x, Rounding rounding, Overflow overflow) {
  const std::uint32_t m = magnitude(x);
  if (is_nan(x)) return Ue8m0{kUe8m0Nan};
  std::uint32_t code = m >> 23;
  const bool above_smallest = m > 0x00400000u;  // 2^-127
  if (rounding == Rounding::kUp && (m & 0x7FFFFFu) != 0 && above_smallest) ++code;
  if (code == kUe8m0Nan && overflow == Overflow::kSaturate) code = kUe8m0Max;
  return Ue8m0{static_cast<std::uint8_t>(code)};
}

// Between two narrow formats: widening is exact, so this is still one rounding (SPEC NUM-2.6).
template <class To, class From>
requires(!std::is_same_v<From, F32>) ASSAY_HD constexpr To
    narrow(From x, Rounding rounding, Overflow overflow) {
  return narrow<To>(widen(x), rounding, overflow);
}

// --- the instructions ---------------------------------------------------------------------------

// The usual short form of narrow<Bf16>: f32 and bf16 share their exponents, so adding just under
// half a step (half, if the last kept bit is odd) and cutting rounds to nearest even, into Inf as
// well.
ASSAY_HD constexpr Bf16 cvt_rn_bf16_f32(F32 x) {
  if (is_nan(x)) return canonical_nan<Bf16>();
  return Bf16{static_cast<std::uint16_t>((x.bits + 0x7FFFu + ((x.bits >> 16) & 1)) >> 16)};
}
ASSAY_HD constexpr Bf16 cvt_rz_bf16_f32(F32 x) {
  return narrow<Bf16>(x, Rounding::kTowardZero, Overflow::kInfinity);
}
ASSAY_HD constexpr F16 cvt_rn_f16_f32(F32 x) {
  return narrow<F16>(x, Rounding::kNearestEven, Overflow::kInfinity);
}
ASSAY_HD constexpr F16 cvt_rz_f16_f32(F32 x) {
  return narrow<F16>(x, Rounding::kTowardZero, Overflow::kInfinity);
}

// One element of the packed satfinite conversions; From is F32, F16 or Bf16.
template <class From>
ASSAY_HD constexpr E4m3 cvt_rn_satfinite_e4m3(From x) {
  return narrow<E4m3>(x, Rounding::kNearestEven, Overflow::kSaturate);
}
template <class From>
ASSAY_HD constexpr E5m2 cvt_rn_satfinite_e5m2(From x) {
  return narrow<E5m2>(x, Rounding::kNearestEven, Overflow::kSaturate);
}
template <class From>
ASSAY_HD constexpr E2m1 cvt_rn_satfinite_e2m1(From x) {
  return narrow<E2m1>(x, Rounding::kNearestEven, Overflow::kSaturate);
}
template <class From>
ASSAY_HD constexpr Ue8m0 cvt_rp_satfinite_ue8m0(From x) {
  return narrow<Ue8m0>(x, Rounding::kUp, Overflow::kSaturate);
}
template <class From>
ASSAY_HD constexpr Ue8m0 cvt_rz_satfinite_ue8m0(From x) {
  return narrow<Ue8m0>(x, Rounding::kTowardZero, Overflow::kSaturate);
}

// The packed forms `cvt.<to>x2.<from> d, a, b`: the first source lands in the high half of d
// (SPEC NUM-2.5).
template <class T>
ASSAY_HD constexpr std::uint32_t pack_x2(T a, T b) {
  constexpr int width = std::is_same_v<T, E2m1> ? 4 : 8 * static_cast<int>(sizeof(a.bits));
  static_assert(width <= 16, "a pair of f32 does not fit 32 bits");
  return (static_cast<std::uint32_t>(a.bits) << width) | b.bits;
}

}  // namespace assay::numerics
