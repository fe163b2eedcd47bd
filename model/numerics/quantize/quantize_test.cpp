// Quantisers against a second reading of the sources in plain float and double arithmetic, and the
// corners that implementations disagree about, byte by byte.
#include "model/numerics/quantize/quantize.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "model/core/testing.hpp"
#include "model/numerics/numerics.hpp"
#include "model/numerics/special/mufu.hpp"

using namespace assay;
using namespace assay::numerics;
using namespace assay::numerics::quantize;

namespace {

const Recipe& recipe_named(const char* name) {
  const Recipe* recipe = find_recipe(name);
  REQUIRE(recipe != nullptr);
  return *recipe;
}

// --- the second reading
// ---------------------------------------------------------------------------

float flushed(float x, bool flush) {
  return flush && std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x;
}
float times(float a, float b, bool flush) {
  return flushed(flushed(a, flush) * flushed(b, flush), flush);
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

// --- running -------------------------------------------------------------------------------------

template <class T>
std::span<const T> view(const std::vector<T>& values) {
  return values;
}

std::optional<F32> global_for(const Recipe& recipe, float g) {
  return recipe.takes_global_scale() ? std::optional(from_float(g)) : std::nullopt;
}

Quantized run(const Recipe& recipe, const std::vector<Bf16>& row, float g = 1.0f) {
  auto q = quantize::quantize(recipe, {1, row.size(), view(row)}, ScaleLayout::kLinear,
                              global_for(recipe, g));
  REQUIRE(q.has_value());
  return *std::move(q);
}

std::vector<Bf16> filled(const Recipe& recipe, std::uint16_t bits) {
  return std::vector<Bf16>(recipe.block, Bf16{bits});
}

int element_at(const Recipe& recipe, const Quantized& q, std::size_t i) {
  return recipe.element == Element::kE2m1 ? (q.elements[i / 2] >> (i % 2 * 4)) & 0xF
                                          : q.elements[i];
}

std::uint32_t scale_at(const Recipe& recipe, const Quantized& q, std::size_t block) {
  const std::size_t bytes = scale_bytes(recipe.scale_format);
  std::uint32_t code = 0;
  for (std::size_t i = 0; i < bytes; ++i) {
    code |= std::uint32_t{q.scales[block * bytes + i]} << (8 * i);
  }
  return code;
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

// Rows of blocks whose magnitudes lie around 2^(field - 127), values spread over a few binades.
std::vector<Bf16> row_around(const Recipe& recipe, std::uint32_t seed, int field,
                             std::size_t blocks) {
  std::vector<Bf16> row;
  std::uint32_t x = seed * 2654435761u + 1;
  for (std::size_t i = 0; i < blocks * recipe.block; ++i) {
    x = x * 1664525u + 1013904223u;
    const int spread = static_cast<int>(x >> 28) - 12;
    const int f = std::clamp(field + spread, 0, 254);
    row.push_back(Bf16{static_cast<std::uint16_t>((x & 0x8000u) | (f << 7) | (x >> 16 & 0x7F))});
  }
  return row;
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

TEST_CASE("a block of zeros is stored as each source stores it",
          "[NUM-6.4][NUM-6.6][NUM-6.7][NUM-6.8]") {
  for (const Recipe& recipe : recipes()) {
    CAPTURE(std::string(recipe.name));
    auto row = filled(recipe, 0x0000);
    row[1].bits = 0x8000;
    const Quantized q = run(recipe, row, 2.0f);
    CHECK(element_at(recipe, q, 0) == 0);
    CHECK(element_at(recipe, q, 1) == (recipe.element == Element::kE2m1 ? 0x8 : 0x80));
    const std::uint32_t scale = scale_at(recipe, q, 0);
    if (recipe.name == "deepep-fp8_block128") {
      CHECK(scale == from_float(1e-4f * (1.0f / 448.0f)).bits);
    } else if (recipe.name == "deepep-fp8_block128_pow2") {
      CHECK(to_float(F32{scale}) == 0x1p-22f);  // 1e-4 / 448 is just under 2^-22
    } else if (recipe.name == "deepep-fp8_block128_ue8m0") {
      CHECK(scale == 127 - 22);
    } else {
      CHECK(scale == 0);
    }
  }
}

TEST_CASE(
    "a scale that rounds to zero saturates elements in TensorRT-LLM's newer NVFP4 and not in the "
    "older",
    "[NUM-6.7]") {
  // amax 2^-12 with G = 1: the scale is below half of e4m3's smallest step.
  const Recipe& newer = recipe_named("trtllm-nvfp4");
  auto row = filled(newer, 0x3980);
  row[3].bits = 0xB980;
  row[5].bits = 0x0000;
  const Quantized q = run(newer, row);
  CHECK(scale_at(newer, q, 0) == 0);
  CHECK(element_at(newer, q, 0) == 0x7);  // x * Inf saturates
  CHECK(element_at(newer, q, 3) == 0xF);
  CHECK(element_at(newer, q, 5) == 0x7);  // 0 * Inf is NaN, and NaN is +6
  const Recipe& older = recipe_named("trtllm-nvfp4_g_rcp");
  const Quantized r = run(older, row);
  CHECK(scale_at(older, r, 0) == 0);
  CHECK(element_at(older, r, 0) == 0x0);
}

TEST_CASE("tiny MXFP8 blocks saturate without fast-math and vanish with it", "[NUM-6.6]") {
  // 2^-126 / 448 rounds up to code 0, whose value 2^-127 is subnormal: rcp of it is Inf, unless a
  // flushing comparison has found it to be zero.
  const Recipe& keeping = recipe_named("trtllm-mxfp8");
  const Quantized kept = run(keeping, filled(keeping, 0x0080));
  CHECK(scale_at(keeping, kept, 0) == 0);
  CHECK(element_at(keeping, kept, 0) == 0x7E);
  const Recipe& flushing = recipe_named("flashinfer-mxfp8");
  const Quantized gone = run(flushing, filled(flushing, 0x0080));
  CHECK(scale_at(flushing, gone, 0) == 0);
  CHECK(element_at(flushing, gone, 0) == 0);
}

TEST_CASE("an infinite maximum leaves the integer tricks of the sources visible",
          "[NUM-6.5][NUM-6.8]") {
  const Recipe& deepep = recipe_named("deepep-fp8_block128_pow2");
  auto row = filled(deepep, 0x3F80);
  row[0].bits = 0x7F80;
  row[1].bits = 0x0000;
  const Quantized q = run(deepep, row);
  CHECK(scale_at(deepep, q, 0) == 0x7F800000u);
  CHECK(element_at(deepep, q, 0) == 0xFE);  // Inf * -Inf
  CHECK(element_at(deepep, q, 1) == 0x7F);  // 0 * -Inf
  CHECK(element_at(deepep, q, 2) == 0xFE);
  const Recipe& te = recipe_named("te-mxfp8");
  auto te_row = filled(te, 0x3F80);
  te_row[0].bits = 0x7F80;
  const Quantized r = run(te, te_row);
  CHECK(scale_at(te, r, 0) == 0xFE);
  CHECK(element_at(te, r, 0) == 0x7F);  // Inf * 0
  CHECK(element_at(te, r, 1) == 0);
}

TEST_CASE("a NaN maximum becomes a NaN scale where the source lets it through", "[NUM-6.2]") {
  for (const Recipe& recipe : recipes()) {
    CAPTURE(std::string(recipe.name));
    const Quantized q = run(recipe, filled(recipe, 0x7FC0), 2.0f);
    const bool passes =
        recipe.amax == AmaxRule::kPackedPairs || recipe.amax == AmaxRule::kPropagateNan;
    const std::uint32_t scale = scale_at(recipe, q, 0);
    if (passes) CHECK(scale == (recipe.scale_format == ScaleFormat::kUe8m0 ? 0xFFu : 0x7Fu));
    if (!passes) CHECK(is_nan(scale_value(recipe.scale_format, scale)) == false);
    CHECK(element_at(recipe, q, 0) == (recipe.element == Element::kE2m1 ? 0x7 : 0x7F));
  }
}

TEST_CASE("packed pairs let a NaN through only if all odd columns are NaN", "[NUM-6.2]") {
  const Recipe& recipe = recipe_named("trtllm-mxfp8");
  auto odd = filled(recipe, 0x3F80), even = odd, one = odd;
  for (std::size_t i = 0; i < odd.size(); ++i) (i % 2 ? odd : even)[i].bits = 0x7FC0;
  one[7].bits = 0x7FC0;
  CHECK(scale_at(recipe, run(recipe, odd), 0) == 0xFF);
  CHECK(scale_at(recipe, run(recipe, even), 0) != 0xFF);
  CHECK(scale_at(recipe, run(recipe, one), 0) != 0xFF);
}

TEST_CASE("a round trip is off by at most half a step of the block's maximum", "[NUM-6.11]") {
  for (const Recipe& recipe : recipes()) {
    CAPTURE(std::string(recipe.name));
    const float g = recipe.takes_global_scale() ? 32.0f : 1.0f;
    const auto row = row_around(recipe, 5, 127, 8);
    const Quantized q = run(recipe, row, g);
    const auto back = dequantize(recipe, q, global_for(recipe, g));
    REQUIRE(back.has_value());
    // Half a step relative to a normal number of the element format. OCP's floor also clips: up to
    // 1 - 448/512 in e4m3, 1 - 57344/65536 in e5m2, 1 - 6/8 in e2m1.
    const double half_step = recipe.element == Element::kE4m3   ? 1.0 / 16
                             : recipe.element == Element::kE5m2 ? 1.0 / 8
                                                                : 1.0 / 4;
    const bool floors = recipe.scale == ScaleRule::kFloorPowerOfTwo;
    const double relative = floors ? std::max(half_step, 1.0 / 8) : half_step;
    for (std::size_t block = 0; block < row.size() / recipe.block; ++block) {
      float amax = 0;
      for (std::size_t i = 0; i < recipe.block; ++i) {
        amax = std::max(amax, std::fabs(to_float(widen(row[block * recipe.block + i]))));
      }
      const double bound = relative * amax;
      for (std::size_t i = block * recipe.block; i < (block + 1) * recipe.block; ++i) {
        const double error = std::fabs(to_float((*back)[i]) - to_float(widen(row[i])));
        CHECK(error <= bound);
      }
    }
  }
}

TEST_CASE("scale layouts visit memory in the published order", "[NUM-6.3]") {
  for (const std::size_t rows : {1u, 7u, 8u, 31u, 128u, 129u, 300u}) {
    for (const std::size_t blocks : {1u, 3u, 4u, 5u, 16u}) {
      // The order in memory is the nest of loops; live places are those inside the matrix.
      std::size_t place = 0;
      const ScaleGrid swizzled{ScaleLayout::k128x4, rows, blocks};
      for (std::size_t m_tile = 0; m_tile * 128 < rows; ++m_tile)
        for (std::size_t k_tile = 0; k_tile * 4 < blocks; ++k_tile)
          for (std::size_t m32 = 0; m32 < 32; ++m32)
            for (std::size_t m4 = 0; m4 < 4; ++m4)
              for (std::size_t k = 0; k < 4; ++k, ++place) {
                const std::size_t row = m_tile * 128 + m4 * 32 + m32, block = k_tile * 4 + k;
                if (row < rows && block < blocks) CHECK(swizzled.offset(row, block) == place);
              }
      CHECK(swizzled.count() == place);
      place = 0;
      const ScaleGrid small{ScaleLayout::k8x4, rows, blocks};
      for (std::size_t m_tile = 0; m_tile * 8 < rows; ++m_tile)
        for (std::size_t k_tile = 0; k_tile * 4 < blocks; ++k_tile)
          for (std::size_t m = 0; m < 8; ++m)
            for (std::size_t k = 0; k < 4; ++k, ++place) {
              const std::size_t row = m_tile * 8 + m, block = k_tile * 4 + k;
              if (row < rows && block < blocks) CHECK(small.offset(row, block) == place);
            }
      CHECK(small.count() == place);
      const ScaleGrid linear{ScaleLayout::kLinear, rows, blocks};
      CHECK(linear.count() == rows * blocks);
      CHECK(linear.offset(rows - 1, blocks - 1) == rows * blocks - 1);
    }
  }
}

TEST_CASE("layouts move scales and nothing else", "[NUM-6.3]") {
  const Recipe& recipe = recipe_named("flashinfer-mxfp8");
  std::vector<Bf16> matrix;
  for (int row = 0; row < 130; ++row) {
    const auto values = row_around(recipe, static_cast<std::uint32_t>(row), 100 + row % 50, 6);
    matrix.insert(matrix.end(), values.begin(), values.end());
  }
  const Source source{130, 6 * 32, view(matrix)};
  const auto linear = quantize::quantize(recipe, source, ScaleLayout::kLinear, std::nullopt);
  const auto tiled = quantize::quantize(recipe, source, ScaleLayout::k128x4, std::nullopt);
  REQUIRE(linear.has_value());
  REQUIRE(tiled.has_value());
  CHECK(linear->elements == tiled->elements);
  for (std::size_t row = 0; row < 130; ++row) {
    for (std::size_t block = 0; block < 6; ++block) {
      CHECK(linear->scales[linear->grid.offset(row, block)] ==
            tiled->scales[tiled->grid.offset(row, block)]);
    }
  }
  const auto back_linear = dequantize(recipe, *linear, std::nullopt);
  const auto back_tiled = dequantize(recipe, *tiled, std::nullopt);
  REQUIRE(back_tiled.has_value());
  for (std::size_t i = 0; i < matrix.size(); ++i) {
    CHECK((*back_linear)[i].bits == (*back_tiled)[i].bits);
  }
}

TEST_CASE("recipes have unique names and say where they come from", "[NUM-6.1]") {
  std::set<std::string_view> names;
  for (const Recipe& recipe : recipes()) {
    CHECK(names.insert(recipe.name).second);
    CHECK_FALSE(recipe.source.empty());
    CHECK(find_recipe(recipe.name) == &recipe);
  }
  CHECK(find_recipe("nvfp4") == nullptr);
}

TEST_CASE("TransformerEngine's global scale has no zero and no Inf", "[NUM-6.8]") {
  CHECK(to_float(te_global_scale(from_float(2.0f))) == 1344.0f);
  CHECK(te_global_scale(F32{0}).bits == 0x3F800000u);
  CHECK(te_global_scale(F32{0x7F800000}).bits == 0x3F800000u);
  CHECK(te_global_scale(F32{1}).bits == 0x7F7FFFFFu);
}

TEST_CASE("wrong requests are refused with the offending value", "[NUM-6.10]") {
  const Recipe& nvfp4 = recipe_named("trtllm-nvfp4");
  const std::vector<Bf16> row(48);
  const std::vector<F32> wide(48);
  const auto sentence = [](const auto& result) {
    return result.has_value() ? std::string("accepted") : result.error().sentence;
  };
  const auto ask = [&](const Recipe& recipe, Source source, std::optional<F32> g) {
    return sentence(quantize::quantize(recipe, source, ScaleLayout::kLinear, g));
  };
  const F32 one{0x3F800000};
  CHECK(ask(nvfp4, {1, 48, view(row)}, std::nullopt) ==
        "recipe trtllm-nvfp4 needs a global scale and none is given");
  CHECK(ask(nvfp4, {1, 40, view(row)}, one) ==
        "40 columns; recipe trtllm-nvfp4 takes multiples of 16");
  CHECK(ask(nvfp4, {2, 48, view(row)}, one) == "48 values; 2 rows of 48 columns have 96");
  CHECK(ask(nvfp4, {1, 48, view(wide)}, one) ==
        "f32 values; recipe trtllm-nvfp4 takes f16 and bf16");
  CHECK(ask(nvfp4, {1, 48, view(row)}, F32{0x80000000}).find("positive finite") !=
        std::string::npos);
  CHECK(ask(recipe_named("ocp-mxfp4"), {1, 32, view(row)}, one) ==
        "recipe ocp-mxfp4 takes no global scale and one is given");
  auto q = run(nvfp4, row);
  q.scales.pop_back();
  CHECK(sentence(dequantize(nvfp4, q, one)) ==
        "24 bytes of elements and 2 of scales; recipe trtllm-nvfp4 has 24 and 3");
}
