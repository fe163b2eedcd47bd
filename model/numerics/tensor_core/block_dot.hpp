// A block of a matrix instruction in 32-bit integers, for device code: the bits of fdpa.hpp at a
// few operations a product, on operands that are decoded once and used often. Decides nothing: what
// it cannot do (Inf, NaN, results beyond the normal numbers, sums of very small terms) it hands to
// fdpa(), and tests hold it to that (SPEC NUM-4.12). Compiles for host and device; the host's fast
// route is mma_simd.hpp.
//
//   Per product: magnitudes multiplied, shifted right by the distance of its exponent from the
//   block's alignment, added with its sign. The left shift that F bits need is in a's magnitude.
#pragma once

#include <cstdint>

#include "model/core/leading_zeros.hpp"
#include "model/core/platform.hpp"
#include "model/numerics/tensor_core/dot.hpp"

namespace assay::numerics {

// An operand as a block reads it. 16 bytes, so that one load fetches it.
struct alignas(16) BlockOperand {
  std::int32_t exponent = 0;
  std::uint32_t magnitude = 0;
  std::uint32_t sign = 0;  // all ones if negative
  std::uint32_t unused = 0;
};

namespace block_dot_detail {

// Exponents of operands that are not ordinary numbers: with a special one any sum is above
// kHighest, with a zero and no special below kLowest; sums of ordinary ones lie between.
inline constexpr std::int32_t kSpecial = 16000;
inline constexpr std::int32_t kZero = -5000;
inline constexpr std::int32_t kHighest = 5000;
inline constexpr std::int32_t kLowest = -4000;

// x >> distance, 0 from 32 on; distance is not negative.
ASSAY_HD ASSAY_ALWAYS_INLINE constexpr std::uint32_t shifted_right(std::uint32_t x, int distance) {
#ifdef __CUDA_ARCH__
  return __funnelshift_rc(x, 0u, static_cast<std::uint32_t>(distance));
#else
  return distance > 31 ? 0u : x >> distance;
#endif
}

ASSAY_HD ASSAY_ALWAYS_INLINE constexpr int larger(int a, int b) { return a < b ? b : a; }

ASSAY_HD ASSAY_ALWAYS_INLINE constexpr int leading_zeros_32(std::uint32_t x) {
  return leading_zeros(x) - 32;
}

}  // namespace block_dot_detail

// Whether block_dot() has the rule: one kind of block in plain f32 or e8m13, toward zero.
ASSAY_HD constexpr bool has_block_dot(const Arithmetic& arithmetic) {
  const Rule& rule = arithmetic.rule;
  if (arithmetic.lowering != Lowering::kNative || rule.scale != ScaleFormat::kNone) return false;
  if (rule.floor_alignment || rule.renormalised_products || rule.late_c || rule.group != 1)
    return false;
  if (rule.output == OutputFormat::kF16 || rule.rounding != Rounding::kTowardZero) return false;
  // An aligned product is below 4 * 2^F; 16 of them fit 31 bits because significands are below 2.
  const int fraction = shape_of(rule.a).fraction_bits + shape_of(rule.b).fraction_bits;
  return rule.a != OperandFormat::kTf32 && rule.fraction_bits <= 25 &&
         rule.fraction_bits >= fraction &&
         (rule.products == 8 || rule.products == 16 || rule.products == 32);
}

// a's operands carry the left shift, b's do not.
ASSAY_HD ASSAY_ALWAYS_INLINE constexpr BlockOperand block_operand(const Rule& rule, bool is_a,
                                                                  std::uint32_t bits) {
  const Decoded d = decode(is_a ? rule.a : rule.b, bits);
  const int fraction = shape_of(rule.a).fraction_bits + shape_of(rule.b).fraction_bits;
  BlockOperand x;
  x.magnitude = is_a ? d.significand << (rule.fraction_bits - fraction) : d.significand;
  x.exponent = d.significand == 0 ? block_dot_detail::kZero : d.exponent;
  if (d.number_class != NumberClass::kFinite) x.exponent = block_dot_detail::kSpecial;
  x.sign = d.negative ? ~0u : 0u;
  return x;
}

// What block_dot() gives: the result, or that fdpa() must give it.
struct BlockResult {
  F32 value{0};
  bool known = false;
};

// c + the kProducts products a[i] * b[i]; kProducts is rule.products.
template <int kProducts>
ASSAY_HD ASSAY_ALWAYS_INLINE constexpr BlockResult block_dot(const Rule& rule,
                                                             const BlockOperand* a,
                                                             const BlockOperand* b, F32 c) {
  using namespace block_dot_detail;
  int largest = 2 * kZero;
  ASSAY_UNROLL
  for (int i = 0; i < kProducts; ++i) largest = larger(largest, a[i].exponent + b[i].exponent);
  const std::uint32_t c_bits = c.bits & 0x7FFFFFFFu;
  const int field = static_cast<int>(c_bits >> 23);
  const int c_exponent = c_bits == 0 ? 2 * kZero : larger(field, 1) - 127;
  const int alignment = larger(largest, c_exponent);
  if (largest < kLowest && c_bits == 0) return {F32{0}, true};  // every product has a zero factor
  // Above e_zero, zero terms do not matter to the alignment.
  if (alignment > kHighest || field == 255 || alignment <= rule.zero_exponent) return {};

  // Sixteen products at a time stay within 31 bits and a sign.
  std::int64_t sum = 0;
  ASSAY_UNROLL
  for (int first = 0; first < kProducts; first += 16) {
    std::uint32_t part = 0;
    ASSAY_UNROLL
    for (int i = first; i < first + (kProducts < 16 ? kProducts : 16); ++i) {
      const std::uint32_t sign = a[i].sign ^ b[i].sign;
      const int distance = alignment - a[i].exponent - b[i].exponent;
      const std::uint32_t kept = shifted_right(a[i].magnitude * b[i].magnitude, distance);
      part += (kept ^ sign) - sign;
    }
    sum += static_cast<std::int32_t>(part);
  }
  // c has 23 fraction bits: seven more make 30, from which F are kept.
  const std::uint32_t c_significand = (c_bits & 0x7FFFFFu) | (field != 0 ? 0x800000u : 0u);
  const std::uint32_t c_kept =
      shifted_right(c_significand << 7, alignment - c_exponent + 30 - rule.fraction_bits);
  sum += (c.bits >> 31) != 0 ? -std::int64_t{c_kept} : std::int64_t{c_kept};

  if (sum == 0) return {F32{0}, true};
  const std::uint64_t wide = static_cast<std::uint64_t>(sum < 0 ? -sum : sum);
  const auto magnitude = static_cast<std::uint32_t>(wide);
  const int zeros = leading_zeros_32(magnitude);
  const int exponent = 31 - zeros + alignment - rule.fraction_bits;
  if ((wide >> 32) != 0 || exponent < -126 || exponent > 127) return {};
  const std::uint32_t cut = rule.output == OutputFormat::kF32 ? 0xFFFFFFFFu : 0xFFFFFC00u;
  const std::uint32_t significand = ((magnitude << zeros) >> 8) & cut;
  return {F32{(sum < 0 ? 0x80000000u : 0u) | (static_cast<std::uint32_t>(exponent + 127) << 23) |
              (significand & 0x7FFFFFu)},
          true};
}

// The same block by fdpa(), for whatever block_dot() does not know. T holds operand bits.
template <class T>
ASSAY_HD constexpr F32 exact_block(const Rule& rule, const T* a, const T* b, F32 c) {
  return fdpa(
      rule, rule.products,
      [&](int i) { return product(rule, decode(rule.a, a[i]), decode(rule.b, b[i])); }, c);
}

}  // namespace assay::numerics
