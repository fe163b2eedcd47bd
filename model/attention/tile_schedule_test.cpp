// Tile schedules against brute force over small spaces.
#include "model/attention/tile_schedule.hpp"

#include <set>

#include "model/core/testing.hpp"

namespace {

using namespace assay::attention;

// The definition, key by key.
bool sees(const Mask& mask, int row, int key) {
  const int p = row + mask.q_offset;
  switch (mask.kind) {
    case MaskKind::kFull:
      return true;
    case MaskKind::kCausal:
      return key <= p;
    case MaskKind::kWindow:
      return key <= p && key > p - mask.size;
    case MaskKind::kChunked:
      return p >= 0 && key <= p && key / mask.size == p / mask.size;
  }
  return false;
}

template <class Visit>
void every_mask(const Visit& visit) {
  for (const MaskKind kind :
       {MaskKind::kFull, MaskKind::kCausal, MaskKind::kWindow, MaskKind::kChunked})
    for (int size = 1; size <= 5; ++size)
      for (int offset = -5; offset <= 9; ++offset) visit(Mask{kind, size, offset});
}

}  // namespace

TEST_CASE("a row sees the keys that the mask's definition names", "[ATT-1.1]") {
  every_mask([](const Mask& mask) {
    for (int kv_len = 0; kv_len <= 9; ++kv_len) {
      for (int row = 0; row < 8; ++row) {
        const Range keys = visible_keys(mask, row, kv_len);
        for (int key = 0; key < kv_len; ++key)
          if (keys.contains(key) != sees(mask, row, key)) {
            CAPTURE(static_cast<int>(mask.kind), mask.size, mask.q_offset, kv_len, row, key);
            FAIL("visible_keys disagrees with the definition");
          }
        if (keys.begin < 0 || keys.end > kv_len) FAIL("keys outside the request");
      }
    }
  });
}

TEST_CASE("visited tiles hold all keys that some row sees, and whole ones need no mask",
          "[ATT-1.2]") {
  every_mask([](const Mask& mask) {
    for (int kv_len = 0; kv_len <= 9; ++kv_len)
      for (int rows = 1; rows <= 6; ++rows)
        for (int kv_tile = 1; kv_tile <= 4; ++kv_tile) {
          const TileRanges ranges = tiles_of_rows(mask, 1, rows, kv_len, kv_tile);
          int first = 1 << 20, last = -1;
          for (int tile = 0; tile * kv_tile < kv_len; ++tile) {
            bool any = false, all = true;
            for (int row = 1; row <= rows; ++row)
              for (int key = tile * kv_tile; key < (tile + 1) * kv_tile; ++key) {
                const bool seen = key < kv_len && sees(mask, row, key);
                any |= seen;
                all &= seen;
              }
            if (any) first = std::min(first, tile), last = tile;
            CAPTURE(static_cast<int>(mask.kind), mask.size, mask.q_offset, kv_len, rows, kv_tile,
                    tile);
            if (ranges.whole.contains(tile) != all) FAIL("whole is wrong");
            if (any && !ranges.visited.contains(tile)) FAIL("a visible tile is not visited");
          }
          // Tight at both ends. (Between them a chunk or window leaves no gap.)
          const Range expected = last < 0 ? Range{0, 0} : Range{first, last + 1};
          if (!(ranges.visited == expected)) FAIL("visited is not tight");
        }
  });
}

TEST_CASE("rows of a group are numbered token by token", "[ATT-1.3]") {
  std::set<std::pair<int, int>> seen;
  for (int row = 0; row < 12; ++row) {
    const PackedRow packed = packed_row(Packing::kGroupRows, row, 4);
    REQUIRE(packed.token * 4 + packed.head == row);
    seen.insert({packed.token, packed.head});
    REQUIRE(packed_row(Packing::kHeadRows, row, 4).token == row);
  }
  REQUIRE(seen.size() == 12);
}

TEST_CASE("chunks and splits cover every visited tile once, whatever the number of splits",
          "[ATT-1.4]") {
  for (int begin = 0; begin < 7; ++begin)
    for (int end = begin; end < 14; ++end)
      for (int per_chunk = 1; per_chunk <= 5; ++per_chunk)
        for (int splits = 1; splits <= 6; ++splits) {
          const Range tiles{begin, end};
          const int first = first_chunk(tiles, per_chunk);
          const int chunks = chunk_end(tiles, per_chunk) - first;
          int expected = begin;
          for (int s = 0; s < splits; ++s) {
            const Range mine = chunks_of_split(chunks, s, splits);
            for (int c = mine.begin; c < mine.end; ++c) {
              const Range t = tiles_of_chunk(tiles, first + c, per_chunk);
              REQUIRE(t.begin == expected);
              REQUIRE(t.count() > 0);
              REQUIRE(t.begin / per_chunk == (t.end - 1) / per_chunk);
              expected = t.end;
            }
          }
          REQUIRE(expected == end);
        }
}
