// For tests: recorded tiles of one matrix instruction, as the safetensors files in vectors/ hold
// them. a [tiles, m, k], b [tiles, n, k], c and d [tiles, m, n] fp32, style [tiles]; operands as
// bits in 32-bit words. Styles: 0 normal(0,1); 1 exponents over +-20 binades; 2 raw bit patterns
// with NaN and Inf; 3 equal magnitudes that cancel; 4 raw bit patterns without NaN and Inf.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/core/safetensors.hpp"
#include "model/numerics/tensor_core/tensor_core.hpp"

namespace assay::numerics {

struct RecordedTiles {
  const Instruction* instruction = nullptr;
  int tiles = 0, m = 0, n = 0, k = 0;
  std::vector<std::uint32_t> a, b;
  std::vector<F32> c, d;
  std::vector<std::int32_t> style;

  const std::uint32_t* row_of_a(int tile, int row) const {
    return &a[std::size_t(tile * m + row) * k];
  }
  const std::uint32_t* row_of_b(int tile, int row) const {
    return &b[std::size_t(tile * n + row) * k];
  }
  std::size_t result(int tile, int row, int column) const {
    return (std::size_t(tile) * m + row) * n + column;
  }
};

inline std::vector<std::uint32_t> operand_words(const TensorView& view) {
  const std::size_t width = dtype_bits(view.dtype) / 8;
  std::vector<std::uint32_t> words(view.num_elements());
  for (std::size_t i = 0; i < words.size(); ++i)
    std::memcpy(&words[i], view.bytes.data() + i * width, width);
  return words;
}

inline Expected<RecordedTiles> load_tiles(const std::string& path, Arch arch) {
  ASSAY_TRY(const TensorFile file, TensorFile::open(path));
  ASSAY_TRY(const std::string name, file.require_metadata("instruction"));
  RecordedTiles tiles;
  ASSAY_TRY(tiles.instruction, require_instruction(name, arch));
  ASSAY_TRY(const TensorView a, file.tensor("a"));
  ASSAY_TRY(const TensorView b, file.tensor("b"));
  ASSAY_TRY(const TensorView c, file.tensor("c"));
  ASSAY_TRY(const TensorView d, file.tensor("d"));
  ASSAY_TRY(const TensorView style, file.tensor("style"));
  ASSAY_TRY(const auto c_values, c.as<F32>());
  ASSAY_TRY(const auto d_values, d.as<F32>());
  ASSAY_TRY(const auto styles, style.as<std::int32_t>());
  tiles.tiles = static_cast<int>(a.shape[0]);
  tiles.m = static_cast<int>(a.shape[1]);
  tiles.k = static_cast<int>(a.shape[2]);
  tiles.n = static_cast<int>(b.shape[1]);
  tiles.a = operand_words(a);
  tiles.b = operand_words(b);
  tiles.c = c_values.copy();
  tiles.d = d_values.copy();
  tiles.style = styles.copy();
  return tiles;
}

}  // namespace assay::numerics
