// Quantisers against a second reading of the sources in plain float and double arithmetic.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "model/core/testing.hpp"
#include "model/numerics/numerics.hpp"
#include "model/numerics/quantize/quantize.hpp"
#include "model/numerics/quantize/quantize_testing.hpp"
#include "model/numerics/special/mufu.hpp"

using namespace assay;
using namespace assay::numerics;
using namespace assay::numerics::quantize;
using namespace assay::numerics::quantize::testing;

namespace {

// --- the second reading
// ---------------------------------------------------------------------------

float flushed(float x, bool flush) {
  return flush && std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x;
}
float times(float a, float b, bool flush) {
  const float x = flushed(a, flush), y = flushed(b, flush);
  if (!flush) return x * y;
  // A flushing unit rounds to 24 bits before it looks at the size, as 2^100 times the number does.
  const double scaled = static_cast<double>(x) * 0x1p100 * static_cast<double>(y);
  const bool below = std::fabs(static_cast<float>(scaled)) < 0x1p-26f;
  return below ? std::copysign(0.0f, x) * std::copysign(1.0f, y) : x * y;
}
float rcp(float x) { return to_float(rcp_approx_ftz(from_float(x))); }

// Nearest value of a small format by looking at all of them; ties go to the even code.
int nearest_code(Element element, float x) {
  const bool e2m1 = element == Element::kE2m1;
  const int mantissa = element == Element::kE4m3 ? 3 : e2m1 ? 1 : 2;
  const int bias = element == Element::kE4m3 ? 7 : e2m1 ? 1 : 15;
  const int last = element == Element::kE4m3 ? 0x7E : e2m1 ? 7 : 0x7B;
  const int sign = std::signbit(x) ? last < 8 ? 8 : 0x80 : 0;
  if (std::isnan(x)) return e2m1 ? 7 : 0x7F;
  // Far beyond the largest value (at most 57344) distances would all look the same.
  const double m = std::min(std::fabs(static_cast<double>(x)), 0x1p20);
  int best = 0;
  double best_distance = std::numeric_limits<double>::infinity();
  for (int code = 0; code <= last; ++code) {
    const int field = code >> mantissa, fraction = code & ((1 << mantissa) - 1);
    const double value = field == 0
                             ? std::ldexp(fraction, 1 - bias - mantissa)
                             : std::ldexp(fraction + (1 << mantissa), field - bias - mantissa);
    const double distance = std::fabs(m - value);
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) {
      best = code;
      best_distance = distance;
    }
  }
  return sign | best;
}

double e4m3_value(int code) { return to_float(widen(E4m3{static_cast<std::uint8_t>(code)})); }

// The exponent code of the power of two at or above x >= 0, with 2^-127 the smallest.
int ue8m0_up(float x) {
  if (std::isnan(x)) return 0xFF;
  for (int code = 0; code < 0xFE; ++code) {
    if (static_cast<double>(x) <= std::ldexp(1.0, code - 127)) return code;
  }
  return 0xFE;
}

struct Expectation {
  std::uint32_t scale = 0;
  float multiplier = 0;
};

Expectation read_again(const std::string& name, float amax, float g) {
  const bool f = name.rfind("flashinfer", 0) == 0;
  const auto nonzero = [&](float x) { return flushed(x, f) != 0; };
  if (name == "deepep-fp8_block128") {
    return {std::bit_cast<std::uint32_t>(amax * (1.0f / 448.0f)), 448.0f / amax};
  }
  if (name.rfind("deepep-fp8_block128_", 0) == 0) {
    const float inverse = amax * (1.0f / 448.0f);
    int exponent = 0;
    const float fraction = std::frexp(inverse, &exponent);
    if (fraction == 0.5f) --exponent;
    const float scale = std::ldexp(1.0f, exponent);
    const auto bits = std::bit_cast<std::uint32_t>(scale);
    return {name.back() == '2' ? bits : bits >> 23, std::ldexp(1.0f, -exponent)};
  }
  if (name == "trtllm-mxfp8" || name == "flashinfer-mxfp8") {
    const int code = ue8m0_up(times(amax, rcp(448.0f), f));
    const float stored = code == 255 ? NAN : std::ldexp(1.0f, code - 127);
    const bool live = f ? nonzero(stored) : nonzero(amax);
    return {static_cast<std::uint32_t>(code), live ? rcp(stored) : 0.0f};
  }
  if (name == "trtllm-mxfp4" || name == "flashinfer-mxfp4") {
    const float scaled = times(amax, rcp(6.0f), f);
    const int code = ue8m0_up(scaled);
    const float power = code == 0 ? 1.0f : flushed(std::exp2(127.0f - static_cast<float>(code)), f);
    return {static_cast<std::uint32_t>(code), nonzero(scaled) ? power : 0.0f};
  }
  if (name.find("te") == std::string::npos && name.find("nvfp4") != std::string::npos) {
    const int code = nearest_code(Element::kE4m3, times(g, times(amax, rcp(6.0f), f), f));
    const auto stored = static_cast<float>(e4m3_value(code));
    if (name == "trtllm-nvfp4_g_rcp") {
      return {static_cast<std::uint32_t>(code), nonzero(stored) ? times(g, rcp(stored), f) : 0.0f};
    }
    return {static_cast<std::uint32_t>(code), nonzero(amax) ? rcp(times(stored, rcp(g), f)) : 0.0f};
  }
  if (name.find("nvfp4") != std::string::npos) {
    const bool te = name == "te-nvfp4";
    const float unrounded = !te && !nonzero(amax) ? 0.0f : times(amax, times(g, 1.0f / 6.0f, f), f);
    const int code = nearest_code(Element::kE4m3, unrounded);
    float m =
        flushed(1.0f / times(static_cast<float>(e4m3_value(code)), flushed(1.0f / g, f), f), f);
    if (te) m = std::fmin(m, std::numeric_limits<float>::max());
    return {static_cast<std::uint32_t>(code), !te && !nonzero(amax) ? 0.0f : m};
  }
  if (name.rfind("te-mxfp8", 0) == 0) {
    const int code = ue8m0_up(amax * (name.back() == '2' ? 1.0f / 57344.0f : 1.0f / 448.0f));
    const float multiplier = code == 254 ? 0.0f : std::ldexp(1.0f, 127 - code);
    return {static_cast<std::uint32_t>(code), code == 0 ? 1.0f : multiplier};
  }
  const int emax = name == "ocp-mxfp8" ? 8 : name == "ocp-mxfp8_e5m2" ? 15 : 2;
  if (std::isnan(amax)) return {0xFF, NAN};
  const int floor_log2 = amax == 0 ? -1000 : std::ilogb(amax);
  const int code = std::clamp(floor_log2 - emax + 127, 0, 254);
  return {static_cast<std::uint32_t>(code), std::ldexp(1.0f, 127 - code)};
}

float amax_again(const Recipe& recipe, const std::vector<float>& block) {
  const auto larger = [](float a, float b) { return std::isnan(a) ? b : std::fmax(a, b); };
  if (recipe.amax == AmaxRule::kPackedPairs) {
    float half[2] = {NAN, NAN};
    for (std::size_t i = 0; i < block.size(); ++i) {
      half[i % 2] = larger(half[i % 2], std::fabs(block[i]));
    }
    return half[0] > half[1] ? half[0] : half[1];
  }
  float amax = recipe.amax == AmaxRule::kFromFloor ? 1e-4f : 0.0f;
  bool poisoned = false;
  for (const float x : block) {
    poisoned |= !std::isfinite(x);
    amax = larger(amax, std::fabs(x));
  }
  return recipe.amax == AmaxRule::kPropagateNan && poisoned ? NAN : amax;
}

void check_against_second_reading(const Recipe& recipe, const std::vector<Bf16>& row, float g) {
  const Quantized q = run(recipe, row, g);
  std::size_t wrong_scales = 0, wrong_elements = 0;
  for (std::size_t block = 0; block < row.size() / recipe.block; ++block) {
    std::vector<float> values;
    for (std::size_t i = 0; i < recipe.block; ++i) {
      values.push_back(to_float(widen(row[block * recipe.block + i])));
    }
    const Expectation e = read_again(std::string(recipe.name), amax_again(recipe, values), g);
    wrong_scales += scale_at(recipe, q, block) != e.scale;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const int expected =
          nearest_code(recipe.element, times(values[i], e.multiplier, recipe.flush));
      wrong_elements += element_at(recipe, q, block * recipe.block + i) != expected;
    }
  }
  CAPTURE(std::string(recipe.name), g);
  CHECK(wrong_scales == 0);
  CHECK(wrong_elements == 0);
}

}  // namespace

TEST_CASE("every recipe gives the bits of a second reading of its source",
          "[NUM-6.1][NUM-6.2][NUM-6.4][NUM-6.5][NUM-6.6][NUM-6.7][NUM-6.8][NUM-6.9][NUM-6.10]") {
  for (const Recipe& recipe : recipes()) {
    for (int field = 0; field <= 254; field += 2) {
      const auto seed = static_cast<std::uint32_t>(field);
      check_against_second_reading(recipe, row_around(recipe, seed, field, 4), 1.0f);
      if (!recipe.takes_global_scale()) continue;
      for (const float g : {448.0f * 6.0f / 3.7f, 0x1.234566p-20f, 0x1p100f}) {
        check_against_second_reading(recipe, row_around(recipe, seed + 1000, field, 2), g);
      }
    }
  }
}

TEST_CASE("scales and multipliers have the bits of the second reading, near ties above all",
          "[NUM-6.4][NUM-6.5][NUM-6.6][NUM-6.7][NUM-6.8][NUM-6.9]") {
  // Elements hide a multiplier that is one ulp off, so compare the multipliers themselves. Where
  // the scale is e4m3, the global scale is chosen so that G * amax / 6 lies within 4 ulp of each
  // tie.
  for (const Recipe& recipe : recipes()) {
    std::size_t wrong = 0;
    const auto check = [&](float amax, float g) {
      const Expectation e = read_again(std::string(recipe.name), amax, g);
      const BlockScale got = block_scale(recipe, from_float(amax), from_float(g));
      wrong += got.code != e.scale;
      wrong += got.multiplier.bits != from_float(e.multiplier).bits;
    };
    for (std::uint32_t bits = 0x38D2; bits < 0x4C00; ++bits) {  // 1e-4 to 2^25
      check(to_float(F32{bits << 16}), 1.7f);
    }
    for (int code = 1; code < 0x7E && recipe.takes_global_scale(); ++code) {
      const double tie = (e4m3_value(code) + e4m3_value(code + 1)) / 2;
      for (const float amax : {0.71875f, 1.0f, 3.0f, 5.8125f, 117.0f}) {
        const auto center = from_float(static_cast<float>(tie * 6 / static_cast<double>(amax)));
        for (std::uint32_t ulp = 0; ulp < 9; ++ulp) {
          check(amax, to_float(F32{center.bits + ulp - 4}));
        }
      }
    }
    CAPTURE(std::string(recipe.name));
    CHECK(wrong == 0);
  }
}

TEST_CASE("blocks with NaN and Inf agree with the second reading", "[NUM-6.2][NUM-6.10]") {
  for (const Recipe& recipe : recipes()) {
    for (const std::uint16_t special : {0x7F80, 0xFF80, 0x7FC1, 0xFFFF}) {
      for (const std::size_t where : {std::size_t{0}, std::size_t{1}, std::size_t{13}}) {
        auto row = row_around(recipe, special, 127, 1);
        row[where].bits = special;
        if (special == 0x7F80 && recipe.scale == ScaleRule::kCeilPowerOfTwo448) continue;
        if (special == 0xFF80 && recipe.scale == ScaleRule::kCeilPowerOfTwo448) continue;
        check_against_second_reading(recipe, row, 3.0f);
      }
    }
    for (const std::size_t parity : {std::size_t{0}, std::size_t{1}}) {
      auto row = row_around(recipe, 99, 127, 1);
      for (std::size_t i = parity; i < row.size(); i += 2) row[i].bits = 0x7FC0;
      check_against_second_reading(recipe, row, 3.0f);
    }
    check_against_second_reading(recipe, filled(recipe, 0xFFC0), 3.0f);
  }
}
