// Number formats as bit patterns. A value of one of these types is its bits: there is no operator
// +, so arithmetic that reaches an output cannot happen by accident. What the bits mean and how
// they round is decided in model/numerics; nothing here decides a value.
#pragma once

#include <cstdint>

#include "model/core/platform.hpp"

namespace assay {

struct F32 {
  std::uint32_t bits;
};
struct F16 {
  std::uint16_t bits;
};
struct Bf16 {
  std::uint16_t bits;
};
struct E4m3 {  // OCP e4m3fn: no Inf, one NaN code per sign
  std::uint8_t bits;
};
struct E5m2 {
  std::uint8_t bits;
};
struct E2m1 {  // the low nibble
  std::uint8_t bits;
};
struct Ue8m0 {  // unsigned power of two, bias 127, 0xFF is NaN
  std::uint8_t bits;
};

template <class T>
concept BitFormat = requires(T x) { x.bits; };

template <BitFormat T>
ASSAY_HD constexpr bool same_bits(T a, T b) {
  return a.bits == b.bits;
}

}  // namespace assay
