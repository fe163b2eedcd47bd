// The four warps of a decode block that compute scores: 16 keys of a tile each, for all rows of the
// unit. They agree on maxima, decide, and leave P of kept tiles for the values' warps. Decides how
// a step of decode_flow.hpp becomes instructions (SPEC CUD-7.4). Every function is called by all
// four warps.
#pragma once

#include "cuda/kernels/attention/decode_fetch_sm90.cuh"
#include "cuda/ops/named_barrier.hpp"

namespace assay::attention_kernels {

// The named barrier of the scores' warps.
inline constexpr int kScoresBarrier = 1;

// Maxima over the eight lanes that share q, of kCount values each: halved among lanes as long as
// there are two, so that every value is looked at once. Returns the number of the first value that
// the lane is left with; v[0] to v[left - 1] hold them, left = kCount / 8 or 1. With fewer than 8
// values several lanes are left with the same one.
template <int kCount>
__device__ inline int share_maxima(float (&v)[kCount], int lane) {
  int first = 0;
  int count = kCount;
#pragma unroll
  for (int distance = 16; distance >= 4; distance /= 2) {
    if (count > 1) {
      count /= 2;
      const bool upper = (lane & distance) != 0;
#pragma unroll
      for (int j = 0; j < kCount / 2; ++j) {
        if (j >= count) break;
        const float sent = upper ? v[j] : v[j + count];
        const float kept = upper ? v[j + count] : v[j];
        v[j] = max_nan(kept, shuffle_xor(sent, distance));
      }
      first += upper ? count : 0;
    } else {
      v[0] = max_nan(v[0], shuffle_xor(v[0], distance));
    }
  }
  return first;
}

template <class Shape>
struct Scorer {
  using T = typename Shape::Element;
  // What the instruction multiplies: e4m3 travels as f16 (SPEC NUM-4.6).
  using Operand = std::conditional_t<Shape::kFp8, F16, T>;
  static constexpr int kShift = Shape::kFp8 ? 8 : 0;  // SPEC ATT-6.2
  static constexpr int kN = Shape::kRows / 8;         // blocks of eight query rows
  static constexpr int kThreads = 128;
  // 32 bytes of a row are two 16-byte pieces: one instruction's k, or two of them for e4m3.
  static constexpr int kSteps = Shape::kHeadDim * static_cast<int>(sizeof(T)) / 32;
  static constexpr int kHalves = Shape::kFp8 ? 2 : 1;

  const DecodeParams& p;
  const DecodeMap<Shape>& shared;
  int warp;  // among the four
  int lane;

  float s[kN][4];  // keys 16 w + g and + 8 of rows 8 n + 2 q and + 1
  RowState rows[kN][2];
  float local[kN][2];
  // B fragments of all of Q, if they stay.
  std::uint32_t q[Shape::kQueriesInRegisters ? kSteps * kHalves : 1][kN][2];
  std::uint32_t buffer = 0;  // of maxima, 0 or 1
  int rows_left = 0;         // rows of the unit from this thread's first one on
  float offset = 0;          // of the vote
  std::uint32_t visited = 0, skipped = 0;
  bool first_of_chunk = true;
  const DecodeItem* item = nullptr;  // in shared memory

  __device__ Scorer(const DecodeParams& params, const DecodeMap<Shape>& map, int index)
      : p(params), shared(map), warp(index), lane(thread_index() % 32) {}

  __device__ void begin(const DecodeItem* next) {
    item = next;
    rows_left = item->rows - lane % 4 * 2;
    begin_chunk();
    visited = skipped = 0;
    const Threshold& t = p.call.threshold;
    if (t.enabled != 0)
      offset = skip_offset(t.factors != nullptr ? t.factors[item->request] : t.factor,
                           t.divides != 0, item->shape.kv_len, p.call.scale_log2_inverse);
  }
  __device__ void end() {
    if (p.call.counters == nullptr || warp != 0 || lane != 0 || visited == 0) return;
    add_to(&p.call.counters[2 * item->place.head], visited);
    if (skipped != 0) add_to(&p.call.counters[2 * item->place.head + 1], skipped);
  }

  // --- steps of decode_flow.hpp

  template <class Place>
  __device__ void wait_queries(const Place& at) {
    shared.wait(Shape::kQueriesFull, at, false, DecodeSite::kQueriesFull);
  }
  __device__ static constexpr bool takes_queries() { return Shape::kQueriesInRegisters; }
  template <class Place>
  __device__ void take_queries(const Place& at) {
    if constexpr (Shape::kQueriesInRegisters) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
#pragma unroll
        for (int pair = 0; pair < kN / 2; ++pair) {
          std::uint32_t b[kHalves][2][2];
          load_query_pair(at.stage, step, pair, b);
#pragma unroll
          for (int half = 0; half < kHalves; ++half)
#pragma unroll
            for (int n = 0; n < 2; ++n)
#pragma unroll
              for (int j = 0; j < 2; ++j) q[step * kHalves + half][2 * pair + n][j] = b[half][n][j];
        }
    }
  }
  template <class Place>
  __device__ void release_queries(const Place& at) {
    shared.arrive(Shape::kQueriesFree, at.stage);
  }
  template <class Place>
  __device__ void wait_keys(const Place& at) {
    shared.wait(Shape::kKeysFull, at, false, DecodeSite::kKeysFull);
  }
  template <class Place>
  __device__ void release_keys(const Place& at) {
    shared.arrive(Shape::kKeysFree, at.stage);
  }

  // S^T = K Q^T. 16-bit types: a chain of instructions, lowest k first. e4m3: of every 32 columns
  // those with d mod 4 below 2, then the others, from zero; then an addition (SPEC NUM-4.6).
  template <class Queries, class Keys>
  __device__ void compute_scores(const Queries& queries, const Keys& keys) {
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = 0.0f;
    const SharedAddress tile = shared.keys(keys.stage);
    // Lanes name rows: keys 0-7 and 8-15 of the warp's, of one 16-byte piece and of the next.
    const int row = 16 * warp + lane % 16;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      std::uint32_t a[4];
      load_matrices(a, tile + step / 4 * Shape::kTileChunkBytes + row * 128 +
                           (((step % 4 * 2 + lane / 16) ^ (row % 8)) * 16));
#pragma unroll
      for (int pair = 0; pair < kN / 2; ++pair) {
        std::uint32_t b[kHalves][2][2];
        if constexpr (Shape::kQueriesInRegisters) {
#pragma unroll
          for (int half = 0; half < kHalves; ++half)
#pragma unroll
            for (int n = 0; n < 2; ++n)
#pragma unroll
              for (int j = 0; j < 2; ++j) b[half][n][j] = q[step * kHalves + half][2 * pair + n][j];
        } else {
          load_query_pair(queries.stage, step, pair, b);
        }
#pragma unroll
        for (int n = 0; n < 2; ++n) multiply(a, b, n, s[2 * pair + n]);
      }
    }
  }

  // Mask, maxima, vote. A chunk's first tile is kept unasked (SPEC ATT-6.4).
  __device__ bool decide(const DecodeItem& it, int tile) {
    if (!it.whole.contains(tile)) hide(it, tile);
    float mine[2 * kN];
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) mine[2 * n + e] = max_nan(s[n][e], s[n][e + 2]);
    const int first = share_maxima(mine, lane);
    const int row = first / 2 * 8 + lane % 4 * 2 + first % 2;
    if constexpr (2 * kN >= 16)
      shared_store_floats(shared.maximum(buffer, warp, row), mine[0], mine[1]);
    else
      shared_store_float(shared.maximum(buffer, warp, row), mine[0]);
    named_wait(kScoresBarrier, kThreads);
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      float of_warp[4][2];
#pragma unroll
      for (int w = 0; w < 4; ++w)
        shared_load_floats(shared.maximum(buffer, w, 8 * n + lane % 4 * 2), of_warp[w]);
#pragma unroll
      for (int e = 0; e < 2; ++e)
        local[n][e] =
            max_nan(max_nan(of_warp[0][e], of_warp[1][e]), max_nan(of_warp[2][e], of_warp[3][e]));
    }
    // The next tile's maxima go elsewhere: a warp that is late still reads these.
    buffer ^= 1;
    bool keeps = true;
    if (p.call.threshold.enabled != 0 && !first_of_chunk) {
      bool agrees = true;
#pragma unroll
      for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          agrees &= padding(n, e) | may_skip(local[n][e], rows[n][e].max, offset);
      // All rows are in every warp, so all come to the same answer.
      keeps = ballot(agrees) != 0xFFFFFFFFu;
    }
    first_of_chunk = false;
    ++visited;
    skipped += keeps ? 0 : 1;
    if (p.call.decisions != nullptr && warp == 0 && lane == 0) write_decision(tile, keeps);
    return keeps;
  }

  template <class Place>
  __device__ void wait_entry_free(const Place& at) {
    shared.wait(Shape::kEntryFree, at, true, DecodeSite::kEntryFree);
  }

  // Exponentials, sums, P in 16 bits, and by what O is to be corrected.
  template <class Place>
  __device__ void publish(const Place& at, int tile) {
    std::uint32_t words[kN][2];
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float scaled = raise_maximum<kShift>(rows[n][e], local[n][e], p.call.scale_log2);
        exponentials_of_pair(s[n][e], s[n][e + 2], p.call.scale_log2, scaled, rows[n][e]);
      }
      if constexpr (Shape::kFp8) {
        const std::uint32_t narrow = pack_e4m3(s[n][0], s[n][1], s[n][2], s[n][3]);
        words[n][0] = widen_low_e4m3(narrow);
        words[n][1] = widen_high_e4m3(narrow);
      } else {
        words[n][0] = pack_rn<T>(s[n][0], s[n][1]);
        words[n][1] = pack_rn<T>(s[n][2], s[n][3]);
      }
      if (warp == 0 && lane < 4)
        shared_store_floats(shared.correction(at.stage, 8 * n + lane * 2), rows[n][0].correction,
                            rows[n][1].correction);
    }
    // Lanes name rows of P: of two blocks of rows each, this warp's keys 0-7 and 8-15.
#pragma unroll
    for (int pair = 0; pair < kN / 2; ++pair) {
      const int row = 16 * pair + lane / 16 * 8 + lane % 8;
      const int piece = 2 * warp + lane / 8 % 2;
      store_transposed(
          shared.probabilities(at.stage) + swizzled_offset(row, piece * 16),
          {words[2 * pair][0], words[2 * pair][1], words[2 * pair + 1][0], words[2 * pair + 1][1]});
    }
    announce(at, tile);
  }

  // Sums of the warp and maxima instead of P; the next chunk begins anew.
  template <class Place>
  __device__ void publish_end(const Place& at, std::int32_t end) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      float sum[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        sum[e] = rows[n][e].sum;
#pragma unroll
        for (int distance = 16; distance >= 4; distance /= 2)
          sum[e] = add_rn(sum[e], shuffle_xor(sum[e], distance));
      }
      if (lane >= 4) continue;
      const int row = 8 * n + lane * 2;
      shared_store_floats(shared.end_sum(at.stage, warp, row), sum[0], sum[1]);
      if (warp == 0)
        shared_store_floats(shared.end_maximum(at.stage, row), rows[n][0].max, rows[n][1].max);
    }
    announce(at, end);
    begin_chunk();
  }

 private:
  __device__ void begin_chunk() {
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) rows[n][e] = {minus_infinity(), 0.0f, 0.0f};
    first_of_chunk = true;
  }
  __device__ bool padding(int n, int e) const { return rows_left <= 8 * n + e; }

  template <class Place>
  __device__ void announce(const Place& at, std::int32_t tile) {
    if (warp == 0 && lane == 0)
      shared_store4(shared.entry_tile(at.stage), static_cast<std::uint32_t>(tile));
    shared.arrive(Shape::kEntryFull, at.stage);
  }

  // B of two blocks of rows: b[half][block][register].
  __device__ void load_query_pair(std::uint32_t stage, int step, int pair,
                                  std::uint32_t (&b)[kHalves][2][2]) const {
    // Lanes name rows 0-7 of the first block in one piece, in the next piece, then of the second.
    const int row = 16 * pair + lane / 16 * 8 + lane % 8;
    const int piece = step % 4 * 2 + lane / 8 % 2;
    std::uint32_t words[4];
    load_matrices(words, shared.queries(stage) + step / 4 * Shape::kQueryChunkBytes +
                             swizzled_offset(row, piece * 16));
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const std::uint32_t word = words[2 * n + j];
        if constexpr (Shape::kFp8) {
          b[0][n][j] = widen_low_e4m3(word);
          b[1][n][j] = widen_high_e4m3(word);
        } else {
          b[0][n][j] = word;
        }
      }
  }

  __device__ void multiply(const std::uint32_t (&a)[4], const std::uint32_t (&b)[kHalves][2][2],
                           int n, float (&d)[4]) const {
    if constexpr (Shape::kFp8) {
      std::uint32_t low[4], high[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        low[i] = widen_low_e4m3(a[i]);
        high[i] = widen_high_e4m3(a[i]);
      }
      float product[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      warp_mma<Operand>(product, low, b[0][n][0], b[0][n][1]);
      warp_mma<Operand>(product, high, b[1][n][0], b[1][n][1]);
#pragma unroll
      for (int i = 0; i < 4; ++i) d[i] = add_rn(product[i], d[i]);
    } else {
      warp_mma<Operand>(d, a, b[0][n][0], b[0][n][1]);
    }
  }

  // Computed again for the few tiles that need it, rather than kept.
  __device__ void hide(const DecodeItem& it, int tile) {
    const Mask mask{p.call.mask, p.call.mask_size, it.shape.q_offset};
    const int key = tile * kDecodeTile + 16 * warp + lane / 4;
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      const int row = it.place.unit * kUnitRows + 8 * n + lane % 4 * 2;
      hide_keys(s[n], key, attention::visible_keys(mask, row / p.call.group, it.shape.kv_len),
                attention::visible_keys(mask, (row + 1) / p.call.group, it.shape.kv_len));
    }
  }

  __device__ void write_decision(int tile, bool keeps) const {
    if (item->place.unit >= p.call.decision_units || tile >= p.call.decision_tiles) return;
    const std::int64_t row =
        (static_cast<std::int64_t>(item->request) * p.kv_heads + item->place.head) *
            p.call.decision_units +
        item->place.unit;
    p.call.decisions[row * p.call.decision_tiles + tile] = keeps ? 1 : 2;
  }
};

}  // namespace assay::attention_kernels
