// Tensors that anybody can make again: every element follows from its place and a seed by integer
// arithmetic, so the device, the host and another program (tools/attention-peers) agree in every
// bit, which a checksum shows. Random mantissas plus a direction that makes key tiles high or low
// for a unit of query rows. Decides SPEC CUD-8.1. Host and device.
#pragma once

#include <cstdint>

#include "cuda/launch/one_sided_launch.hpp"
#include "model/core/dtype.hpp"
#include "model/core/expected.hpp"
#include "model/core/platform.hpp"

namespace assay::cuda {

// Rows [rows, heads, dim], dense; dim is a multiple of 4. Columns 0 to codes - 1 of a row hold the
// code of its block of block_rows rows instead of a random number: strength or -strength, drawn for
// each (block, head, column), strength where the draw is below `high` / 2^32 and, unless high_every
// is 0, in every high_every-th block. A negative strength stands for |strength| in every block.
struct AttentionRecipe {
  Dtype dtype = Dtype::kBf16;  // or F16, F8_E4M3
  std::int64_t rows = 0;
  int heads = 1, dim = 128;
  int block_rows = 64;
  int codes = 0;
  float strength = 0;
  std::uint32_t high = 0x80000000u;
  std::uint32_t seed = 1;
  int high_every = 0;
};

namespace recipe_detail {
// Two rounds of xor, shift and multiply (constants: C. Wellons, "hash-prospector", 2018).
ASSAY_HD constexpr std::uint32_t mixed(std::uint32_t x) {
  x ^= x >> 16;
  x *= 0x7FEB352Du;
  x ^= x >> 15;
  x *= 0x846CA68Bu;
  return x ^ (x >> 16);
}
ASSAY_HD constexpr std::uint32_t drawn(std::uint32_t seed, std::uint32_t a, std::uint32_t b,
                                       std::uint32_t c) {
  return mixed(mixed(mixed(seed + a) + b) + c);
}
// About normal, of variance 1: three numbers of ten bits. A multiple of 2^-9 below 3, so that f32
// holds it and only the element's own rounding remains.
ASSAY_HD constexpr float normal(std::uint32_t bits) {
  const int sum = static_cast<int>(bits & 0x3FF) + static_cast<int>(bits >> 10 & 0x3FF) +
                  static_cast<int>(bits >> 20 & 0x3FF);
  return static_cast<float>(sum - 1534) * (1.0f / 512);
}
}  // namespace recipe_detail

// Before it is rounded to the element's type.
ASSAY_HD constexpr float recipe_element(const AttentionRecipe& r, std::uint32_t row,
                                        std::uint32_t head, std::uint32_t column) {
  using namespace recipe_detail;
  if (static_cast<int>(column) >= r.codes) return normal(drawn(r.seed, row, head, column));
  if (r.strength < 0) return -r.strength;
  const std::uint32_t block = row / static_cast<std::uint32_t>(r.block_rows);
  const bool always = r.high_every != 0 && block % static_cast<std::uint32_t>(r.high_every) == 0;
  const bool high = always || drawn(r.seed ^ 0x51ED270Bu, block, head, column) < r.high;
  return high ? r.strength : -r.strength;
}

// Of a tensor as 32-bit words w[i]: the sum of w[i] * (2 i + 1) modulo 2^64.
ASSAY_HD constexpr std::uint64_t recipe_checksum_term(std::uint64_t index, std::uint32_t word) {
  return word * (2 * index + 1);
}

// kWholeTiles: a key tile is high or low for every query, and a share of the tiles is low.
// kUnits: a unit of 64 rows of a head and a key tile meet in a sum of 16 signs, drawn for each.
enum class AttentionPattern : std::uint8_t { kWholeTiles, kUnits };

struct AttentionShape {
  Dtype dtype = Dtype::kBf16;
  int q_heads = 64, kv_heads = 4, dim = 128;
  std::int32_t q_len = 0, kv_len = 0;
  bool decode = false;  // by the decode kernel
};

struct AttentionRecipes {
  AttentionRecipe q, k, v;
};
// `low`: share of low key tiles, with kWholeTiles. Strengths are SPEC VER-25.10's.
AttentionRecipes recipes_of(const AttentionShape& shape, AttentionPattern pattern, double low);

// On the host, for tests: the tensor's words.
std::uint32_t recipe_word(const AttentionRecipe& recipe, std::int64_t index);
std::uint64_t recipe_checksum(const AttentionRecipe& recipe);

// On the device (attention_recipe.cu): enqueued on the stream. `sum`, in device memory, is added
// to.
void fill_by_recipe(const AttentionRecipe& recipe, void* to, Stream stream);
void add_checksum(const void* words, std::int64_t count, std::uint64_t* sum, Stream stream);

}  // namespace assay::cuda
