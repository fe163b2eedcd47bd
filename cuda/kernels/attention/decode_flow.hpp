// The order in which the roles of a decode block wait, issue and release: a warp that fetches
// queries and keys, one that fetches values, four that compute scores and decide, four that add
// values. Templates over what executes a step, so that the text which runs on the GPU is the text
// whose interleavings the tests enumerate. Decides SPEC CUD-7.3. Not decided here: what a step does
// (decode_sm90.cuh).
//
// Keys pass through a ring. Every kept tile makes an entry in a second ring, P in one part of it
// and values in the other, and so does the end of every piece of work; a skipped tile makes none.
// So the scores' warps run ahead of the values' by as many kept tiles as there are entries, and
// nothing but bytes of kept tiles is ever fetched.
#pragma once

#include "cuda/kernels/attention/decode_plan.hpp"
#include "cuda/kernels/attention/flow.hpp"

namespace assay::attention_kernels {

// Tile of an entry that is the end of a piece of work.
inline constexpr std::int32_t kEndOfPiece = -1;

// Fetches queries and keys.
template <class Io, class Queries, class Keys>
ASSAY_DEVICE ASSAY_INLINE void fetch_decode_keys(Io& io, const DecodeItem& item, Queries& queries,
                                                 Keys& keys) {
  if (item.tiles.empty()) return;
  io.wait_queries_free(queries);
  io.load_queries(queries, item);
  queries.advance();
  ASSAY_NO_UNROLL
  for (std::int32_t tile = item.tiles.begin; tile < item.tiles.end; ++tile) {
    io.wait_keys_free(keys);
    io.load_keys(keys, item, tile);
    keys.advance();
  }
}

// Fetches values of the tiles that were kept; where none can be skipped, without waiting to hear.
template <class Io, class Entries>
ASSAY_DEVICE ASSAY_INLINE void fetch_decode_values(Io& io, const DecodeItem& item,
                                                   Entries& entries) {
  const bool asks = io.may_skip_tiles();
  std::int32_t next = item.tiles.begin;
  ASSAY_NO_UNROLL
  for (std::int32_t left = item.tiles.count(); left >= 0; --left) {  // and the end
    std::int32_t tile = next < item.tiles.end ? next++ : kEndOfPiece;
    if (asks) {
      io.wait_entry(entries);
      tile = io.entry_tile(entries);
    } else {
      io.wait_entry_free(entries);
    }
    if (tile == kEndOfPiece) {
      io.pass_values(entries);
      entries.advance();
      return;
    }
    io.load_values(entries, item, tile);
    entries.advance();
  }
}

// Scores, decisions, P.
template <class Io, class Queries, class Keys, class Entries>
ASSAY_DEVICE ASSAY_INLINE void score_tiles(Io& io, const DecodeItem& item, Queries& queries,
                                           Keys& keys, Entries& entries) {
  if (!item.tiles.empty()) {
    io.wait_queries(queries);
    io.take_queries(queries);
    if (io.takes_queries()) io.release_queries(queries);
  }
  ASSAY_NO_UNROLL
  for (std::int32_t tile = item.tiles.begin; tile < item.tiles.end; ++tile) {
    io.wait_keys(keys);
    io.compute_scores(queries, keys);
    io.release_keys(keys);
    keys.advance();
    if (tile + 1 == item.tiles.end && !io.takes_queries()) io.release_queries(queries);
    if (!io.decide(item, tile)) continue;
    io.wait_entry_free(entries);
    io.publish(entries, tile);
    entries.advance();
  }
  if (!item.tiles.empty()) queries.advance();
  io.wait_entry_free(entries);
  io.publish_end(entries);
  entries.advance();
}

// O of one piece.
template <class Io, class Entries>
ASSAY_DEVICE ASSAY_INLINE void add_values(Io& io, const DecodeItem& item, Entries& entries) {
  ASSAY_NO_UNROLL
  for (std::int32_t left = item.tiles.count(); left >= 0; --left) {  // and the end
    io.wait_entry(entries);
    const std::int32_t tile = io.entry_tile(entries);
    if (tile != kEndOfPiece) io.correct(entries);
    io.wait_values(entries);
    if (tile == kEndOfPiece) {
      io.finish(entries, item);
      io.release_entry(entries);
      entries.advance();
      return;
    }
    io.add_product(entries);
    io.release_entry(entries);
    entries.advance();
  }
}

}  // namespace assay::attention_kernels
