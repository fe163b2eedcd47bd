// The recipe of tensors on the host: other programs make the same ones by the same numbers.
#include "cuda/launch/attention_recipe.hpp"

#include <cmath>
#include <set>

#include "cuda/launch/attention_ceilings.hpp"
#include "model/core/testing.hpp"

namespace assay::cuda {
namespace {

AttentionRecipe recipe(Dtype dtype, std::int64_t rows, int heads, int block_rows, int codes,
                       float strength, std::uint32_t high, std::uint32_t seed, int high_every = 0) {
  return {dtype, rows, heads, 64, block_rows, codes, strength, high, seed, high_every};
}

// The numbers stand in tools/attention-peers too, which computes them without this code.
TEST_CASE("checksums of recipes are those of the other program", "[CUD-8.1]") {
  CHECK(recipe_checksum(recipe(Dtype::kBf16, 70, 3, 64, 0, 0, 0x80000000u, 3)) ==
        0x0155151ff16e2140u);
  CHECK(recipe_checksum(recipe(Dtype::kF16, 130, 2, 64, 16, 4.25f, 0x80000000u, 1)) ==
        0x021bd7684f1da0f3u);
  CHECK(recipe_checksum(recipe(Dtype::kBf16, 300, 1, 128, 1, 13.5f, 0x40000000u, 2)) ==
        0x02ba384a5aba33a8u);
  CHECK(recipe_checksum(recipe(Dtype::kBf16, 5, 2, 64, 1, -13.5f, 0x80000000u, 1)) ==
        0x0000d23cdd8e3933u);
  CHECK(recipe_checksum(recipe(Dtype::kBf16, 700, 2, 64, 1, 13.5f, 0x20000000u, 4, 4)) ==
        0x3b5698cfb4f20a7cu);
}

TEST_CASE("a checksum notices one bit, and two words that changed places", "[CUD-8.1]") {
  const auto sum = [](std::uint32_t a, std::uint32_t b) {
    return recipe_checksum_term(0, a) + recipe_checksum_term(1, b);
  };
  CHECK(sum(1, 2) != sum(2, 1));
  CHECK(sum(1, 2) != sum(1, 3));
}

TEST_CASE("elements have mean 0 and variance 1, and blocks a code of their own", "[CUD-8.1]") {
  const AttentionRecipe r = recipe(Dtype::kBf16, 4096, 1, 128, 1, 2.0f, 0x40000000u, 9);
  double sum = 0, squares = 0;
  int low = 0;
  for (std::uint32_t row = 0; row < 4096; ++row) {
    const float code = recipe_element(r, row, 0, 0);
    CHECK((code == 2.0f || code == -2.0f));
    CHECK(code == recipe_element(r, row / 128 * 128, 0, 0));
    low += row % 128 == 0 && code < 0;
    for (std::uint32_t column = 1; column < 64; ++column) {
      const double x = recipe_element(r, row, 0, column);
      sum += x;
      squares += x * x;
    }
  }
  // 258,048 numbers: the mean's deviation is 0.002, that of the variance 0.003.
  CHECK(std::abs(sum / 258048) < 0.01);
  CHECK(std::abs(squares / 258048 - 1) < 0.015);
  CHECK((low > 16 && low < 31));  // of 32 blocks, each with probability 3/4
}

// The part of q . k that the codes make, in nats, for a block of query rows and a key tile.
double gap(const AttentionRecipes& r, std::uint32_t row, std::uint32_t key, std::uint32_t head) {
  double sum = 0;
  for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(r.q.codes); ++i)
    sum += static_cast<double>(recipe_element(r.q, row, head, i)) *
           static_cast<double>(recipe_element(r.k, key, 0, i));
  return sum / std::sqrt(r.q.dim);
}

TEST_CASE("whole tiles are 16 nats up or down, units a multiple of 2.25 of their own",
          "[VER-25.10]") {
  for (const int dim : {64, 128, 256}) {
    const AttentionShape shape{Dtype::kBf16, 4, 1, dim, 512, 8192};
    const AttentionRecipes whole = recipes_of(shape, AttentionPattern::kWholeTiles, 0.7);
    const int tile = dim > 128 ? 64 : 128, tiles = 8192 / tile;
    int low = 0;
    for (int i = 0; i < tiles; ++i) {
      const double nats = gap(whole, 5, static_cast<std::uint32_t>(i * tile), 3);
      CHECK(std::abs(std::abs(nats) - 16) < 1e-4);
      CHECK(nats == gap(whole, 500, static_cast<std::uint32_t>(i * tile + tile - 1), 0));
      low += nats < 0;
    }
    CHECK(std::abs(static_cast<double>(low) / tiles - 0.7) < 0.2);
    const AttentionRecipes units = recipes_of(shape, AttentionPattern::kUnits, 0);
    std::set<long> seen;
    for (std::uint32_t row = 0; row < 512; row += 64)
      for (std::uint32_t head = 0; head < 4; ++head) {
        const double nats = gap(units, row, 0, head);
        CHECK(std::abs(nats / 2.25 - static_cast<double>(std::lround(nats / 2.25))) < 1e-4);
        CHECK(nats == gap(units, row + 63, 100 % static_cast<std::uint32_t>(tile), head));
        seen.insert(std::lround(nats / 2.25));
      }
    CHECK(seen.size() > 4);
  }
}

TEST_CASE("the matrix ceiling counts what its instructions compute", "[CUD-8.2]") {
  // Two warpgroups of m 64, n 256, over 128 bytes of k, 32 times.
  CHECK(matrix_round_flop(Dtype::kBf16) == 2.0 * 2 * 64 * 256 * 64 * 32);
  CHECK(matrix_round_flop(Dtype::kF8E4m3) == 2 * matrix_round_flop(Dtype::kF16));
  CHECK(kMatrixOperandBytes == (2 * 64 + 256) * 128);
}

}  // namespace
}  // namespace assay::cuda
