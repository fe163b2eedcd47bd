// One function per scale rule. Each follows the order of operations of its source, because the
// order is what fixes the bits; SPEC NUM-6.4 to NUM-6.9 state them in words.
#include "model/numerics/quantize/block_scale.hpp"

#include <algorithm>
#include <bit>

#include "model/core/contract.hpp"
#include "model/numerics/max_min.hpp"
#include "model/numerics/numerics.hpp"
#include "model/numerics/special/mufu.hpp"

namespace assay::numerics::quantize {

namespace {

constexpr F32 kOne{0x3F800000};
constexpr F32 kSix{0x40C00000};
constexpr F32 kFourHundredFortyEight{0x43E00000};
constexpr F32 kZero{0};
constexpr F32 kLargest{0x7F7FFFFF};
// The constants 1/448, 1/57344 and 1/6 of the sources: f32 divisions done by the compiler.
constexpr F32 kInverse448 = div_rn(kOne, kFourHundredFortyEight, false);
constexpr F32 kInverse57344 = div_rn(kOne, F32{0x47600000}, false);
constexpr F32 kInverse6 = div_rn(kOne, kSix, false);

// 2^exponent; below the subnormals zero, above the range Inf.
F32 power_of_two(int exponent) {
  if (exponent < -149) return kZero;
  if (exponent < -126) return F32{1u << (exponent + 149)};
  return F32{static_cast<std::uint32_t>(std::min(exponent + 127, 255)) << 23};
}

// What the comparison `value != 0.0f` sees in a build that flushes.
bool is_zero_in(const Recipe& recipe, F32 value) {
  return is_zero(recipe.flush ? flush_subnormal(value) : value);
}

// SPEC NUM-6.4. amax is at least 1e-4 and never NaN.
BlockScale divide_448(F32 amax) {
  return {mul_rn(amax, kInverse448, false).bits, div_rn(kFourHundredFortyEight, amax, false)};
}

// SPEC NUM-6.5. The source makes both powers by shifting integers; for amax = Inf those shifts
// leave the exponent field and give -Inf as the multiplier, +Inf as the scale.
BlockScale ceil_power_of_two_448(const Recipe& recipe, F32 amax) {
  const std::uint32_t bits = mul_rn(amax, kInverse448, false).bits;
  const std::uint32_t exponent_field = (bits >> 23) + ((bits & 0x7FFFFFu) != 0 ? 1 : 0);
  const F32 scale{exponent_field << 23};
  const F32 multiplier{(254 - exponent_field) << 23};
  return {recipe.scale_format == ScaleFormat::kUe8m0 ? exponent_field & 0xFF : scale.bits,
          multiplier};
}

// SPEC NUM-6.6, MXFP8.
BlockScale rcp_ue8m0_up(const Recipe& recipe, F32 amax) {
  const F32 unrounded = mul_rn(amax, rcp_approx_ftz(kFourHundredFortyEight), recipe.flush);
  const Ue8m0 code = cvt_rp_satfinite_ue8m0(unrounded);
  const F32 stored = widen(code);
  const bool zero = is_zero_in(recipe, recipe.zero_test == ZeroTest::kAmax ? amax : stored);
  return {code.bits, zero ? kZero : rcp_approx_ftz(stored)};
}

// SPEC NUM-6.6, MXFP4. 2^(127 - code) comes from exp2f of an integer, which is exact; a flushing
// build has no subnormal powers.
BlockScale rcp_ue8m0_up_exp2(const Recipe& recipe, F32 amax) {
  const F32 unrounded = mul_rn(amax, rcp_approx_ftz(kSix), recipe.flush);
  const Ue8m0 code = cvt_rp_satfinite_ue8m0(unrounded);
  if (is_zero_in(recipe, unrounded)) return {code.bits, kZero};
  if (code.bits == 0) return {code.bits, kOne};
  const F32 power = power_of_two(127 - code.bits);
  return {code.bits, recipe.flush ? flush_subnormal(power) : power};
}

// SPEC NUM-6.7.
BlockScale rcp_e4m3(const Recipe& recipe, F32 amax, F32 global_scale) {
  const bool flush = recipe.flush;
  const F32 unrounded = mul_rn(global_scale, mul_rn(amax, rcp_approx_ftz(kSix), flush), flush);
  const E4m3 code = cvt_rn_satfinite_e4m3(unrounded);
  const F32 stored = widen(code);
  if (is_zero_in(recipe, recipe.zero_test == ZeroTest::kAmax ? amax : stored)) {
    return {code.bits, kZero};
  }
  return {code.bits, recipe.scale == ScaleRule::kThreeRcpE4m3
                         ? rcp_approx_ftz(mul_rn(stored, rcp_approx_ftz(global_scale), flush))
                         : mul_rn(global_scale, rcp_approx_ftz(stored), flush)};
}

// SPEC NUM-6.8, NVFP4.
BlockScale ieee_e4m3(const Recipe& recipe, F32 amax, F32 global_scale) {
  const bool flush = recipe.flush;
  if (recipe.zero_test == ZeroTest::kAmax && is_zero_in(recipe, amax)) return {0, kZero};
  const F32 unrounded = mul_rn(amax, mul_rn(global_scale, kInverse6, flush), flush);
  const E4m3 code = cvt_rn_satfinite_e4m3(unrounded);
  const F32 inverse_global = div_rn(kOne, global_scale, flush);
  const F32 multiplier = div_rn(kOne, mul_rn(widen(code), inverse_global, flush), flush);
  return {code.bits,
          recipe.scale == ScaleRule::kIeeeE4m3Clamped ? min_of(multiplier, kLargest) : multiplier};
}

// SPEC NUM-6.8, MXFP8. The multiplier is (254 - code) << 23 as an integer: code 254 gives 0.
BlockScale ue8m0_up(const Recipe& recipe, F32 amax) {
  const F32 inverse_max = recipe.element == Element::kE5m2 ? kInverse57344 : kInverse448;
  const Ue8m0 code = cvt_rp_satfinite_ue8m0(mul_rn(amax, inverse_max, recipe.flush));
  if (code.bits == 0) return {code.bits, kOne};
  return {code.bits, F32{(254u - code.bits) << 23}};
}

// SPEC NUM-6.9.
BlockScale floor_power_of_two(const Recipe& recipe, F32 amax) {
  if (is_nan(amax)) return {kUe8m0Nan, canonical_nan<F32>()};
  const int emax = recipe.element == Element::kE4m3 ? 8 : recipe.element == Element::kE5m2 ? 15 : 2;
  // floor(log2 amax); zero counts as the smallest exponent there is.
  const int exponent = amax.bits >= Format<F32>::kMinNormal
                           ? static_cast<int>(amax.bits >> 23) - 127
                           : static_cast<int>(std::bit_width(amax.bits)) - 150;
  const int code = std::clamp(exponent - emax + 127, 0, int{kUe8m0Max});
  return {static_cast<std::uint32_t>(code), power_of_two(127 - code)};
}

}  // namespace

BlockScale block_scale(const Recipe& recipe, F32 amax, F32 global_scale) {
  switch (recipe.scale) {
    case ScaleRule::kDivide448:
      return divide_448(amax);
    case ScaleRule::kCeilPowerOfTwo448:
      return ceil_power_of_two_448(recipe, amax);
    case ScaleRule::kRcpUe8m0Up:
      return rcp_ue8m0_up(recipe, amax);
    case ScaleRule::kRcpUe8m0UpExp2:
      return rcp_ue8m0_up_exp2(recipe, amax);
    case ScaleRule::kThreeRcpE4m3:
    case ScaleRule::kGlobalTimesRcpE4m3:
      return rcp_e4m3(recipe, amax, global_scale);
    case ScaleRule::kIeeeE4m3:
    case ScaleRule::kIeeeE4m3Clamped:
      return ieee_e4m3(recipe, amax, global_scale);
    case ScaleRule::kUe8m0Up:
      return ue8m0_up(recipe, amax);
    case ScaleRule::kFloorPowerOfTwo:
      return floor_power_of_two(recipe, amax);
  }
  CONTRACT(false, "a scale rule without arithmetic");
  return {};
}

F32 scale_value(ScaleFormat format, std::uint32_t code) {
  switch (format) {
    case ScaleFormat::kF32:
      return F32{code};
    case ScaleFormat::kUe8m0:
      return widen(Ue8m0{static_cast<std::uint8_t>(code)});
    case ScaleFormat::kE4m3:
      return widen(E4m3{static_cast<std::uint8_t>(code)});
  }
  CONTRACT(false, "a scale format without values");
  return {};
}

}  // namespace assay::numerics::quantize
