// Which keys a query row may see, and which key tiles a block of rows visits because of it: the one
// header that kernels and the model share (no containers, host and device). Decides SPEC ATT-1.1 to
// ATT-1.4. Not decided here: whether a visited tile is skipped (vote.hpp), and packed custom masks,
// which restrict further what kFull lets a row see.
#pragma once

#include <cstdint>

#include "model/core/platform.hpp"

namespace assay::attention {

enum class MaskKind : std::uint8_t { kFull, kCausal, kWindow, kChunked };

// A query row's position among the keys is row + q_offset. kCausal: keys up to the position.
// kWindow: of those the last `size`. kChunked: of those the ones in the position's own chunk of
// `size` keys. Bottom-right alignment is q_offset = kv_len - q_len, top-left is 0 (SPEC ATT-1.1).
struct Mask {
  MaskKind kind = MaskKind::kFull;
  std::int32_t size = 0;
  std::int32_t q_offset = 0;
};

// Keys or tiles [begin, end); empty if end <= begin.
struct Range {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  ASSAY_HD constexpr bool empty() const { return end <= begin; }
  ASSAY_HD constexpr bool contains(std::int32_t i) const { return begin <= i && i < end; }
  ASSAY_HD constexpr std::int32_t count() const { return empty() ? 0 : end - begin; }
  friend ASSAY_HD constexpr bool operator==(Range a, Range b) {
    return (a.empty() && b.empty()) || (a.begin == b.begin && a.end == b.end);
  }
};

namespace schedule_detail {
ASSAY_HD constexpr std::int32_t smaller(std::int32_t a, std::int32_t b) { return a < b ? a : b; }
ASSAY_HD constexpr std::int32_t larger(std::int32_t a, std::int32_t b) { return a < b ? b : a; }
// Toward minus infinity; b is positive.
ASSAY_HD constexpr std::int32_t floor_div(std::int32_t a, std::int32_t b) {
  return a >= 0 ? a / b : -((-a + b - 1) / b);
}
}  // namespace schedule_detail

// The keys that `row` sees, out of kv_len. A row before the first key sees none (SPEC ATT-1.1).
ASSAY_HD constexpr Range visible_keys(const Mask& mask, std::int32_t row, std::int32_t kv_len) {
  using namespace schedule_detail;
  if (mask.kind == MaskKind::kFull) return {0, kv_len};
  const std::int32_t position = row + mask.q_offset;
  Range keys{0, smaller(position + 1, kv_len)};
  if (mask.kind == MaskKind::kWindow) keys.begin = larger(0, position + 1 - mask.size);
  if (mask.kind == MaskKind::kChunked)
    keys.begin = larger(0, floor_div(position, mask.size) * mask.size);
  return keys.empty() ? Range{0, 0} : keys;
}

// What a block of rows does with the key tiles of kv_tile keys. Tiles outside `visited` hold no key
// that any of the rows sees, and are neither computed nor counted; those in `whole` are seen
// completely by every row and need no mask (SPEC ATT-1.2).
struct TileRanges {
  Range visited;
  Range whole;
};

// For rows [first_row, first_row + rows). From one row to the next neither end of what it sees
// moves back, so the first and the last row that see a key bound the others.
ASSAY_HD constexpr TileRanges tiles_of_rows(const Mask& mask, std::int32_t first_row,
                                            std::int32_t rows, std::int32_t kv_len,
                                            std::int32_t kv_tile) {
  TileRanges out;
  std::int32_t first = first_row;
  std::int32_t last = first_row + rows - 1;
  while (last >= first && visible_keys(mask, last, kv_len).empty()) --last;
  while (first < last && visible_keys(mask, first, kv_len).empty()) ++first;
  if (last < first) return out;
  const Range low = visible_keys(mask, first, kv_len);
  const Range high = visible_keys(mask, last, kv_len);
  out.visited = {low.begin / kv_tile, (high.end + kv_tile - 1) / kv_tile};
  out.whole = {out.visited.begin, out.visited.begin};
  const bool every_row_sees = first == first_row && last == first_row + rows - 1;
  const Range whole{(high.begin + kv_tile - 1) / kv_tile, low.end / kv_tile};
  if (every_row_sees && !whole.empty()) out.whole = whole;
  return out;
}

// Split keys: chunk c holds the tiles of keys [c * chunk_keys, (c + 1) * chunk_keys), counted from
// key 0 whatever is visited, so that a chunk's content depends on neither the number of splits nor
// the mask (SPEC ATT-1.4). chunk_keys is a multiple of kv_tile.
ASSAY_HD constexpr std::int32_t first_chunk(Range tiles, std::int32_t tiles_per_chunk) {
  return tiles.begin / tiles_per_chunk;
}
ASSAY_HD constexpr std::int32_t chunk_end(Range tiles, std::int32_t tiles_per_chunk) {
  return tiles.empty() ? first_chunk(tiles, tiles_per_chunk)
                       : (tiles.end + tiles_per_chunk - 1) / tiles_per_chunk;
}
ASSAY_HD constexpr Range tiles_of_chunk(Range tiles, std::int32_t chunk,
                                        std::int32_t tiles_per_chunk) {
  return {schedule_detail::larger(tiles.begin, chunk * tiles_per_chunk),
          schedule_detail::smaller(tiles.end, (chunk + 1) * tiles_per_chunk)};
}

// The chunks [begin, end) of split s out of `splits`: as even as can be, the first ones larger
// (SPEC ATT-1.4).
ASSAY_HD constexpr Range chunks_of_split(std::int32_t chunks, std::int32_t split,
                                         std::int32_t splits) {
  const std::int32_t each = chunks / splits;
  const std::int32_t more = chunks % splits;
  const std::int32_t begin = split * each + schedule_detail::smaller(split, more);
  return {begin, begin + each + (split < more ? 1 : 0)};
}

// Which rows a unit holds. kHeadRows: unit_rows consecutive query rows of one query head.
// kGroupRows: the query heads of one key head, packed with the query tokens: row r is token
// r / group, head r % group (SPEC ATT-1.3).
enum class Packing : std::uint8_t { kHeadRows, kGroupRows };

struct PackedRow {
  std::int32_t token;
  std::int32_t head;  // within the group of query heads that share a key head
};
ASSAY_HD constexpr PackedRow packed_row(Packing packing, std::int32_t row, std::int32_t group) {
  return packing == Packing::kHeadRows ? PackedRow{row, 0} : PackedRow{row / group, row % group};
}

}  // namespace assay::attention
