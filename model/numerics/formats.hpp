// What the bits of each number format mean: field widths, largest finite value, Inf and NaN codes.
// Decides SPEC NUM-1.1. Does not decide how values move between formats (convert.hpp) or how they
// are added (add.hpp).
#pragma once

#include <bit>
#include <cstdint>

#include "model/core/bits.hpp"
#include "model/core/platform.hpp"

namespace assay::numerics {

// The description of one signed format with `ExponentBits` and `MantissaBits` below the sign. A
// "magnitude" is a code without its sign bit. The derived constants are IEEE 754's; formats that
// deviate (e4m3, e2m1) override them below.
template <class BitsT, int ExponentBits, int MantissaBits>
struct IeeeFormat {
  using Bits = BitsT;
  static constexpr int kExponentBits = ExponentBits;
  static constexpr int kMantissaBits = MantissaBits;
  static constexpr int kBias = (1 << (ExponentBits - 1)) - 1;
  static constexpr std::uint32_t kSignMask = 1u << (ExponentBits + MantissaBits);
  static constexpr std::uint32_t kMagnitudeMask = kSignMask - 1;
  static constexpr bool kHasInfinity = true;
  static constexpr bool kHasNan = true;
  static constexpr std::uint32_t kInfinity = ((1u << ExponentBits) - 1) << MantissaBits;
  static constexpr std::uint32_t kMaxFinite = kInfinity - 1;
  static constexpr std::uint32_t kMinNormal = 1u << MantissaBits;
  // What hardware produces when it has to make a NaN: positive, all ones (SPEC NUM-0.3).
  static constexpr std::uint32_t kNan = kMagnitudeMask;
};

template <class T>
struct Format;

template <>
struct Format<F32> : IeeeFormat<std::uint32_t, 8, 23> {};
template <>
struct Format<F16> : IeeeFormat<std::uint16_t, 5, 10> {};
template <>
struct Format<Bf16> : IeeeFormat<std::uint16_t, 8, 7> {};
template <>
struct Format<E5m2> : IeeeFormat<std::uint8_t, 5, 2> {};
template <>
struct Format<E4m3> : IeeeFormat<std::uint8_t, 4, 3> {
  static constexpr bool kHasInfinity = false;
  static constexpr std::uint32_t kMaxFinite = 0x7E;  // 448; 0x7F is the only NaN magnitude
};
template <>
struct Format<E2m1> : IeeeFormat<std::uint8_t, 2, 1> {
  static constexpr bool kHasInfinity = false;
  static constexpr bool kHasNan = false;
  static constexpr std::uint32_t kMaxFinite = 0x7;  // 6
};

// Ue8m0 has no sign and no mantissa: code c is 2^(c - 127), and 0xFF is NaN.
inline constexpr std::uint8_t kUe8m0Nan = 0xFF;
inline constexpr std::uint8_t kUe8m0Max = 0xFE;

// The formats with a sign, that is every format but Ue8m0.
template <class T>
concept SignedFormat = requires {
  Format<T>::kMaxFinite;
};

template <SignedFormat T>
ASSAY_HD constexpr std::uint32_t magnitude(T x) {
  return x.bits & Format<T>::kMagnitudeMask;
}

template <SignedFormat T>
ASSAY_HD constexpr bool is_negative(T x) {
  return (x.bits & Format<T>::kSignMask) != 0;
}

template <SignedFormat T>
ASSAY_HD constexpr bool is_nan(T x) {
  if constexpr (Format<T>::kHasNan) {
    constexpr std::uint32_t last_number =
        Format<T>::kHasInfinity ? Format<T>::kInfinity : Format<T>::kMaxFinite;
    return magnitude(x) > last_number;
  } else {
    return false;
  }
}
ASSAY_HD constexpr bool is_nan(Ue8m0 x) { return x.bits == kUe8m0Nan; }

template <SignedFormat T>
ASSAY_HD constexpr bool is_infinite(T x) {
  return Format<T>::kHasInfinity && magnitude(x) == Format<T>::kInfinity;
}

template <SignedFormat T>
ASSAY_HD constexpr bool is_zero(T x) {
  return magnitude(x) == 0;
}

template <SignedFormat T>
ASSAY_HD constexpr bool is_subnormal(T x) {
  return magnitude(x) != 0 && magnitude(x) < Format<T>::kMinNormal;
}

// The NaN that arithmetic and conversions produce: 0x7FFFFFFF, 0x7FFF or 0x7F (SPEC NUM-0.3).
template <SignedFormat T>
requires(Format<T>::kHasNan) ASSAY_HD constexpr T canonical_nan() {
  return T{static_cast<typename Format<T>::Bits>(Format<T>::kNan)};
}

// Subnormals become a zero of the same sign; everything else stays (SPEC NUM-3.2).
ASSAY_HD constexpr F32 flush_subnormal(F32 x) {
  return magnitude(x) < Format<F32>::kMinNormal ? F32{x.bits & Format<F32>::kSignMask} : x;
}

// Host values enter and leave the model only through these two.
ASSAY_HD constexpr F32 from_float(float x) { return F32{std::bit_cast<std::uint32_t>(x)}; }
ASSAY_HD constexpr float to_float(F32 x) { return std::bit_cast<float>(x.bits); }

}  // namespace assay::numerics
