// The exponential that FlashAttention-4 puts beside the special-function unit: 2^x by a degree-3
// polynomial on ordinary multiply-adds, for a share of the elements that is fixed at compile time.
// Decides SPEC NUM-5.7. Which pattern a release uses for which head size is data of its profile.
#pragma once

#include "model/numerics/add.hpp"
#include "model/numerics/exact.hpp"
#include "model/numerics/max_min.hpp"
#include "model/numerics/special/mufu.hpp"

namespace assay::numerics {

// 2^x for x up to 127: split x into integer and fraction by an addition that rounds down, evaluate
// the polynomial on the fraction, add the integer to the exponent field. Arguments of -127 and
// below give +0; between -127 and -126 the exponent field is 0 while the fraction field is not, so
// the bits are a subnormal that is not 2^x. NaN takes the clamp and gives +0.
ASSAY_HD constexpr F32 ex2_polynomial(F32 x) {
  constexpr F32 kSmallest{0xC2FE0000};  // -127
  constexpr F32 kMagic{0x4B400000};     // 2^23 + 2^22: adding it leaves the integer in the low bits
  constexpr F32 kMinusMagic{0xCB400000};
  constexpr F32 kC0{0x3F800000};
  constexpr F32 kC1{0x3F31F519};  // 0.695146143436431884765625
  constexpr F32 kC2{0x3E6906A4};  // 0.227564394474029541015625
  constexpr F32 kC3{0x3D9DF09D};  // 0.077119089663028717041015625
  const F32 clamped = max_of(x, kSmallest);
  const F32 shifted = exact_add(clamped, kMagic, Rounding::kDown, true);
  const F32 whole = add_rn(shifted, kMinusMagic, true);
  const F32 fraction = add_rn(clamped, F32{whole.bits ^ 0x80000000u}, true);
  F32 value = fma_rn(kC3, fraction, kC2, true);
  value = fma_rn(value, fraction, kC1, true);
  value = fma_rn(value, fraction, kC0, true);
  return F32{(shifted.bits << 23) + value.bits};
}

// Which elements of a row take the polynomial. Elements are taken in pairs within fragments of
// `fragment` elements; a pair at position p of its fragment takes it if p mod frequency is one of
// the last `residue` values, unless its fragment is one of the first `start_fragments` or of the
// last `tail_fragments`. frequency 0: none does.
struct PolynomialPattern {
  int frequency = 0;
  int residue = 4;
  int start_fragments = 0;
  int tail_fragments = 1;
  int fragment = 32;
};

ASSAY_HD constexpr bool takes_polynomial(const PolynomialPattern& pattern, int index,
                                         int row_length) {
  if (pattern.frequency == 0) return false;
  const int fragment = index / pattern.fragment;
  const int position = index % pattern.fragment / 2 * 2;
  return position % pattern.frequency >= pattern.frequency - pattern.residue &&
         fragment < row_length / pattern.fragment - pattern.tail_fragments &&
         fragment >= pattern.start_fragments;
}

}  // namespace assay::numerics
