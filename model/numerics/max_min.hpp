// max and min of single values, with the bits of max.f32, max.f16, max.bf16 and their .NaN forms.
// Decides SPEC NUM-3.7.
#pragma once

#include <cstdint>

#include "model/core/platform.hpp"
#include "model/numerics/formats.hpp"

namespace assay::numerics {

// kDrop: a NaN operand counts as absent, two of them give the canonical NaN. kPropagate (PTX's
// .NaN): any NaN operand gives the canonical NaN.
enum class NanRule : std::uint8_t { kDrop, kPropagate };

namespace max_min_detail {

// Orders all numbers of a format, -0 below +0.
template <SignedFormat T>
ASSAY_HD constexpr std::int64_t order_key(T x) {
  const auto m = static_cast<std::int64_t>(magnitude(x));
  return is_negative(x) ? -m - 1 : m;
}

template <SignedFormat T>
ASSAY_HD constexpr T pick(T a, T b, bool want_larger, NanRule rule) {
  if (is_nan(a) || is_nan(b)) {
    if (rule == NanRule::kPropagate || (is_nan(a) && is_nan(b))) return canonical_nan<T>();
    return is_nan(a) ? b : a;
  }
  return (order_key(a) > order_key(b)) == want_larger ? a : b;
}

}  // namespace max_min_detail

template <SignedFormat T>
ASSAY_HD constexpr T max_of(T a, T b, NanRule rule = NanRule::kDrop) {
  return max_min_detail::pick(a, b, true, rule);
}
template <SignedFormat T>
ASSAY_HD constexpr T min_of(T a, T b, NanRule rule = NanRule::kDrop) {
  return max_min_detail::pick(a, b, false, rule);
}

// The .ftz forms of f32: subnormal operands count, and are returned, as zeros of the same sign.
ASSAY_HD constexpr F32 max_ftz(F32 a, F32 b, NanRule rule = NanRule::kDrop) {
  return max_of(flush_subnormal(a), flush_subnormal(b), rule);
}
ASSAY_HD constexpr F32 min_ftz(F32 a, F32 b, NanRule rule = NanRule::kDrop) {
  return min_of(flush_subnormal(a), flush_subnormal(b), rule);
}

// The sign bit cleared, of NaN too.
template <SignedFormat T>
ASSAY_HD constexpr T absolute(T x) {
  return T{static_cast<typename Format<T>::Bits>(magnitude(x))};
}

}  // namespace assay::numerics
