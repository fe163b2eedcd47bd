// What the blocks of a decode kernel work on: which rows, which chunk of keys, in which order, and
// where the result of a chunk waits for the others of its unit. Host and device; the tests run it
// on the host. Decides SPEC CUD-7.2. Not decided here: what roles do with it (decode_flow.hpp).
#pragma once

#include <cstdint>

#include "cuda/kernels/attention/plan.hpp"

namespace assay::attention_kernels {

inline constexpr int kDecodeTile = 64;  // keys (SPEC ATT-6.4)
inline constexpr int kChunkTiles = 32;  // 2048 keys with a maximum of their own

// A unit: kUnitRows packed rows, row r being token r / group, head r % group of a key head's. As
// many units as q_len * group rows fill.
ASSAY_HD constexpr std::int32_t decode_units(std::int32_t q_len, std::int32_t group) {
  return (q_len * group + kUnitRows - 1) / kUnitRows;
}
// Chunks that hold a key. A request without keys has one all the same: somebody writes its zeros.
ASSAY_HD constexpr std::int32_t decode_chunks(std::int32_t kv_len) {
  constexpr std::int32_t kKeys = kChunkTiles * kDecodeTile;
  return kv_len == 0 ? 1 : kv_len / kKeys + (kv_len % kKeys != 0 ? 1 : 0);
}

// Splits of a unit: pieces of work of so many chunks, counted from key 0.
ASSAY_HD constexpr std::int32_t decode_splits(std::int32_t kv_len, std::int32_t chunks_per_piece) {
  return (decode_chunks(kv_len) + chunks_per_piece - 1) / chunks_per_piece;
}

// The n-th piece of a request's work: heads side by side, because their keys lie side by side in
// memory; then units, which share keys; then splits (SPEC CUD-7.2).
struct DecodePlace {
  std::int32_t head = 0;  // of keys
  std::int32_t unit = 0;
  std::int32_t split = 0;
};
ASSAY_HD constexpr DecodePlace decode_place(std::int32_t n, std::int32_t kv_heads,
                                            std::int32_t units) {
  return {n % kv_heads, n / kv_heads % units, n / kv_heads / units};
}

// What a block does for one piece. `valid` is 0 for the last one, which means that there is no
// more.
struct DecodeItem {
  std::int32_t valid = 0;
  std::int32_t request = 0;
  DecodePlace place;
  std::int32_t rows = 0;    // of the unit, within q_len
  std::int32_t leads = 0;   // 1: it has the unit's first chunk, and folds its chunks
  std::int32_t is_all = 0;  // 1: and the last one: what comes out is the output
  RequestShape shape;
  Range tiles;  // of the piece
  Range whole;  // of the unit: tiles that need no mask
};

// The tiles of a unit, of its rows within q_len only (SPEC ATT-1.2).
ASSAY_HD constexpr TileRanges decode_tiles(const Mask& mask, const RequestShape& shape,
                                           std::int32_t group, std::int32_t unit) {
  const std::int32_t first = unit * kUnitRows / group;
  const std::int32_t last = attention::schedule_detail::smaller(
      shape.q_len - 1, (unit * kUnitRows + kUnitRows - 1) / group);
  if (last < first) return {};
  return attention::tiles_of_rows(mask, first, last - first + 1, shape.kv_len, kDecodeTile);
}
ASSAY_HD constexpr Range chunks_of(Range tiles) {
  return {attention::first_chunk(tiles, kChunkTiles), attention::chunk_end(tiles, kChunkTiles)};
}
// Of a unit's chunks, those of a split.
ASSAY_HD constexpr Range chunks_of_split(Range chunks, std::int32_t split,
                                         std::int32_t chunks_per_piece) {
  using namespace attention::schedule_detail;
  return {larger(chunks.begin, split * chunks_per_piece),
          smaller(chunks.end, (split + 1) * chunks_per_piece)};
}
// Whether a tile is its piece's last of a chunk.
ASSAY_HD constexpr bool ends_chunk(const DecodeItem& item, std::int32_t tile) {
  return (tile + 1) % kChunkTiles == 0 || tile + 1 == item.tiles.end;
}

// A piece, or nothing to do (`valid` 1, rows 0): a split of which the unit sees no tile, but for
// the first one of a unit that sees none at all. `kind` and `size` are the mask's.
ASSAY_HD constexpr DecodeItem decode_item(std::int32_t request, const RequestShape& shape,
                                          std::int32_t group, DecodePlace place,
                                          std::int32_t chunks_per_piece, MaskKind kind,
                                          std::int32_t size) {
  using namespace attention::schedule_detail;
  DecodeItem item;
  item.valid = 1;
  item.request = request;
  item.place = place;
  item.shape = shape;
  const TileRanges all = decode_tiles({kind, size, shape.q_offset}, shape, group, place.unit);
  const Range chunks = chunks_of(all.visited);
  const Range mine = chunks_of_split(chunks, place.split, chunks_per_piece);
  item.whole = all.whole;
  if (!mine.empty()) {
    item.tiles = {larger(all.visited.begin, mine.begin * kChunkTiles),
                  smaller(all.visited.end, mine.end * kChunkTiles)};
    item.leads = mine.begin == chunks.begin;
    item.is_all = item.leads != 0 && mine.end == chunks.end;
  } else if (chunks.empty() && place.split == 0) {
    item.leads = item.is_all = 1;
  } else {
    return item;
  }
  item.rows = bounded(shape.q_len * group - place.unit * kUnitRows, kUnitRows);
  return item;
}

// Where pieces wait for each other: an entry for every chunk that any request might have.
struct PartialShape {
  std::int32_t units = 0;   // of a request and key head
  std::int32_t chunks = 0;  // of a unit
  std::int32_t rows = 0;    // of a unit
  ASSAY_HD constexpr std::int64_t entry(std::int32_t request, std::int32_t kv_heads,
                                        std::int32_t head, std::int32_t unit,
                                        std::int32_t chunk) const {
    return ((std::int64_t{request} * kv_heads + head) * units + unit) * chunks + chunk;
  }
};

// What is left of a unit of several pieces: one entry of its first piece, whose chunks were folded,
// at the first of these; then one of every further chunk.
struct LeftEntries {
  std::int32_t first = 0;  // chunk of entry 0
  std::int32_t then = 0;   // of entry 1
  std::int32_t count = 0;
  ASSAY_HD constexpr std::int32_t chunk(std::int32_t i) const {
    return i == 0 ? first : then + i - 1;
  }
};
ASSAY_HD constexpr LeftEntries left_entries(Range chunks, std::int32_t chunks_per_piece) {
  if (chunks.empty()) return {};
  const Range lead = chunks_of_split(chunks, chunks.begin / chunks_per_piece, chunks_per_piece);
  return {chunks.begin, lead.end, 1 + chunks.end - lead.end};
}

// What a warp of the merge does: 32 columns of a row, one a lane.
inline constexpr int kMergeColumns = 32;
struct MergePlace {
  std::int32_t request = 0;  // one that does not exist: nothing to do
  DecodePlace place;         // of the unit; its split is not said
  std::int32_t row = 0;      // of the unit
  std::int32_t column = 0;   // the first of 32
};
ASSAY_HD constexpr std::int64_t merge_warps(std::int32_t requests, std::int32_t kv_heads,
                                            const PartialShape& shape, std::int32_t head_dim) {
  return std::int64_t{requests} * kv_heads * shape.units * shape.rows * (head_dim / kMergeColumns);
}
ASSAY_HD constexpr MergePlace merge_place(std::int64_t n, std::int32_t kv_heads,
                                          const PartialShape& shape, std::int32_t head_dim) {
  const auto take = [&](std::int32_t count) {
    const auto digit = static_cast<std::int32_t>(n % count);
    n /= count;
    return digit;
  };
  MergePlace m;
  m.column = take(head_dim / kMergeColumns) * kMergeColumns;
  m.row = take(shape.rows);
  m.place.head = take(kv_heads);
  m.place.unit = take(shape.units);
  m.request = static_cast<std::int32_t>(n);
  return m;
}

}  // namespace assay::attention_kernels
