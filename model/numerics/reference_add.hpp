// Sums as a definition, for tests only: the exact sum of two codes as a wide integer, and the code
// nearest to it found by looking at the codes themselves. Slow, and shares nothing with add.hpp,
// exact.hpp or convert.hpp but the field widths. Decides nothing; it states SPEC NUM-3.1 and
// NUM-3.4.
#pragma once

#include <array>
#include <cstdint>

#include "model/numerics/formats.hpp"

namespace assay::numerics::reference {

// A non-negative integer of up to 320 bits: room for every f32 in units of the smallest one, which
// takes 24 + 253 bits, and a few doublings.
struct Natural {
  std::array<std::uint64_t, 5> limb{};  // lowest first

  static Natural shifted(std::uint64_t value, unsigned left) {
    Natural n;
    const unsigned index = left / 64, bits = left % 64;
    n.limb[index] = value << bits;
    if (bits != 0 && index + 1 < n.limb.size()) n.limb[index + 1] = value >> (64 - bits);
    return n;
  }
  friend Natural operator+(const Natural& a, const Natural& b) {
    Natural sum;
    std::uint64_t carry = 0;
    for (std::size_t i = 0; i < a.limb.size(); ++i) {
      const std::uint64_t partial = a.limb[i] + carry;
      const std::uint64_t overflow = partial < carry ? 1 : 0;
      sum.limb[i] = partial + b.limb[i];
      carry = overflow + (sum.limb[i] < partial ? 1 : 0);
    }
    return sum;
  }
  friend Natural operator-(const Natural& a, const Natural& b) {  // a >= b
    Natural difference;
    std::uint64_t borrow = 0;
    for (std::size_t i = 0; i < a.limb.size(); ++i) {
      const std::uint64_t partial = a.limb[i] - b.limb[i];
      const std::uint64_t under = a.limb[i] < b.limb[i] ? 1 : 0;
      difference.limb[i] = partial - borrow;
      borrow = under + (partial < borrow ? 1 : 0);
    }
    return difference;
  }
  friend bool operator<(const Natural& a, const Natural& b) {
    for (std::size_t i = a.limb.size(); i-- > 0;) {
      if (a.limb[i] != b.limb[i]) return a.limb[i] < b.limb[i];
    }
    return false;
  }
  friend bool operator==(const Natural& a, const Natural& b) { return a.limb == b.limb; }
};

// The value of a magnitude code in units of the format's smallest step. The code after the largest
// finite one stands for what it would be if exponents went on: the border beyond which Inf begins
// is half way to it.
template <SignedFormat T>
Natural value_of(std::uint32_t code) {
  constexpr int mantissa_bits = Format<T>::kMantissaBits;
  const std::uint32_t field = code >> mantissa_bits;
  const std::uint64_t fraction = code & ((1u << mantissa_bits) - 1);
  if (field == 0) return Natural::shifted(fraction, 0);
  return Natural::shifted(fraction + (1u << mantissa_bits), field - 1);
}

// The code nearest to `exact`, the even one of two that are equally near.
template <SignedFormat T>
std::uint32_t nearest_code(const Natural& exact) {
  constexpr std::uint32_t beyond = Format<T>::kMaxFinite + 1;
  if (!(exact < value_of<T>(beyond))) return beyond;
  std::uint32_t below = 0, above = beyond;  // value(below) <= exact < value(above)
  while (above - below > 1) {
    const std::uint32_t middle = below + (above - below) / 2;
    (exact < value_of<T>(middle) ? above : below) = middle;
  }
  const Natural twice = exact + exact;
  const Natural border = value_of<T>(below) + value_of<T>(above);
  if (twice == border) return below % 2 == 0 ? below : above;
  return twice < border ? below : above;
}

// a + b rounded to nearest even, in a format with Inf and NaN.
template <SignedFormat T>
T add(T a, T b) {
  using Bits = typename Format<T>::Bits;
  constexpr std::uint32_t sign_mask = Format<T>::kSignMask;
  if (is_nan(a) || is_nan(b)) return canonical_nan<T>();
  if (is_infinite(a) && is_infinite(b)) return a.bits == b.bits ? a : canonical_nan<T>();
  if (is_infinite(a)) return a;
  if (is_infinite(b)) return b;
  const Natural x = value_of<T>(magnitude(a)), y = value_of<T>(magnitude(b));
  Natural exact;
  std::uint32_t sign = 0;
  if (is_negative(a) == is_negative(b)) {
    exact = x + y;
    sign = a.bits & sign_mask;
  } else if (x == y) {
    return T{0};  // exact cancellation is +0
  } else {
    exact = y < x ? x - y : y - x;
    sign = (y < x ? a.bits : b.bits) & sign_mask;
  }
  return T{static_cast<Bits>(sign | nearest_code<T>(exact))};
}

// The flushing add: subnormal operands and results are zeros of the same sign.
inline F32 add_ftz(F32 a, F32 b) {
  const auto flush = [](F32 x) { return is_subnormal(x) ? F32{x.bits & 0x80000000u} : x; };
  return flush(add(flush(a), flush(b)));
}

}  // namespace assay::numerics::reference
