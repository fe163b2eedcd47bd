// What one tensor-core block computes, in integers: the fused dot product and add (FDPA). A Rule
// holds every number that differs between instructions; the algorithm is the same for all of them.
//   T-FDPA    c and L products, one alignment, one truncation, one final rounding
//   ST-FDPA   the same, with two power-of-two scales added to every product's exponent
//   GST-FDPA  products summed exactly in groups, each group scaled, then aligned like a product
// This file decides no instruction's numbers (instructions.cpp) and no order of blocks
// (tensor_core.hpp). It compiles for host and device: the probe runs this text on the GPU.
#pragma once

#include <bit>
#include <cstdint>

#include "model/core/bits.hpp"
#include "model/core/leading_zeros.hpp"
#include "model/core/platform.hpp"
#include "model/numerics/add.hpp"

namespace assay::numerics {

enum class OperandFormat : std::uint8_t { kF16, kBf16, kTf32, kE4m3, kE5m2, kE3m2, kE2m3, kE2m1 };
enum class ScaleFormat : std::uint8_t { kNone, kUe8m0, kUe4m3 };
// The destination. kE8m13 is Hopper's and Ada's fp8 accumulator: an fp32 whose low 10 bits are
// zero.
enum class OutputFormat : std::uint8_t { kF32, kE8m13, kF16 };

// One block's arithmetic (SPEC NUM-4.1). Every number is measured or has a published source, which
// the table in instructions.cpp names. The last three fields are at their defaults on all known
// hardware; they exist so that a check can say which other rule a wrong result fits, and so that a
// test can show the vectors tell the rules apart.
struct Rule {
  OperandFormat a = OperandFormat::kF16;
  OperandFormat b = OperandFormat::kF16;
  OutputFormat output = OutputFormat::kF32;
  int products = 16;         // L: products that share one alignment
  int fraction_bits = 25;    // F: bits kept below the largest exponent
  int zero_exponent = -133;  // e_zero: the exponent that a zero term counts with
  ScaleFormat scale = ScaleFormat::kNone;
  int scale_block = 0;  // elements along k that share a scale
  int group = 1;        // products summed exactly before scaling (GST-FDPA: 16)
  Rounding rounding = Rounding::kTowardZero;  // of the result; fp16 results: kNearestEven
  bool floor_alignment = false;        // two's complement shift instead of cutting the magnitude
  bool renormalised_products = false;  // a product of 2 or more would raise the alignment
  bool late_c = false;                 // c added afterwards by an ordinary fp32 addition
};

inline constexpr F32 kMmaNan{0x7FFFFFFFu};  // every NaN result of a tensor core, fp16's is widened
inline constexpr std::uint32_t kInfinityBits = 0x7F800000u;

enum class NumberClass : std::uint8_t { kFinite, kInfinity, kNan };

// (-1)^negative * significand * 2^(exponent - fraction bits of the format). Not normalised: a
// subnormal keeps the format's smallest exponent and a significand below 1 (SPEC NUM-4.2).
struct Decoded {
  std::uint32_t significand = 0;
  std::int32_t exponent = 0;
  bool negative = false;
  NumberClass number_class = NumberClass::kFinite;
};

// A summand of a block: (-1)^negative * magnitude * 2^(exponent - fraction_bits).
struct Term {
  std::uint64_t magnitude = 0;
  std::int32_t exponent = 0;
  std::int32_t fraction_bits = 0;
  bool negative = false;
  bool zero = false;  // counts with e_zero. A group whose products cancel is 0 but not a zero term
  NumberClass number_class = NumberClass::kFinite;
};

struct FormatShape {
  int exponent_bits;
  int fraction_bits;
  int bias;
  bool infinity;    // the top exponent means Inf and NaN, as in IEEE 754
  bool single_nan;  // e4m3: only all ones is NaN
};

ASSAY_HD ASSAY_ALWAYS_INLINE constexpr FormatShape shape_of(OperandFormat format) {
  switch (format) {
    case OperandFormat::kF16:
      return {5, 10, 15, true, false};
    case OperandFormat::kBf16:
      return {8, 7, 127, true, false};
    case OperandFormat::kTf32:
      return {8, 10, 127, true, false};
    case OperandFormat::kE4m3:
      return {4, 3, 7, false, true};
    case OperandFormat::kE5m2:
      return {5, 2, 15, true, false};
    case OperandFormat::kE3m2:
      return {3, 2, 3, false, false};
    case OperandFormat::kE2m3:
      return {2, 3, 1, false, false};
    case OperandFormat::kE2m1:
      return {2, 1, 1, false, false};
  }
  return {0, 0, 0, false, false};
}

ASSAY_HD ASSAY_ALWAYS_INLINE constexpr Decoded decode(FormatShape shape, std::uint32_t bits) {
  const std::uint32_t fraction = bits & ((1u << shape.fraction_bits) - 1);
  const std::uint32_t top = (1u << shape.exponent_bits) - 1;
  const std::uint32_t biased = (bits >> shape.fraction_bits) & top;
  Decoded d;
  d.negative = ((bits >> (shape.fraction_bits + shape.exponent_bits)) & 1) != 0;
  if (shape.infinity && biased == top)
    d.number_class = fraction ? NumberClass::kNan : NumberClass::kInfinity;
  if (shape.single_nan && biased == top && fraction + 1 == (1u << shape.fraction_bits))
    d.number_class = NumberClass::kNan;
  d.significand = biased ? fraction | (1u << shape.fraction_bits) : fraction;
  d.exponent = (biased ? static_cast<int>(biased) : 1) - shape.bias;
  return d;
}

// tf32 operands are fp32 registers of which the low 13 bits are not read: truncation, and a NaN
// whose payload lies only there is an Inf (SPEC NUM-4.2).
ASSAY_HD ASSAY_ALWAYS_INLINE constexpr Decoded decode(OperandFormat format, std::uint32_t bits) {
  return decode(shape_of(format), format == OperandFormat::kTf32 ? bits >> 13 : bits);
}

// Product of two operands: significands multiplied exactly, exponents added, not renormalised.
ASSAY_HD ASSAY_ALWAYS_INLINE constexpr Term product(const Rule& rule, const Decoded& a,
                                                    const Decoded& b) {
  Term t;
  t.magnitude = std::uint64_t{a.significand} * b.significand;
  t.exponent = a.exponent + b.exponent;
  t.fraction_bits = shape_of(rule.a).fraction_bits + shape_of(rule.b).fraction_bits;
  t.negative = a.negative != b.negative;
  t.zero = t.magnitude == 0;
  if (rule.renormalised_products && (t.magnitude >> (t.fraction_bits + 1)) != 0) {
    ++t.exponent;
    ++t.fraction_bits;
  }
  const bool a_special = a.number_class != NumberClass::kFinite;
  const bool b_special = b.number_class != NumberClass::kFinite;
  if (a_special || b_special) {
    // Inf times zero has no value; an Inf's significand is never zero, so the test is on the other.
    const bool nan = a.number_class == NumberClass::kNan || b.number_class == NumberClass::kNan ||
                     (!a_special && a.significand == 0) || (!b_special && b.significand == 0);
    t.number_class = nan ? NumberClass::kNan : NumberClass::kInfinity;
  }
  return t;
}

// The accumulator input. An fp16 accumulator travels widened to fp32 but is read as fp16: a
// subnormal counts with exponent -14, not with that of its widened form.
ASSAY_HD ASSAY_ALWAYS_INLINE constexpr Term accumulator(const Rule& rule, F32 c) {
  const Decoded d = decode(FormatShape{8, 23, 127, true, false}, c.bits);
  Term t{d.significand, d.exponent, 23, d.negative, d.significand == 0, d.number_class};
  if (rule.output == OutputFormat::kF16 && d.number_class == NumberClass::kFinite &&
      d.exponent < -14) {
    const int distance = -14 - d.exponent;
    t.magnitude = distance < 24 ? t.magnitude >> distance : 0;
    t.exponent = -14;
  }
  return t;
}

// Shifts a term to `fraction_bits` below `alignment` and cuts the rest off.
ASSAY_HD ASSAY_ALWAYS_INLINE constexpr std::int64_t aligned(const Rule& rule, const Term& t,
                                                            int alignment) {
  const int right = (alignment - t.exponent) - (rule.fraction_bits - t.fraction_bits);
  std::uint64_t kept = 0;
  bool lost = false;
  if (right <= 0) {
    // A zero's own exponent may lie far above the alignment: the mask only keeps the shift defined.
    kept = t.magnitude << (-right & 63);
  } else if (right < 64) {
    kept = t.magnitude >> right;
    lost = (kept << right) != t.magnitude;
  } else {
    lost = t.magnitude != 0;
  }
  if (rule.floor_alignment && t.negative && lost) ++kept;
  const std::int64_t value = static_cast<std::int64_t>(kept);
  return t.negative ? -value : value;
}

// sum * 2^unit_exponent, rounded once to the rule's output (an fp16 result is widened to fp32).
// Overflow gives Inf even where rounding is toward zero, and a zero is +0 always, also when a
// negative sum rounds to it (SPEC NUM-4.4).
ASSAY_HD ASSAY_ALWAYS_INLINE constexpr F32 round_to_output(const Rule& rule, std::int64_t sum,
                                                           int unit_exponent) {
  if (sum == 0) return F32{0};
  const std::uint32_t sign = sum < 0 ? 0x80000000u : 0;
  std::uint64_t magnitude = static_cast<std::uint64_t>(sum < 0 ? -sum : sum);
  const int precision = rule.output == OutputFormat::kF32     ? 24
                        : rule.output == OutputFormat::kE8m13 ? 14
                                                              : 11;
  const int smallest = rule.output == OutputFormat::kF16 ? -14 : -126;
  const int largest = rule.output == OutputFormat::kF16 ? 15 : 127;
  const bool nearest = rule.rounding == Rounding::kNearestEven;

  int exponent = 63 - leading_zeros(magnitude) + unit_exponent;
  if (exponent < smallest) exponent = smallest;
  // The result is a multiple of the quantum 2^(exponent - precision + 1).
  const int right = exponent - precision + 1 - unit_exponent;
  if (right > 63) return F32{0};
  std::uint64_t significand = right <= 0 ? magnitude << -right : magnitude >> right;
  if (nearest && right > 0) {
    const std::uint64_t rest = magnitude - (significand << right);
    const std::uint64_t half = std::uint64_t{1} << (right - 1);
    if (rest > half || (rest == half && (significand & 1))) ++significand;
  }
  if (significand >> precision) {  // rounded up to the next power of two
    significand >>= 1;
    ++exponent;
  }
  if (significand == 0) return F32{0};
  if (exponent > largest) return F32{sign | kInfinityBits};
  // Encode in fp32: normalise (an fp16 subnormal is an fp32 normal), then place the fields.
  significand <<= 24 - precision;
  while (exponent > -126 && (significand >> 23) == 0) {
    significand <<= 1;
    --exponent;
  }
  const std::uint32_t biased = (significand >> 23) ? static_cast<std::uint32_t>(exponent + 127) : 0;
  return F32{sign | (biased << 23) | (static_cast<std::uint32_t>(significand) & 0x7FFFFFu)};
}

// One block: c plus `count` terms, term_at(i) being a Term. `count` is L, or L / group in GST-FDPA.
template <class TermAt>
ASSAY_HD ASSAY_ALWAYS_INLINE constexpr F32 fdpa(const Rule& rule, int count, const TermAt& term_at,
                                                F32 c_bits) {
  const Term c = accumulator(rule, rule.late_c ? F32{0} : c_bits);
  int alignment = c.zero ? rule.zero_exponent : c.exponent;
  bool nan = c.number_class == NumberClass::kNan;
  bool plus_infinity = c.number_class == NumberClass::kInfinity && !c.negative;
  bool minus_infinity = c.number_class == NumberClass::kInfinity && c.negative;
  for (int i = 0; i < count; ++i) {
    const Term t = term_at(i);
    const int exponent = t.zero ? rule.zero_exponent : t.exponent;
    if (exponent > alignment) alignment = exponent;
    nan |= t.number_class == NumberClass::kNan;
    plus_infinity |= t.number_class == NumberClass::kInfinity && !t.negative;
    minus_infinity |= t.number_class == NumberClass::kInfinity && t.negative;
  }
  if (nan || (plus_infinity && minus_infinity)) return kMmaNan;
  if (plus_infinity || minus_infinity)
    return F32{minus_infinity ? kInfinityBits | 0x80000000u : kInfinityBits};
  std::int64_t sum = aligned(rule, c, alignment);
  for (int i = 0; i < count; ++i) sum += aligned(rule, term_at(i), alignment);
  const F32 rounded = round_to_output(rule, sum, alignment - rule.fraction_bits);
  return rule.late_c ? add_rn(rounded, c_bits, false) : rounded;
}

}  // namespace assay::numerics
