// Start here: matrices to narrow elements with one scale per block of consecutive columns, and
// back. Decides SPEC NUM-6.2, NUM-6.10 and NUM-6.11. The recipes are data (recipe.hpp,
// recipes.cpp), the scale of one block is block_scale.hpp, the order of scales in memory is
// scale_layout.hpp.
//
//   const Recipe* recipe = find_recipe("flashinfer-nvfp4");
//   auto q = quantize(*recipe, {rows, columns, span_of_bf16}, ScaleLayout::k128x4, global_scale);
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "model/core/bits.hpp"
#include "model/core/expected.hpp"
#include "model/numerics/quantize/block_scale.hpp"
#include "model/numerics/quantize/recipe.hpp"
#include "model/numerics/quantize/scale_layout.hpp"

namespace assay::numerics::quantize {

// A matrix [rows, columns] in row-major order, of one of the types that kernels read.
struct Source {
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::variant<std::span<const F32>, std::span<const F16>, std::span<const Bf16>> values;
};

struct Quantized {
  std::size_t rows = 0;
  std::size_t columns = 0;
  ScaleGrid grid;
  // [rows, columns] bytes; for e2m1 [rows, columns / 2], the even column in the low nibble.
  std::vector<std::uint8_t> elements;
  // grid.count() scales of scale_bytes(format) each, f32 little-endian. Padding is zero, but
  // kernels need not write it: compare only the scales at grid.offset(row, block).
  std::vector<std::uint8_t> scales;
};

constexpr std::size_t scale_bytes(ScaleFormat format) {
  return format == ScaleFormat::kF32 ? 4 : 1;
}

// Errors: a size that does not match, columns that are no multiple of the block, f32 values for a
// kernel that takes none, a global scale that is missing, not wanted, or not a positive number.
Expected<Quantized> quantize(const Recipe& recipe, const Source& source, ScaleLayout layout,
                             std::optional<F32> global_scale);

// element * scale, rounded to f32 (exact unless the scale is f32 with a full significand), then
// times 1 / global_scale where the recipe has one. [rows, columns].
Expected<std::vector<F32>> dequantize(const Recipe& recipe, const Quantized& quantized,
                                      std::optional<F32> global_scale);

// The global scale G that TransformerEngine derives from the largest magnitude of a tensor
// (SPEC NUM-6.8).
F32 te_global_scale(F32 tensor_amax);

}  // namespace assay::numerics::quantize
