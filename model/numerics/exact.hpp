// f32 add, multiply and fused multiply-add in integers, with any rounding. This is the arithmetic
// of the model where the host's floating-point unit cannot be used: in device code (so that a probe
// never compares the hardware with itself), in constant expressions, and for directed roundings.
// add.hpp decides when that is. NaN and flushing rules: SPEC NUM-3.
#pragma once

#include <bit>
#include <cstdint>

#include "model/core/leading_zeros.hpp"
#include "model/core/platform.hpp"
#include "model/numerics/convert.hpp"
#include "model/numerics/formats.hpp"

namespace assay::numerics {

namespace exact_detail {

__extension__ using Wide = unsigned __int128;

// (-1)^negative * significand * 2^exponent, exactly.
struct Term {
  bool negative = false;
  std::uint64_t significand = 0;
  int exponent = 0;
};

ASSAY_HD constexpr Term decode(F32 x) {
  const std::uint32_t m = magnitude(x);
  const bool normal = m >= Format<F32>::kMinNormal;
  return {is_negative(x), normal ? (m & 0x7FFFFFu) | 0x800000u : m,
          normal ? static_cast<int>(m >> 23) - 150 : -149};
}

ASSAY_HD constexpr int bit_width(Wide x) {
  const auto high = static_cast<std::uint64_t>(x >> 64);
  return high != 0 ? 64 + assay::bit_width(high) : assay::bit_width(static_cast<std::uint64_t>(x));
}

// `significand` * 2^exponent rounded to f32, overflowing as IEEE 754 says. The lowest bit of
// `significand` may stand for "and something more below"; it is far below every rounding position.
// With `flush` there are no subnormal results (SPEC NUM-3.2).
ASSAY_HD constexpr F32 round_to_f32(bool negative, Wide significand, int exponent,
                                    Rounding rounding, bool flush) {
  const std::uint32_t sign = negative ? 0x80000000u : 0u;
  if (significand == 0) return F32{sign};
  // The result is an integer multiple of 2^unit with at most 24 bits. IEEE 754 keeps unit at or
  // above -149; a flushing unit rounds to 24 bits wherever the number lies.
  int unit = exponent + bit_width(significand) - 24;
  if (unit < -149 && !flush) unit = -149;
  const int shift = unit - exponent;
  std::uint32_t kept = 0;
  bool away = false;
  if (shift <= 0) {
    kept = static_cast<std::uint32_t>(significand << -shift);
  } else {
    const int drop = shift < 127 ? shift : 127;
    kept = static_cast<std::uint32_t>(significand >> drop);
    const Wide lost = significand & ((Wide{1} << drop) - 1);
    const Wide half = Wide{1} << (drop - 1);
    switch (rounding) {
      case Rounding::kNearestEven:
        away = lost > half || (lost == half && (kept & 1) != 0);
        break;
      case Rounding::kTowardZero:
        break;
      case Rounding::kUp:
        away = lost != 0 && !negative;
        break;
      case Rounding::kDown:
        away = lost != 0 && negative;
        break;
    }
  }
  // A number below 2^-126 survives flushing only by rounding up to 2^-126.
  if (unit < -149 && flush) {
    const bool reaches_normal = unit == -150 && kept + (away ? 1 : 0) == 1u << 24;
    return F32{sign | (reaches_normal ? Format<F32>::kMinNormal : 0u)};
  }
  // kept < 2^24; as in narrow(), its leading one and a carry add to the exponent field.
  const int base_field = unit + 149;
  if (base_field >= 254) {
    return F32{sign |
               convert_detail::overflow_code<F32>(false, negative, rounding, Overflow::kInfinity)};
  }
  const std::uint32_t code = (static_cast<std::uint32_t>(base_field) << 23) + kept + (away ? 1 : 0);
  return F32{sign |
             (code > Format<F32>::kMaxFinite ? convert_detail::overflow_code<F32>(
                                                   false, negative, rounding, Overflow::kInfinity)
                                             : code)};
}

// The same number, if it is not zero, with bit 47 as the significand's highest.
ASSAY_HD constexpr Term with_leading_bit_47(Term t) {
  if (t.significand == 0) return t;
  const int up = 48 - assay::bit_width(t.significand);
  return {t.negative, t.significand << up, t.exponent - up};
}

// The sum of two terms, rounded once. Significands have at most 48 bits.
ASSAY_HD constexpr F32 add_terms(Term a, Term b, Rounding rounding, bool flush) {
  if (a.significand == 0 && b.significand == 0) {
    // Equal signs keep theirs; -0 + 0 is +0, or -0 when rounding down.
    const bool negative = a.negative == b.negative ? a.negative : rounding == Rounding::kDown;
    return F32{negative ? 0x80000000u : 0u};
  }
  // With leading bits in one place the exponents order the magnitudes.
  a = with_leading_bit_47(a);
  b = with_leading_bit_47(b);
  if (a.significand == 0 || (b.significand != 0 && b.exponent > a.exponent)) {
    const Term swap = a;
    a = b;
    b = swap;
  }
  if (b.significand == 0)
    return round_to_f32(a.negative, a.significand, a.exponent, rounding, flush);
  // 64 bits of room below a: a smaller b leaves only "something" there, which is enough, because
  // a - b then still has more than 100 bits.
  const Wide wide_a = Wide{a.significand} << 64;
  const int distance = a.exponent - b.exponent;
  Wide wide_b = Wide{b.significand} << 64;
  if (distance > 0) {
    const int drop = distance < 127 ? distance : 127;
    const bool lost = (wide_b & ((Wide{1} << drop) - 1)) != 0;
    wide_b = (wide_b >> drop) | (lost ? 1 : 0);
  }
  const int exponent = a.exponent - 64;
  if (a.negative == b.negative)
    return round_to_f32(a.negative, wide_a + wide_b, exponent, rounding, flush);
  if (wide_a == wide_b) return F32{rounding == Rounding::kDown ? 0x80000000u : 0u};
  return wide_a > wide_b ? round_to_f32(a.negative, wide_a - wide_b, exponent, rounding, flush)
                         : round_to_f32(b.negative, wide_b - wide_a, exponent, rounding, flush);
}

}  // namespace exact_detail

// a * b + c with one rounding, in integers. Inf * 0, Inf - Inf and any NaN give 0x7FFFFFFF. With
// `flush`, subnormal operands and results become zeros of the same sign (SPEC NUM-3.2, NUM-3.6).
ASSAY_HD constexpr F32 exact_fma(F32 a, F32 b, F32 c, Rounding rounding, bool flush) {
  if (flush) {
    a = flush_subnormal(a);
    b = flush_subnormal(b);
    c = flush_subnormal(c);
  }
  const bool product_negative = is_negative(a) != is_negative(b);
  if (is_nan(a) || is_nan(b) || is_nan(c)) return canonical_nan<F32>();
  if (is_infinite(a) || is_infinite(b)) {
    const F32 product{(product_negative ? 0x80000000u : 0u) | Format<F32>::kInfinity};
    const bool invalid = is_zero(a) || is_zero(b) || (is_infinite(c) && c.bits != product.bits);
    return invalid ? canonical_nan<F32>() : product;
  }
  if (is_infinite(c)) return c;
  const exact_detail::Term x = exact_detail::decode(a);
  const exact_detail::Term y = exact_detail::decode(b);
  const exact_detail::Term product{product_negative, x.significand * y.significand,
                                   x.exponent + y.exponent};
  return exact_detail::add_terms(product, exact_detail::decode(c), rounding, flush);
}

// a + b with one rounding, in integers; NaN and flushing as above (SPEC NUM-3.1).
ASSAY_HD constexpr F32 exact_add(F32 a, F32 b, Rounding rounding, bool flush) {
  if (flush) {
    a = flush_subnormal(a);
    b = flush_subnormal(b);
  }
  if (is_nan(a) || is_nan(b)) return canonical_nan<F32>();
  if (is_infinite(a)) {
    return is_infinite(b) && a.bits != b.bits ? canonical_nan<F32>() : a;
  }
  if (is_infinite(b)) return b;
  return exact_detail::add_terms(exact_detail::decode(a), exact_detail::decode(b), rounding, flush);
}

// a * b with one rounding, in integers (SPEC NUM-3.5). The addend -0 leaves a product's sign alone,
// a zero product's included, except that +0 - 0 is -0 when rounding down: hence the sign fix.
ASSAY_HD constexpr F32 exact_mul(F32 a, F32 b, Rounding rounding, bool flush) {
  const F32 product = exact_fma(a, b, F32{0x80000000u}, rounding, flush);
  if (!is_zero(product)) return product;
  return F32{(a.bits ^ b.bits) & 0x80000000u};
}

// a / b with one rounding, in integers: x / 0 is Inf, 0 / 0 and Inf / Inf are NaN (SPEC NUM-3.10).
ASSAY_HD constexpr F32 exact_div(F32 a, F32 b, Rounding rounding, bool flush) {
  if (flush) {
    a = flush_subnormal(a);
    b = flush_subnormal(b);
  }
  const bool negative = is_negative(a) != is_negative(b);
  const F32 zero{negative ? 0x80000000u : 0u};
  if (is_nan(a) || is_nan(b)) return canonical_nan<F32>();
  if (is_infinite(a)) {
    return is_infinite(b) ? canonical_nan<F32>() : F32{zero.bits | Format<F32>::kInfinity};
  }
  if (is_infinite(b)) return zero;
  if (is_zero(b)) {
    return is_zero(a) ? canonical_nan<F32>() : F32{zero.bits | Format<F32>::kInfinity};
  }
  if (is_zero(a)) return zero;
  const exact_detail::Term x = exact_detail::with_leading_bit_47(exact_detail::decode(a));
  const exact_detail::Term y = exact_detail::with_leading_bit_47(exact_detail::decode(b));
  // Both significands lie in [2^47, 2^48), so the quotient has 40 or 41 bits; a remainder becomes
  // one bit below them.
  const exact_detail::Wide dividend = exact_detail::Wide{x.significand} << 40;
  const exact_detail::Wide quotient = dividend / y.significand;
  const bool inexact = quotient * y.significand != dividend;
  return exact_detail::round_to_f32(negative, (quotient << 1) | (inexact ? 1 : 0),
                                    x.exponent - y.exponent - 41, rounding, flush);
}

}  // namespace assay::numerics
