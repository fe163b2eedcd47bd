// The order in which the roles of a prefill block wait, issue and release: two warps that fetch
// keys and values, and warpgroups that compute one unit each. Templates over what executes a step,
// so that the text which runs on the GPU is the text whose interleavings the tests enumerate.
// Decides SPEC CUD-6.4. Not decided here: what a step does (prefill_sm90.cuh).
//
// Rings: every unit releases every stage once, and never before the stage was filled: a release
// that came sooner would count for the phase before. A unit that skips a tile therefore releases
// the tile's values a tile later, when they have long been there.
#pragma once

#include "cuda/kernels/attention/plan.hpp"

// Rare loops stay small: the hot one should fit the instruction cache.
#ifdef __CUDA_ARCH__
#define ASSAY_NO_UNROLL _Pragma("unroll 1")
#else
#define ASSAY_NO_UNROLL
#endif

namespace assay::attention_kernels {

// Where a role stands in the rings; every role walks through all tiles of `all`, whoever visits
// them, so that places agree without communication.
template <int kKeyStages, int kValueStages>
struct Rings {
  RingPlace<kKeyStages> keys;
  RingPlace<kValueStages> values;
  ASSAY_HD constexpr void advance() {
    keys.advance();
    values.advance();
  }
};

// Fetches keys and, behind the first of them, each unit's queries. q_parity[u]: of the next load.
template <int kUnits, class Io, class R>
ASSAY_DEVICE ASSAY_INLINE void fetch_keys(Io& io, const Work<kUnits>& work, R& rings,
                                          std::uint32_t (&q_parity)[kUnits]) {
  ASSAY_NO_UNROLL
  for (std::int32_t tile = work.all.begin; tile < work.all.end; ++tile) {
    io.wait_keys_free(rings.keys);
    io.load_keys(rings.keys, work, tile);
    if (tile == work.all.begin) {
      ASSAY_UNROLL
      for (int u = 0; u < kUnits; ++u) {
        if (work.unit[u].visited.empty()) continue;
        io.wait_queries_free(u, q_parity[u]);
        io.load_queries(u, work);
        q_parity[u] ^= 1;
      }
    }
    rings.advance();
  }
}

// Fetches values, whether anybody will need them or not (SPEC CUD-6.4).
template <int kUnits, class Io, class R>
ASSAY_DEVICE ASSAY_INLINE void fetch_values(Io& io, const Work<kUnits>& work, R& rings) {
  ASSAY_NO_UNROLL
  for (std::int32_t tile = work.all.begin; tile < work.all.end; ++tile) {
    io.wait_values_free(rings.values);
    io.load_values(rings.values, work, tile);
    rings.advance();
  }
}

// Turns values of one byte (SPEC CUD-6.8).
template <int kUnits, class Io, class R>
ASSAY_DEVICE ASSAY_INLINE void transpose_values(Io& io, const Work<kUnits>& work, R& rings) {
  ASSAY_NO_UNROLL
  for (std::int32_t tile = work.all.begin; tile < work.all.end; ++tile) {
    io.wait_fetched(rings.values);
    io.wait_transposed_free(rings.values);
    io.transpose(rings.values);
    io.release_fetched(rings.values);
    io.publish_transposed(rings.values);
    rings.advance();
  }
}

// Lets tiles pass that the unit does not visit.
template <class Io, class R>
ASSAY_DEVICE ASSAY_INLINE void let_pass(Io& io, std::int32_t tiles, R& rings) {
  ASSAY_NO_UNROLL
  for (std::int32_t i = 0; i < tiles; ++i) {
    io.wait_keys(rings.keys);
    io.release_keys(rings.keys);
    io.wait_values(rings.values);
    io.release_values(rings.values);
    rings.advance();
  }
}

// One unit's work, of two. For each tile the unit issues the tile's scores and, behind them, the
// product that the tile before left pending; other units' instructions run while it computes. The
// loops are apart because the compiler serialises matrix instructions that it sees issued in one
// iteration and not in the next.
template <class Io, class R>
ASSAY_DEVICE ASSAY_INLINE void compute(Io& io, const TileRanges& mine, R& rings,
                                       std::uint32_t& q_parity) {
  const Range visited = mine.visited;
  if (visited.empty()) return let_pass(io, io.all().count(), rings);
  let_pass(io, visited.begin - io.all().begin, rings);
  io.wait_queries(q_parity);
  q_parity ^= 1;
  io.take_queries();
  auto before = rings.values;  // of the tile before, which were not released yet
  bool keeps = false;          // whether the tile before is kept: its product is pending
  ASSAY_NO_UNROLL
  for (std::int32_t tile = visited.begin; tile < visited.end;) {
    // Nothing is pending.
    io.wait_keys(rings.keys);
    io.issue_scores(rings.keys);
    // Behind the scores, which take longer. Was there a tile before, it was skipped.
    if (tile != visited.begin) {
      io.wait_values(before);
      io.release_values(before);
    }
    io.wait_scores_alone();
    io.release_keys(rings.keys);
    if (tile + 1 == visited.end) io.release_queries();
    keeps = io.decide(mine, tile);
    before = rings.values;
    rings.advance();
    ++tile;
    if (!keeps) continue;
    io.exponentials();
    io.narrow();
    ASSAY_NO_UNROLL
    for (; keeps && tile < visited.end; ++tile) {
      io.wait_keys(rings.keys);
      io.issue_scores(rings.keys);
      io.wait_values(before);
      io.issue_product(before);
      io.wait_scores();
      io.release_keys(rings.keys);
      if (tile + 1 == visited.end) io.release_queries();
      keeps = io.decide(mine, tile);
      if (keeps) {
        io.exponentials();
        io.wait_product();
        io.release_values(before);
        io.narrow();
      } else {
        io.wait_product();
        io.release_values(before);
      }
      before = rings.values;
      rings.advance();
    }
  }
  io.wait_values(before);
  if (keeps) {
    io.issue_product(before);
    io.wait_product();
  }
  io.release_values(before);
  let_pass(io, io.all().end - visited.end, rings);
}

// One unit's work where nothing is pending from tile to tile: a tile's product takes its operand,
// or its sum (fp8, SPEC ATT-6.2), from the registers of the scores. What hides its time is that
// other units are elsewhere. exponentials() and narrow() are of what the product begins with; the
// rest is computed by add_product(), behind its first part.
template <class Io, class R>
ASSAY_DEVICE ASSAY_INLINE void compute_in_turn(Io& io, const TileRanges& mine, R& rings,
                                               std::uint32_t& q_parity) {
  const Range visited = mine.visited;
  if (visited.empty()) return let_pass(io, io.all().count(), rings);
  let_pass(io, visited.begin - io.all().begin, rings);
  io.wait_queries(q_parity);
  q_parity ^= 1;
  io.take_queries();
  auto before = rings.values;  // of a skipped tile, which were not released yet
  bool owes = false;
  ASSAY_NO_UNROLL
  for (std::int32_t tile = visited.begin; tile < visited.end; ++tile) {
    io.wait_keys(rings.keys);
    io.issue_scores(rings.keys);
    if (owes) {
      io.wait_values(before);
      io.release_values(before);
    }
    io.wait_scores_alone();
    io.release_keys(rings.keys);
    if (tile + 1 == visited.end) io.release_queries();
    const bool keeps = io.decide(mine, tile);
    owes = !keeps;
    before = rings.values;
    if (keeps) {
      io.exponentials();
      io.narrow();
      io.wait_values(rings.values);
      io.add_product(rings.values);
      io.release_values(rings.values);
    }
    rings.advance();
  }
  if (owes) {
    io.wait_values(before);
    io.release_values(before);
  }
  let_pass(io, io.all().end - visited.end, rings);
}

}  // namespace assay::attention_kernels
