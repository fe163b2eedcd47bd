// From the largest magnitude of one block to its scale: the part in which recipes differ. Decides
// SPEC NUM-6.4 to NUM-6.9; finding the maximum and writing elements is quantize.cpp.
#pragma once

#include <cstdint>

#include "model/core/bits.hpp"
#include "model/numerics/quantize/recipe.hpp"

namespace assay::numerics::quantize {

struct BlockScale {
  std::uint32_t code = 0;  // as stored: an f32's bits, or a byte of the recipe's scale format
  F32 multiplier{0};       // an element is the conversion of x * multiplier
};

// `global_scale` is ignored by recipes that do not take one.
BlockScale block_scale(const Recipe& recipe, F32 amax, F32 global_scale);

// The scale that a stored code stands for.
F32 scale_value(ScaleFormat format, std::uint32_t code);

}  // namespace assay::numerics::quantize
