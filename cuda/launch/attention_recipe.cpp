// The recipe on the host. See attention_recipe.hpp.
#include "cuda/launch/attention_recipe.hpp"

#include <cmath>

#include "cuda/launch/attention_launch.hpp"
#include "cuda/ops/scalar.hpp"

namespace assay::cuda {

// q . k is the square of a strength for each code that both share, times scale = 1 / sqrt(dim):
// with one code, 16 nats up or down; with 16 codes, 2.25 nats each.
AttentionRecipes recipes_of(const AttentionShape& shape, AttentionPattern pattern, double low) {
  const float unit = std::sqrt(std::sqrt(static_cast<float>(shape.dim)));
  const bool whole = pattern == AttentionPattern::kWholeTiles;
  AttentionRecipes r;
  r.q.dtype = r.k.dtype = r.v.dtype = shape.dtype;
  r.q.dim = r.k.dim = r.v.dim = shape.dim;
  r.q.rows = shape.q_len;
  r.q.heads = shape.q_heads;
  r.k.rows = r.v.rows = shape.kv_len;
  r.k.heads = r.v.heads = shape.kv_heads;
  r.q.codes = r.k.codes = whole ? 1 : 16;
  r.k.strength = (whole ? 4.0f : 1.5f) * unit;
  r.q.strength = whole ? -r.k.strength : r.k.strength;
  r.k.block_rows = prefill_kv_tile(shape.dim);
  if (whole) {
    r.k.high = static_cast<std::uint32_t>(std::lround((1 - low) * 4294967295.0));
    // The first tile is high, as a sink is: low tiles before all high ones would have to be kept.
    r.k.high_every = (shape.kv_len + r.k.block_rows - 1) / r.k.block_rows;
  }
  r.q.seed = 1;
  r.k.seed = 2;
  r.v.seed = 3;
  return r;
}

std::uint32_t recipe_word(const AttentionRecipe& r, std::int64_t index) {
  const bool fp8 = r.dtype == Dtype::kF8E4m3;
  const std::int64_t first = index * (fp8 ? 4 : 2);
  const std::int64_t row_elements = std::int64_t{r.heads} * r.dim;
  const auto row = static_cast<std::uint32_t>(first / row_elements);
  const auto head = static_cast<std::uint32_t>(first % row_elements / r.dim);
  const auto column = static_cast<std::uint32_t>(first % r.dim);
  const auto at = [&](std::uint32_t i) { return recipe_element(r, row, head, column + i); };
  if (fp8) return pack_e4m3(at(0), at(1), at(2), at(3));
  return r.dtype == Dtype::kF16 ? pack_rn<F16>(at(0), at(1)) : pack_rn<Bf16>(at(0), at(1));
}

std::uint64_t recipe_checksum(const AttentionRecipe& r) {
  const std::int64_t words = r.rows * r.heads * r.dim * static_cast<int>(dtype_bits(r.dtype)) / 32;
  std::uint64_t sum = 0;
  for (std::int64_t i = 0; i < words; ++i)
    sum += recipe_checksum_term(static_cast<std::uint64_t>(i), recipe_word(r, i));
  return sum;
}

}  // namespace assay::cuda
