// The order of work, what units visit, the maps of fragments, and where operands lie in shared
// memory, by enumeration.
#include <random>
#include <set>
#include <tuple>

#include "cuda/kernels/attention/plan.hpp"
#include "cuda/kernels/attention/prefill_shape.cuh"
#include "cuda/ops/matrix_descriptor.hpp"
#include "model/core/testing.hpp"

namespace assay::attention_kernels {
namespace {

TEST_CASE("every tile of every head is worked on once, the longest of a section first",
          "[CUD-6.2]") {
  for (int heads = 1; heads <= 9; ++heads) {
    for (int section = 1; section <= heads; ++section) {
      for (int tiles = 1; tiles <= 5; ++tiles) {
        std::set<std::pair<int, int>> seen;
        Place before{-1, tiles};
        for (int n = 0; n < heads * tiles; ++n) {
          const Place place = place_of(n, tiles, heads, section);
          REQUIRE(place.head >= 0);
          REQUIRE(place.head < heads);
          REQUIRE(place.q_tile >= 0);
          REQUIRE(place.q_tile < tiles);
          CHECK(seen.insert({place.head, place.q_tile}).second);
          const bool same_section = n > 0 && place.head / section == before.head / section;
          if (same_section) CHECK(place.q_tile <= before.q_tile);
          if (n > 0) CHECK(place.head / section >= before.head / section);
          before = place;
        }
        CHECK(seen.size() == static_cast<std::size_t>(heads * tiles));
      }
    }
  }
}

TEST_CASE("the blocks of a cluster take neighbouring heads, which read the same keys",
          "[CUD-6.9]") {
  for (const int group : {2, 4, 16}) {
    for (int kv_heads = 1; kv_heads <= 4; ++kv_heads) {
      for (int sections = 1; sections <= kv_heads; ++sections) {
        const int heads = group * kv_heads, section = group * sections, tiles = 3;
        std::set<std::pair<int, int>> seen;
        for (int n = 0; n < heads / 2 * tiles; ++n) {
          const Place first = place_in_cluster(n, tiles, heads, section, 2, 0);
          const Place second = place_in_cluster(n, tiles, heads, section, 2, 1);
          CHECK(first.q_tile == second.q_tile);
          CHECK(first.head / group == second.head / group);
          CHECK(first.head < second.head);
          CHECK(first.q_tile == place_of(2 * n, tiles, heads, section).q_tile);
          for (const Place place : {first, second}) {
            REQUIRE(place.head < heads);
            CHECK(seen.insert({place.head, place.q_tile}).second);
          }
        }
        CHECK(seen.size() == static_cast<std::size_t>(heads * tiles));
      }
    }
  }
}

TEST_CASE("a descriptor holds where its block's shared memory has the operand, in any cluster",
          "[CUD-6.1][CUD-6.9]") {
  // What an H200 gives the second block of a cluster for the address that is 0x400 in the first.
  for (const std::uint32_t address : {0x400u, 0x4000u, 0x37c00u}) {
    const std::uint32_t second = address + 0x01000000;
    CHECK(cuda::k_major(second).at(32) == cuda::k_major(address).at(32));
    CHECK(cuda::n_major<16384>(second).at(2048) == cuda::n_major<16384>(address).at(2048));
    CHECK((cuda::n_major<16384>(second).at(0) >> 16 & 0x3FFF) == 16384 / 16);
  }
}

TEST_CASE("a unit visits exactly the tiles that hold a key one of its rows sees", "[CUD-6.3]") {
  std::mt19937 random(5);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int time = 0; time < 4000; ++time) {
    RequestShape shape;
    shape.q_len = below(300);
    shape.kv_len = below(400);
    shape.q_offset = below(500) - 200;
    const auto kind = static_cast<MaskKind>(below(4));
    const int size = 1 + below(200), kv_tile = below(2) ? 128 : 64;
    const int tiles = q_tiles_of(shape.q_len, 2);
    CHECK(tiles * 128 >= shape.q_len);
    CHECK((tiles - 1) * 128 < shape.q_len);
    for (int q_tile = 0; q_tile < tiles; ++q_tile) {
      const Work<2> work = work_of<2>(3, shape, {7, q_tile}, kind, size, kv_tile);
      CHECK(work.valid == 1);
      CHECK(std::tuple(work.request, work.head, work.first_row) == std::tuple(3, 7, q_tile * 128));
      const Mask mask{kind, size, shape.q_offset};
      for (int u = 0; u < 2; ++u) {
        std::set<int> visited, partly;
        for (int row = work.first_row + 64 * u; row < work.first_row + 64 * (u + 1); ++row) {
          if (row >= shape.q_len) continue;
          for (int tile = 0; tile * kv_tile < shape.kv_len; ++tile) {
            const Range keys = attention::visible_keys(mask, row, shape.kv_len);
            const int first = tile * kv_tile, last = first + kv_tile;
            if (keys.begin < last && first < keys.end) visited.insert(tile);
            if (keys.begin > first || keys.end < last) partly.insert(tile);
          }
        }
        const TileRanges& ranges = work.unit[u];
        CHECK(ranges.visited.count() == static_cast<int>(visited.size()));
        for (const int tile : visited) {
          CHECK(ranges.visited.contains(tile));
          CHECK(work.all.contains(tile));
          if (ranges.whole.contains(tile)) CHECK(partly.count(tile) == 0);
        }
      }
    }
  }
}

TEST_CASE("lengths in device memory are forced into the rows there are", "[CUD-6.5]") {
  CHECK(bounded(-1, 10) == 0);
  CHECK(bounded(INT32_MIN, 10) == 0);
  CHECK(bounded(10, 10) == 10);
  CHECK(bounded(INT32_MAX, 10) == 10);
  CHECK(bounded(5, -3) == 0);
  CHECK(q_tiles_of(INT32_MAX, 2) == (1 << 24));
}

TEST_CASE("a ring's places repeat its stages with alternating parity", "[CUD-6.4]") {
  RingPlace<3> at;
  for (unsigned i = 0; i < 20; ++i) {
    CHECK(at.stage == i % 3);
    CHECK(at.parity == i / 3 % 2);
    at.advance();
  }
}

TEST_CASE("a warpgroup's fragments cover a product once, and P's are those of S", "[CUD-6.6]") {
  std::set<std::pair<int, int>> seen;
  for (int thread = 0; thread < 128; ++thread) {
    for (int i = 0; i < 64; ++i) {
      CHECK(seen.insert({fragment_row(thread, i), fragment_column(thread, i)}).second);
      // A register of the A operand of 16 columns k holds two neighbours of one row: words 0 and 1
      // are rows g and g + 8 of columns 2 q, words 2 and 3 the same of columns 2 q + 8 (PTX ISA 9).
      const int k = i / 8, word = i % 8 / 2;
      const int row = thread / 32 * 16 + thread % 32 / 4 + word % 2 * 8;
      const int column = 16 * k + word / 2 * 8 + thread % 4 * 2 + i % 2;
      CHECK(fragment_row(thread, i) == row);
      CHECK(fragment_column(thread, i) == column);
    }
  }
  CHECK(seen.size() == 64 * 128);
}

// Where the copy engine puts byte `byte` of row `row` of a chunk of 128-byte rows: bits 4 to 6 of
// the address are those that count pieces of 16 bytes, and bits 7 to 9, the row modulo 8, permute
// them.
std::uint32_t placed(std::uint32_t chunk, int row, int byte) {
  const std::uint32_t linear = chunk + static_cast<std::uint32_t>(row * 128 + byte);
  return linear ^ ((linear >> 7 & 7) << 4);
}

// Where the matrix instruction looks, by PTX ISA 9's canonical layouts for the 128-byte swizzle.
struct Reader {
  std::uint32_t start, leading, stride;
  explicit Reader(std::uint64_t descriptor)
      : start(static_cast<std::uint32_t>(descriptor & 0x3FFF) * 16),
        leading(static_cast<std::uint32_t>(descriptor >> 16 & 0x3FFF) * 16),
        stride(static_cast<std::uint32_t>(descriptor >> 32 & 0x3FFF) * 16) {
    CHECK(descriptor >> 62 == 1);
    CHECK((descriptor >> 49 & 7) == 0);
  }
  static std::uint32_t swizzled(std::uint32_t linear) { return linear ^ ((linear >> 7 & 7) << 4); }
  // Byte `byte` of the k of row m (or n): rows 128 bytes apart within an atom.
  std::uint32_t k_major(int row, int byte) const {
    return swizzled(start + static_cast<std::uint32_t>(row / 8) * stride +
                    static_cast<std::uint32_t>(row % 8 * 128 + byte));
  }
  // Element n of row k: 64 columns in a row, further ones `leading` apart, 8 rows an atom.
  std::uint32_t n_major(int k, int n) const {
    return swizzled(start + static_cast<std::uint32_t>(n / 64) * leading +
                    static_cast<std::uint32_t>(k / 8) * stride +
                    static_cast<std::uint32_t>(k % 8 * 128 + n % 64 * 2));
  }
};

template <class T, int kDim>
void check_operands() {
  using Shape = PrefillShape<T, kDim, Bf16>;
  constexpr std::uint32_t kBase = 2048;  // shared memory is aligned to 1024
  constexpr int kSize = static_cast<int>(sizeof(T));
  for (std::uint32_t stage = 0; stage < 2; ++stage) {
    const std::uint32_t q = kBase + Shape::kQueriesAt + stage * Shape::kQueryBytes;
    const std::uint32_t keys = kBase + Shape::kKeysAt + stage * Shape::kTileBytes;
    const std::uint32_t values = kBase + Shape::kValuesAt + stage * Shape::kTileBytes;
    const std::uint32_t transposed = kBase + Shape::kTransposedAt + stage * Shape::kTransposedBytes;
    // S = Q K^T: instruction `step` takes bytes 32 step to 32 step + 31 of both.
    for (int step = 0; step < kDim * kSize / 32; ++step) {
      const int chunk = step / 4, byte = step % 4 * 32;
      const Reader a(cuda::k_major(q).at(chunk * Shape::kQueryChunkBytes + byte));
      const Reader b(cuda::k_major(keys).at(chunk * Shape::kTileChunkBytes + byte));
      bool same = true;
      for (int k = 0; k < 32; ++k) {
        const int at = 32 * step + k;
        for (int row = 0; row < kUnitRows; ++row)
          same &= a.k_major(row, k) ==
                  placed(q + static_cast<std::uint32_t>(at / 128 * Shape::kQueryChunkBytes), row,
                         at % 128);
        for (int row = 0; row < Shape::kTile; ++row)
          same &= b.k_major(row, k) ==
                  placed(keys + static_cast<std::uint32_t>(at / 128 * Shape::kTileChunkBytes), row,
                         at % 128);
      }
      CHECK(same);
    }
    if constexpr (Shape::kFp8) {
      // P V by parts of columns: instruction `step` takes bytes 32 step on of V^T's rows.
      for (int part = 0; part < kDim / Shape::kPartColumns; ++part) {
        for (int step = 0; step < Shape::kTile / 32; ++step) {
          const Reader b(
              cuda::k_major(transposed).at(part * Shape::kPartColumns * 128 + step * 32));
          bool same = true;
          for (int n = 0; n < Shape::kPartColumns; ++n)
            for (int k = 0; k < 32; ++k)
              same &= b.k_major(n, k) ==
                      placed(transposed, part * Shape::kPartColumns + n, 32 * step + k);
          CHECK(same);
        }
      }
      continue;
    }
    // O += P V: instruction `step` takes keys 16 step to 16 step + 15.
    for (int step = 0; step < Shape::kTile / 16; ++step) {
      const Reader b(cuda::n_major<Shape::kTileChunkBytes>(values).at(step * 16 * 128));
      bool same = true;
      for (int k = 0; k < 16; ++k)
        for (int n = 0; n < kDim; ++n)
          same &= b.n_major(k, n) ==
                  placed(values + static_cast<std::uint32_t>(n / 64 * Shape::kTileChunkBytes),
                         16 * step + k, n % 64 * 2);
      CHECK(same);
    }
  }
  CHECK(Shape::kQueriesAt % 1024 + Shape::kKeysAt % 1024 + Shape::kValuesAt % 1024 == 0);
  CHECK(Shape::kTransposedAt % 1024 == 0);
  CHECK(Shape::kTileChunkBytes % 1024 + Shape::kQueryChunkBytes % 1024 == 0);
  CHECK(Shape::kBarriersAt % 8 == 0);
  CHECK(Shape::kWorkAt % 8 == 0);
}

TEST_CASE("the matrix instructions look where the copy engine puts an element",
          "[CUD-6.1][CUD-6.8]") {
  check_operands<Bf16, 64>();
  check_operands<Bf16, 128>();
  check_operands<Bf16, 256>();
  check_operands<E4m3, 128>();
  check_operands<E4m3, 256>();
}

TEST_CASE("rows stay contiguous under the swizzle, so that a range of bytes is a range of rows",
          "[CUD-6.1]") {
  for (int row = 0; row < 128; ++row)
    for (int byte = 0; byte < 128; ++byte)
      REQUIRE(placed(4096, row, byte) / 128 == static_cast<unsigned>(4096 / 128 + row));
}

}  // namespace
}  // namespace assay::attention_kernels
