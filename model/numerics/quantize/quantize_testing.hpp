// What the tests of quantisers share: recipes by name, runs over one row, and the codes that come
// out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "model/core/testing.hpp"
#include "model/numerics/numerics.hpp"
#include "model/numerics/quantize/quantize.hpp"

namespace assay::numerics::quantize::testing {

inline const Recipe& recipe_named(const char* name) {
  const Recipe* recipe = find_recipe(name);
  REQUIRE(recipe != nullptr);
  return *recipe;
}

template <class T>
std::span<const T> view(const std::vector<T>& values) {
  return values;
}

inline std::optional<F32> global_for(const Recipe& recipe, float g) {
  return recipe.takes_global_scale() ? std::optional(from_float(g)) : std::nullopt;
}

inline Quantized run(const Recipe& recipe, const std::vector<Bf16>& row, float g = 1.0f) {
  auto q = quantize::quantize(recipe, {1, row.size(), view(row)}, ScaleLayout::kLinear,
                              global_for(recipe, g));
  REQUIRE(q.has_value());
  return *std::move(q);
}

inline std::vector<Bf16> filled(const Recipe& recipe, std::uint16_t bits) {
  return std::vector<Bf16>(recipe.block, Bf16{bits});
}

inline int element_at(const Recipe& recipe, const Quantized& q, std::size_t i) {
  return recipe.element == Element::kE2m1 ? (q.elements[i / 2] >> (i % 2 * 4)) & 0xF
                                          : q.elements[i];
}

inline std::uint32_t scale_at(const Recipe& recipe, const Quantized& q, std::size_t block) {
  const std::size_t bytes = scale_bytes(recipe.scale_format);
  std::uint32_t code = 0;
  for (std::size_t i = 0; i < bytes; ++i) {
    code |= std::uint32_t{q.scales[block * bytes + i]} << (8 * i);
  }
  return code;
}

// Rows of blocks whose magnitudes lie around 2^(field - 127), values spread over a few binades.
inline std::vector<Bf16> row_around(const Recipe& recipe, std::uint32_t seed, int field,
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

}  // namespace assay::numerics::quantize::testing
