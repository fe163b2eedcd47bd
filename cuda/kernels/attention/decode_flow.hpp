// The order in which the roles of a decode block wait, issue and release: a warp that fetches
// queries and keys, one that fetches values, four that compute scores and decide, four that add
// values. Templates over what executes a step, so that the text which runs on the GPU is the text
// whose interleavings the tests enumerate. Decides SPEC CUD-7.3. Not decided here: what a step does
// (decode_sm90.cuh).
//
// Keys pass through a ring. Every kept tile makes an entry in a second ring, P in one part of it
// and values in the other, and so does the end of every chunk; a skipped tile makes none. So the
// scores' warps run ahead of the values' by as many kept tiles as there are entries, and nothing
// but bytes of kept tiles is ever fetched.
#pragma once

#include "cuda/kernels/attention/decode_plan.hpp"
#include "cuda/kernels/attention/flow.hpp"

namespace assay::attention_kernels {

// In place of a tile, in an entry that is the end of a chunk, or of the piece's last chunk.
inline constexpr std::int32_t kEndOfChunk = -1;
inline constexpr std::int32_t kEndOfPiece = -2;

// What ends behind a tile that ends a chunk.
ASSAY_HD constexpr std::int32_t end_behind(const DecodeItem& item, std::int32_t tile) {
  return tile + 1 >= item.tiles.end ? kEndOfPiece : kEndOfChunk;
}
// At most so many entries come out of a piece.
ASSAY_HD constexpr std::int32_t entries_most(const DecodeItem& item) {
  return item.tiles.count() + (item.tiles.empty() ? 1 : chunks_of(item.tiles).count());
}

// Fetches keys and, behind the first of them, queries.
template <class Io, class Queries, class Keys>
ASSAY_DEVICE ASSAY_INLINE void fetch_decode_keys(Io& io, const DecodeItem& item, Queries& queries,
                                                 Keys& keys) {
  ASSAY_NO_UNROLL
  for (std::int32_t tile = item.tiles.begin; tile < item.tiles.end; ++tile) {
    io.wait_keys_free(keys);
    io.load_keys(keys, item, tile);
    keys.advance();
    if (tile != item.tiles.begin) continue;
    io.wait_queries_free(queries);
    io.load_queries(queries, item);
    queries.advance();
  }
}

// Fetches values of the tiles that were kept; where none can be skipped, without waiting to hear.
template <class Io, class Entries>
ASSAY_DEVICE ASSAY_INLINE void fetch_decode_values(Io& io, const DecodeItem& item,
                                                   Entries& entries) {
  const bool asks = io.may_skip_tiles();
  std::int32_t next = item.tiles.empty() ? kEndOfPiece : item.tiles.begin;
  std::int32_t last = item.tiles.begin - 1;  // tile that was fetched
  ASSAY_NO_UNROLL
  for (std::int32_t left = entries_most(item); left > 0; --left) {
    if (asks) {
      io.wait_entry(entries);
      next = io.entry_tile(entries);
    } else {
      io.wait_entry_free(entries);
    }
    if (next < 0) {
      io.pass_values(entries);
      entries.advance();
      if (next == kEndOfPiece) return;
      next = last + 1;
      continue;
    }
    io.load_values(entries, item, next);
    entries.advance();
    last = next;
    next = ends_chunk(item, last) ? end_behind(item, last) : last + 1;
  }
}

// Scores, decisions, P.
template <class Io, class Queries, class Keys, class Entries>
ASSAY_DEVICE ASSAY_INLINE void score_tiles(Io& io, const DecodeItem& item, Queries& queries,
                                           Keys& keys, Entries& entries) {
  const auto publish_end = [&](std::int32_t end) {
    io.wait_entry_free(entries);
    io.publish_end(entries, end);
    entries.advance();
  };
  if (item.tiles.empty()) return publish_end(kEndOfPiece);
  io.wait_queries(queries);
  io.take_queries(queries);
  if (io.takes_queries()) io.release_queries(queries);
  ASSAY_NO_UNROLL
  for (std::int32_t tile = item.tiles.begin; tile < item.tiles.end; ++tile) {
    io.wait_keys(keys);
    io.compute_scores(queries, keys);
    io.release_keys(keys);
    keys.advance();
    if (tile + 1 == item.tiles.end && !io.takes_queries()) io.release_queries(queries);
    if (io.decide(item, tile)) {
      io.wait_entry_free(entries);
      io.publish(entries, tile);
      entries.advance();
    }
    if (ends_chunk(item, tile)) publish_end(end_behind(item, tile));
  }
  queries.advance();
}

// O of one piece, chunk by chunk.
template <class Io, class Entries>
ASSAY_DEVICE ASSAY_INLINE void add_values(Io& io, const DecodeItem& item, Entries& entries) {
  ASSAY_NO_UNROLL
  for (std::int32_t left = entries_most(item); left > 0; --left) {
    io.wait_entry(entries);
    const std::int32_t tile = io.entry_tile(entries);
    if (tile >= 0) io.correct(entries);
    io.wait_values(entries);
    if (tile >= 0)
      io.add_product(entries);
    else
      io.finish_chunk(entries, item, tile == kEndOfPiece);
    io.release_entry(entries);
    entries.advance();
    if (tile == kEndOfPiece) return;
  }
}

}  // namespace assay::attention_kernels
