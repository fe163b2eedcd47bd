// Where the scale of a block lands among the scales of a matrix. Decides SPEC NUM-6.3. An offset
// counts scales, not bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace assay::numerics::quantize {

enum class ScaleLayout : std::uint8_t {
  kLinear,  // [row, block]
  k128x4,   // [row / 128, block / 4, row % 32, row % 128 / 32, block % 4], padded to whole tiles
  k8x4,     // [row / 8, block / 4, row % 8, block % 4], padded to whole tiles
};

// The scales of `rows` rows of `blocks` blocks each.
struct ScaleGrid {
  ScaleLayout layout = ScaleLayout::kLinear;
  std::size_t rows = 0;
  std::size_t blocks = 0;

  // Scales stored, padding included.
  constexpr std::size_t count() const {
    if (layout == ScaleLayout::kLinear) return rows * blocks;
    return divide_up(rows, tile_rows()) * tile_rows() * block_tiles() * 4;
  }
  constexpr std::size_t offset(std::size_t row, std::size_t block) const {
    if (layout == ScaleLayout::kLinear) return row * blocks + block;
    const std::size_t tile = (row / tile_rows()) * block_tiles() + block / 4;
    const std::size_t row_in_tile = row % tile_rows();
    const std::size_t within = layout == ScaleLayout::k128x4
                                   ? (row_in_tile % 32) * 16 + (row_in_tile / 32) * 4
                                   : row_in_tile * 4;
    return tile * tile_rows() * 4 + within + block % 4;
  }

 private:
  static constexpr std::size_t divide_up(std::size_t a, std::size_t b) { return (a + b - 1) / b; }
  constexpr std::size_t tile_rows() const { return layout == ScaleLayout::k128x4 ? 128 : 8; }
  constexpr std::size_t block_tiles() const { return divide_up(blocks, 4); }
};

}  // namespace assay::numerics::quantize
