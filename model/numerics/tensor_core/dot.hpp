// One matrix instruction's dot product out of blocks: which products form a block, in which order
// blocks follow each other, and where scales enter. Decides the chain (SPEC NUM-4.5), the lowering
// of mma.sync fp8 on Hopper and data-centre Blackwell (NUM-4.6) and the promotion of partial sums
// (NUM-4.7); a block itself is fdpa.hpp. Compiles for host and device.
#pragma once

#include <cstdint>

#include "model/numerics/add.hpp"
#include "model/numerics/tensor_core/fdpa.hpp"

namespace assay::numerics {

// kFp8ThroughF16: no fp8 unit is used; the compiler widens the operands to fp16 and issues two fp16
// matrix instructions.
enum class Lowering : std::uint8_t { kNative, kFp8ThroughF16 };

// What one instruction computes: `k` products per result, in chained blocks of rule.products.
struct Arithmetic {
  Rule rule;
  int k = 16;
  Lowering lowering = Lowering::kNative;
};

// Scale codes of one row of A and one of B, one byte for every rule.scale_block elements along k.
struct Scales {
  const std::uint8_t* a = nullptr;
  const std::uint8_t* b = nullptr;
};

// A scale's code: ue8m0 is a power of two, 0xFF being NaN. ue4m3 is e4m3 whose sign is not read.
ASSAY_HD ASSAY_ALWAYS_INLINE constexpr Decoded decode_scale(ScaleFormat format, std::uint8_t code) {
  if (format == ScaleFormat::kUe4m3) return decode(OperandFormat::kE4m3, code & 0x7Fu);
  Decoded d;
  d.significand = 1;
  d.exponent = static_cast<int>(code) - 127;
  d.number_class = code == 0xFF ? NumberClass::kNan : NumberClass::kFinite;
  return d;
}

// ST-FDPA: the scales multiply the product. GST-FDPA multiplies a group's sum the same way.
ASSAY_HD ASSAY_ALWAYS_INLINE constexpr Term scaled(const Rule& rule, Term t, std::uint8_t code_a,
                                                   std::uint8_t code_b) {
  const Decoded a = decode_scale(rule.scale, code_a);
  const Decoded b = decode_scale(rule.scale, code_b);
  t.magnitude *= std::uint64_t{a.significand} * b.significand;
  t.exponent += a.exponent + b.exponent;
  if (rule.scale == ScaleFormat::kUe4m3) t.fraction_bits += 6;  // three in each significand
  if (a.significand == 0 || b.significand == 0) t.zero = true;
  if (a.number_class == NumberClass::kNan || b.number_class == NumberClass::kNan)
    t.number_class = NumberClass::kNan;
  return t;
}

// GST-FDPA: rule.group products summed exactly. The group's exponent is that of the scales alone,
// whatever the size of the sum, and it is a zero term only if every product is zero (SPEC NUM-4.3).
template <class ProductAt>
ASSAY_HD ASSAY_ALWAYS_INLINE constexpr Term group_sum(const Rule& rule, int first,
                                                      const ProductAt& product_at) {
  Term group;
  std::int64_t sum = 0;
  group.zero = true;
  for (int i = first; i < first + rule.group; ++i) {
    const Term p = product_at(i);  // fp4: no Inf, no NaN; the smallest exponent is 0
    group.fraction_bits = p.fraction_bits;
    group.zero &= p.zero;
    const std::int64_t value = static_cast<std::int64_t>(p.magnitude << p.exponent);
    sum += p.negative ? -value : value;
  }
  group.negative = sum < 0;
  group.magnitude = static_cast<std::uint64_t>(sum < 0 ? -sum : sum);
  return group;
}

// The blocks of one instruction, lowest k first; a block's rounded result is the next block's c.
// operand_a(i), operand_b(i) give Decoded operands.
template <class OperandA, class OperandB>
ASSAY_HD ASSAY_ALWAYS_INLINE constexpr F32 chained_blocks(const Arithmetic& arithmetic,
                                                          const OperandA& operand_a,
                                                          const OperandB& operand_b, F32 c,
                                                          Scales scales) {
  const Rule& rule = arithmetic.rule;
  const auto product_at = [&](int i) { return product(rule, operand_a(i), operand_b(i)); };
  for (int first = 0; first < arithmetic.k; first += rule.products) {
    if (rule.scale == ScaleFormat::kNone) {
      c = fdpa(
          rule, rule.products, [&](int i) { return product_at(first + i); }, c);
    } else {
      const auto term_at = [&](int i) {
        const int at = first + i * rule.group;
        const Term t = rule.group == 1 ? product_at(at) : group_sum(rule, at, product_at);
        return scaled(rule, t, scales.a[at / rule.scale_block], scales.b[at / rule.scale_block]);
      };
      c = fdpa(rule, rule.products / rule.group, term_at, c);
    }
  }
  return c;
}

// An fp8 operand as the fp16 that the lowering widens it to: a subnormal becomes normal, so it
// aligns like any other number of its size.
ASSAY_HD ASSAY_ALWAYS_INLINE constexpr Decoded widened_to_f16(OperandFormat format,
                                                              std::uint32_t bits) {
  Decoded d = decode(format, bits);
  const int fraction_bits = shape_of(format).fraction_bits;
  d.significand <<= 10 - fraction_bits;
  while (d.significand != 0 && d.significand < (1u << 10) && d.exponent > -14) {
    d.significand <<= 1;
    --d.exponent;
  }
  return d;
}

// Two fp16 instructions from zero, the first over the products whose k mod 4 is 0 or 1, the second
// over the others; c comes last, by an ordinary addition in the destination's type.
template <class T>
ASSAY_HD ASSAY_ALWAYS_INLINE constexpr F32 dot_fp8_through_f16(const Arithmetic& arithmetic,
                                                               const T* a, const T* b, F32 c) {
  Arithmetic half = arithmetic;
  half.rule.a = half.rule.b = OperandFormat::kF16;
  half.k = arithmetic.k / 2;
  F32 sum{0};
  for (int part = 0; part < 2; ++part) {
    const auto index = [=](int i) { return (i / 2) * 4 + part * 2 + i % 2; };
    sum = chained_blocks(
        half, [&](int i) { return widened_to_f16(arithmetic.rule.a, a[index(i)]); },
        [&](int i) { return widened_to_f16(arithmetic.rule.b, b[index(i)]); }, sum, Scales{});
  }
  if (arithmetic.rule.output != OutputFormat::kF16) return add_rn(sum, c, false);
  // Both are fp16 values in fp32, so the fp32 sum is exact enough to round once (SPEC NUM-3.4).
  return widen(cvt_rn_f16_f32(add_rn(sum, c, false)));
}

// One instruction: c + sum of a[i] * b[i], i < arithmetic.k. T is an unsigned integer that holds an
// operand's bits (tf32: the whole fp32 register; 4- and 6-bit formats: one element per byte).
template <class T>
ASSAY_HD ASSAY_ALWAYS_INLINE constexpr F32 instruction_dot(const Arithmetic& arithmetic, const T* a,
                                                           const T* b, F32 c, Scales scales = {}) {
  if (arithmetic.lowering == Lowering::kFp8ThroughF16)
    return dot_fp8_through_f16(arithmetic, a, b, c);
  return chained_blocks(
      arithmetic, [&](int i) { return decode(arithmetic.rule.a, a[i]); },
      [&](int i) { return decode(arithmetic.rule.b, b[i]); }, c, scales);
}

// How long sums are split and joined outside the tensor core (SPEC NUM-4.7). Hopper's fp8 kernels
// keep two levels: after every `interval_k` products the partial sum, started from zero, is added
// to an fp32 register by an ordinary fp32 instruction. 0: one chain, no promotion.
struct Promotion {
  int interval_k = 0;
  bool fused_scale = false;  // FFMA acc = partial * scale + acc instead of FADD
};

ASSAY_HD ASSAY_ALWAYS_INLINE constexpr F32 promote(F32 accumulator, F32 partial,
                                                   const Promotion& promotion,
                                                   F32 scale = F32{0x3F800000u}) {
  return promotion.fused_scale ? fma_rn(partial, scale, accumulator, false)
                               : add_rn(accumulator, partial, false);
}

}  // namespace assay::numerics
