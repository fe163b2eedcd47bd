// Quantisers in the corners that implementations disagree about, byte by byte; round trips, scale
// layouts and refusals.
#include "model/numerics/quantize/quantize.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "model/core/testing.hpp"
#include "model/numerics/numerics.hpp"
#include "model/numerics/quantize/quantize_testing.hpp"

using namespace assay;
using namespace assay::numerics;
using namespace assay::numerics::quantize;
using namespace assay::numerics::quantize::testing;

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
