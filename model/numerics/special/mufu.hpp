// The special-function unit (MUFU): ex2, rcp, rsqrt and lg2 `.approx.ftz.f32`, each one
// instruction. Piecewise quadratic interpolation in integers with a squarer that loses carries; the
// coefficients are recovered from recorded results (mufu_tables.hpp). Decides SPEC NUM-5.1 to
// NUM-5.5. Compiles for host and device; arrays go faster through special.hpp.
#pragma once

#include <bit>
#include <cstdint>

#include "model/core/bits.hpp"
#include "model/core/leading_zeros.hpp"
#include "model/core/platform.hpp"
#include "model/numerics/formats.hpp"
#include "model/numerics/special/mufu_tables.hpp"

namespace assay::numerics {

// How one function's sum is put together: (A << a_shift) + B * x + c_factor * C * square +
// constant, then cut by `shift` bits. The numbers differ only in where the binary point lies (SPEC
// NUM-5.1).
struct MufuForm {
  int a_shift;
  int c_factor;
  int constant;
  int shift;
};
inline constexpr MufuForm kMufuEx2Form{13, 1, 0x77E2, 15};
inline constexpr MufuForm kMufuRcpForm{13, 1, 0x47E7, 15};
inline constexpr MufuForm kMufuRsqrtForm{14, 4, 0x7FFF, 16};
inline constexpr MufuForm kMufuLg2Form{12, 2, 0x3345, 2};

namespace mufu_detail {

#ifdef __CUDA_ARCH__
#define ASSAY_MUFU_ROW(table, index) table##OnDevice[index]
#else
#define ASSAY_MUFU_ROW(table, index) table[index]
#endif

// The unit's square of a 17-bit number, in units of 2^19: the sum of copies of x shifted right, one
// per set bit, each having lost its low bits. x * x >> 19 would be larger (SPEC NUM-5.2).
ASSAY_HD constexpr std::uint32_t truncated_square(std::uint32_t x) {
  std::uint32_t sum = 0;
  for (int i = 0; i < 17; ++i) sum += ((x >> i) & 1u) ? x >> (18 - i) : 0u;
  return sum >> 1;
}

ASSAY_HD constexpr std::int64_t interpolate(MufuForm form, MufuRow row, std::uint32_t x,
                                            std::uint32_t square) {
  const std::int64_t sum = (std::int64_t{row.a} << form.a_shift) + std::int64_t{row.b} * x +
                           std::int64_t{row.c} * form.c_factor * square + form.constant;
  return sum >> form.shift;
}

ASSAY_HD constexpr F32 infinity(std::uint32_t sign) { return F32{sign | 0x7F800000u}; }

}  // namespace mufu_detail

// 2^x. The argument becomes sign and 7.23 fixed point, cut toward zero; the integer part is the
// result's exponent, the fraction selects the significand. A negative argument takes the one's
// complement of the fixed-point number, and its negative only if the fraction is zero: results of
// negative arguments are biased low (SPEC NUM-5.3).
ASSAY_HD constexpr F32 ex2_approx_ftz(F32 x) {
  if (is_nan(x)) return canonical_nan<F32>();
  const std::uint32_t m = magnitude(x);
  if (m >= 0x43000000u) return is_negative(x) ? F32{0} : mufu_detail::infinity(0);  // |x| >= 128
  const int exponent = static_cast<int>(m >> 23) - 127;
  const std::uint32_t significand = (m & 0x7FFFFFu) | 0x800000u;
  std::uint32_t fixed = 0;  // zeros and subnormals stay here
  if (exponent >= 0)
    fixed = significand << exponent;
  else if (exponent > -24 && m >= 0x00800000u)
    fixed = significand >> -exponent;
  if (is_negative(x)) fixed = (fixed & 0x7FFFFFu) != 0 ? ~fixed : 0u - fixed;
  const int result_exponent = (static_cast<std::int32_t>(fixed) >> 23) + 127;
  if (result_exponent <= 0) return F32{0};
  const std::uint32_t low = fixed & 0x1FFFFu;
  const MufuRow row = ASSAY_MUFU_ROW(kMufuEx2, fixed >> 17 & 63u);
  const std::int64_t result =
      mufu_detail::interpolate(kMufuEx2Form, row, low, mufu_detail::truncated_square(low));
  // The significand's leading one adds the 1 that the exponent field below lacks.
  return F32{(static_cast<std::uint32_t>(result_exponent - 1) << 23) +
             static_cast<std::uint32_t>(result)};
}

// 1 / x. The exponent is mirrored; the significand's reciprocal lies in (1/2, 1] (SPEC NUM-5.4).
ASSAY_HD constexpr F32 rcp_approx_ftz(F32 x) {
  if (is_nan(x)) return canonical_nan<F32>();
  const std::uint32_t sign = x.bits & 0x80000000u;
  const std::uint32_t m = magnitude(x);
  if (m < 0x00800000u) return mufu_detail::infinity(sign);
  if (m == 0x7F800000u) return F32{sign};
  const std::uint32_t low = m & 0xFFFFu;
  const MufuRow row = ASSAY_MUFU_ROW(kMufuRcp, m >> 16 & 127u);
  const std::int64_t result =
      mufu_detail::interpolate(kMufuRcpForm, row, low, mufu_detail::truncated_square(2 * low));
  // 2^24 (only from a power of two) carries into the exponent.
  const std::int64_t bits = ((252 - static_cast<std::int64_t>(m >> 23)) << 23) + result;
  return F32{sign | (bits < 0x00800000 ? 0u : static_cast<std::uint32_t>(bits))};
}

// 1 / sqrt(x). The parity of the exponent selects one of two halves of the table; an exact even
// power of two does not go through it (SPEC NUM-5.4).
ASSAY_HD constexpr F32 rsqrt_approx_ftz(F32 x) {
  if (is_nan(x)) return canonical_nan<F32>();
  const std::uint32_t sign = x.bits & 0x80000000u;
  const std::uint32_t m = magnitude(x);
  if (m < 0x00800000u) return mufu_detail::infinity(sign);
  if (sign != 0) return canonical_nan<F32>();
  if (m == 0x7F800000u) return F32{0};
  const int exponent = static_cast<int>(m >> 23) - 127;
  const std::uint32_t odd = static_cast<std::uint32_t>(exponent) & 1u;
  const int half = (exponent - static_cast<int>(odd)) / 2;
  if (odd == 0 && (m & 0x7FFFFFu) == 0) return F32{static_cast<std::uint32_t>(127 - half) << 23};
  const std::uint32_t low = m & 0x1FFFFu;
  const MufuRow row = ASSAY_MUFU_ROW(kMufuRsqrt, odd << 6 | (m >> 17 & 63u));
  const std::int64_t result =
      mufu_detail::interpolate(kMufuRsqrtForm, row, low, mufu_detail::truncated_square(low));
  return F32{(static_cast<std::uint32_t>(125 - half) << 23) + static_cast<std::uint32_t>(result)};
}

// log2(x). The exponent is added to a 36-bit fraction as fixed point; a negative total is replaced
// by its one's complement with a sign, and 24 bits are kept from the leading one on, so that log2
// of 1/2 is not -1 but the number next to it (SPEC NUM-5.5).
ASSAY_HD constexpr F32 lg2_approx_ftz(F32 x) {
  if (is_nan(x)) return canonical_nan<F32>();
  const std::uint32_t m = magnitude(x);
  if (m < 0x00800000u) return mufu_detail::infinity(0x80000000u);
  if (is_negative(x)) return canonical_nan<F32>();
  if (m == 0x7F800000u) return mufu_detail::infinity(0);
  if (m == 0x3F800000u) return F32{0};
  const std::uint32_t low = m & 0x1FFFFu;
  const MufuRow row = ASSAY_MUFU_ROW(kMufuLg2, m >> 17 & 63u);
  const std::int64_t fraction =
      mufu_detail::interpolate(kMufuLg2Form, row, low, mufu_detail::truncated_square(low));
  const std::int64_t total =
      (static_cast<std::int64_t>(m >> 23) - 127) * (std::int64_t{1} << 36) + fraction;
  const std::uint32_t sign = total < 0 ? 0x80000000u : 0u;
  const std::uint64_t kept = static_cast<std::uint64_t>(total < 0 ? ~total : total);
  const int leading = 63 - leading_zeros(kept);  // kept is never zero: see the test
  const std::uint64_t significand = leading >= 23 ? kept >> (leading - 23) : kept << (23 - leading);
  return F32{sign | ((static_cast<std::uint32_t>(leading - 36 + 126) << 23) +
                     static_cast<std::uint32_t>(significand))};
}

// tanh(x), odd. Below 2^-8 it is the argument and from 8 on it is 1. Between, each binade has its
// own number of segments, 17 bits of the argument below the segment's count, the sum is exact in
// units of 2^-41 and has no rounding constant; 24 bits are kept from the leading one on (SPEC
// NUM-5.9).
ASSAY_HD constexpr F32 tanh_approx(F32 x) {
  if (is_nan(x)) return canonical_nan<F32>();
  const std::uint32_t sign = x.bits & 0x80000000u;
  const std::uint32_t m = magnitude(x);
  if (m < 0x3B800000u) return x;
  if (m >= 0x41000000u) return F32{sign | 0x3F800000u};
  const int binade = static_cast<int>(m >> 23) - 119;  // 0 for [2^-8, 2^-7)
  // One hexadecimal digit per binade: log2 of its number of segments.
  const int segments_log2 = static_cast<int>(0x34322211000ull >> (4 * binade) & 15u);
  // The segments of all binades below it: 1, 1, 1, 2, 2, 4, 4, 4, 8, 16.
  int first = binade;
  if (binade > 3) first = binade * 2 - 3;
  if (binade > 5) first = 7 + (binade - 5) * 4;
  if (binade > 8) first = binade == 9 ? 27 : 43;
  const std::uint32_t segment = m >> (23 - segments_log2) & ((1u << segments_log2) - 1u);
  const std::uint32_t low = m >> (6 - segments_log2) & 0x1FFFFu;
  const MufuRow row = ASSAY_MUFU_ROW(kMufuTanh, static_cast<std::uint32_t>(first) + segment);
  const std::int64_t sum = (std::int64_t{row.a} << 15) + std::int64_t{row.b} * low +
                           std::int64_t{row.c} * mufu_detail::truncated_square(low);
  const int leading = 63 - leading_zeros(static_cast<std::uint64_t>(sum));
  return F32{sign | ((static_cast<std::uint32_t>(leading - 41 + 126) << 23) +
                     static_cast<std::uint32_t>(sum >> (leading - 23)))};
}

}  // namespace assay::numerics
