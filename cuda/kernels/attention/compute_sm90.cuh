// A warpgroup of a prefill block that computes one unit of 64 rows: products, vote, softmax,
// output. Decides how a step of flow.hpp becomes instructions (SPEC CUD-6.4, CUD-6.6). Every
// function is called by a whole warpgroup.
#pragma once

#include "cuda/kernels/attention/fetch_sm90.cuh"
#include "cuda/kernels/attention/softmax_sm90.cuh"
#include "cuda/ops/named_barrier.hpp"
#include "cuda/ops/wgmma.hpp"

namespace assay::attention_kernels {

// The named barrier of unit 0's vote; the next units' follow.
inline constexpr int kVoteBarrier = 1;

// What a kernel does beside the output. kDense: no vote. kSkip: the vote. kTrace: the vote, and a
// byte per decision.
enum class Mode { kDense, kSkip, kTrace };

// Of the four threads that share a row: (0 + 1) + (2 + 3) in all of them.
__device__ inline float quad_sum(float x) {
  x = add_rn(x, shuffle_xor(x, 1));
  return add_rn(x, shuffle_xor(x, 2));
}

// Lane 0's value for all, so that the compiler knows branches on it to be uniform: otherwise it
// serialises the matrix instructions behind them.
__device__ inline Range uniform(Range range) {
  return {broadcast(range.begin, 0), broadcast(range.end, 0)};
}

template <class Shape, Mode kMode>
struct Unit {
  using T = typename Shape::Element;
  using Out = typename Shape::Out;
  static constexpr int kDim = Shape::kHeadDim;
  static constexpr int kShift = Shape::kFp8 ? 8 : 0;              // SPEC ATT-6.2
  static constexpr int kStep = 32 / static_cast<int>(sizeof(T));  // keys or columns an instruction
  static constexpr int kTile = Shape::kTile;
  static constexpr int kSteps = kDim / kStep;

  const PrefillParams& p;
  SharedMap<Shape> shared;
  int unit;
  int thread;                                 // of the warpgroup
  const Work<Shape::kUnits>* work = nullptr;  // in shared memory; read before and after the tiles

  // Parts of a tile's product, and a thread's scores of one.
  static constexpr int kParts = Shape::kProductParts;
  static constexpr int kPartScores = kTile / 2 / kParts;

  float s[kTile / 2];  // scores, then exponentials, and with three units those narrowed
  float o[kDim / 2];   // output so far
  std::uint32_t narrow_p[kTile / kStep][4];
  std::uint32_t q[kSteps][4];  // queries, if they are held in registers
  RowState rows[2];
  float local[2];      // a row's maximum over the tile: this thread's, then the quad's
  float neighbour[2];  // likewise of one other thread of the quad
  int rows_left;       // rows of the request from this thread's first one on; may be negative
  float offset;        // of the vote
  Exponents exponents;
  std::uint32_t skipped;

  __device__ Unit(const PrefillParams& params, SharedMap<Shape> map, int index)
      : p(params), shared(map), unit(index), thread(thread_index() % 128) {}

  __device__ void begin(const Work<Shape::kUnits>* next) {
    work = next;
    rows_left = work->shape.q_len - row_of(0);
#pragma unroll
    for (int row = 0; row < 2; ++row) rows[row] = {minus_infinity(), 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) o[i] = 0.0f;
    skipped = 0;
    if constexpr (kMode != Mode::kDense) {
      const Threshold& t = p.threshold;
      offset = skip_offset(t.factors != nullptr ? t.factors[work->request] : t.factor,
                           t.divides != 0, work->shape.kv_len, p.scale_log2_inverse);
    }
  }

  // --- steps of flow.hpp

  __device__ Range all() const { return uniform(work->all); }
  __device__ void wait_queries(std::uint32_t parity) {
    wait_at(shared, p, Shape::kQueriesFull, static_cast<std::uint32_t>(unit), parity,
            Site::kQueriesFull);
  }
  template <class Place>
  __device__ void wait_keys(const Place& at) {
    wait_at(shared, p, Shape::kKeysFull, at.stage, at.parity, Site::kKeysFull);
  }
  template <class Place>
  __device__ void wait_values(const Place& at) {
    if constexpr (Shape::kFp8)
      wait_at(shared, p, Shape::kTransposedFull, at.stage, at.parity, Site::kTransposedFull);
    else
      wait_at(shared, p, Shape::kValuesFull, at.stage, at.parity, Site::kValuesFull);
  }
  // Four arrivals a unit: each warp knows only of its own reads that they have ended.
  __device__ void arrive(int barrier) {
    warp_barrier();
    if (thread % 32 == 0) barrier_arrive(shared.barrier(barrier));
  }
  // Likewise at all blocks of the cluster, whose copies come here too.
  __device__ void arrive_everywhere(int barrier) {
    warp_barrier();
    shared.arrive_everywhere(barrier, p.cluster);
  }
  __device__ void release_queries() { arrive(Shape::kQueriesFree + unit); }
  template <class Place>
  __device__ void release_keys(const Place& at) {
    arrive_everywhere(Shape::kKeysFree + static_cast<int>(at.stage));
  }
  template <class Place>
  __device__ void release_values(const Place& at) {
    if constexpr (Shape::kFp8)
      arrive(Shape::kTransposedFree + static_cast<int>(at.stage));
    else
      arrive_everywhere(Shape::kValuesFree + static_cast<int>(at.stage));
  }

  // A matrix of 16 rows and 32 bytes for each warp and step: lane l reads row l % 16, half l / 16.
  __device__ void take_queries() {
    if constexpr (Shape::kQueriesInRegisters) {
      const int lane = thread % 32, row = thread / 32 * 16 + lane % 16;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int piece = step % 4 * 2 + lane / 16;  // of 16 bytes
        load_matrix(q[step], shared.queries(unit) + step / 4 * Shape::kQueryChunkBytes +
                                 row * kSwizzleBytes + (piece ^ row % 8) * 16);
      }
    }
  }
  // S = Q K^T, by 32 bytes of k, lowest first.
  template <class Place>
  __device__ void issue_scores(const Place& at) {
    const MatrixDescriptor rows = k_major(shared.queries(unit)), k = k_major(shared.keys(at.stage));
    pin(s);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int chunk = step / 4, byte = step % 4 * 32;
      const std::uint64_t b = k.at(chunk * Shape::kTileChunkBytes + byte);
      if constexpr (Shape::kQueriesInRegisters)
        wgmma_registers_k_major<T, kTile>(s, q[step], b, step == 0 ? 0 : 1);
      else
        wgmma_shared<T, kTile>(s, rows.at(chunk * Shape::kQueryChunkBytes + byte), b,
                               step == 0 ? 0 : 1);
    }
    wgmma_commit();
    pin(s);
  }
  // O += P V, by 16 keys, lowest first.
  template <class Place>
  __device__ void issue_product(const Place& at) {
    const MatrixDescriptor v = values_at(at);
    pin(o);
    pin(narrow_p);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kTile / 16; ++step)
      wgmma_registers<T, kDim>(o, narrow_p[step], v.at(step * 16 * kSwizzleBytes), 1);
    wgmma_commit();
    pin(o);
  }
  // The whole of a tile's product. Its operand or its sum lies in the scores' registers, so the
  // unit can issue nothing else.
  template <class Place>
  __device__ void add_product(const Place& at) {
    if constexpr (Shape::kFp8)
      add_product_apart(at);
    else
      add_product_in_parts(at);
  }
  // O += P V in parts: while a part runs, the next one's exponentials are computed.
  template <class Place>
  __device__ void add_product_in_parts(const Place& at) {
    const MatrixDescriptor v = values_at(at);
    pin(o);
    issue_part<0>(v);
    end_exponentials(exponents, rows);
    wait_product();
  }
  template <int kPart>
  __device__ void issue_part(const MatrixDescriptor& v) {
    pin_part<kPart * kPartScores / 2, kPartScores / 2>(s);
    wgmma_fence();
    constexpr int kPartSteps = kTile / 16 / kParts;
#pragma unroll
    for (int step = kPart * kPartSteps; step < (kPart + 1) * kPartSteps; ++step) {
      std::uint32_t words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) words[j] = std::bit_cast<std::uint32_t>(s[4 * step + j]);
      wgmma_registers<T, kDim>(o, words, v.at(step * 16 * kSwizzleBytes), 1);
    }
    wgmma_commit();
    if constexpr (kPart + 1 < kParts) {
      constexpr int kNext = (kPart + 1) * kPartScores;
      pin_part<kNext, kPartScores>(s);
      exponentials_part<kNext, kPartScores>(s, p.scale_log2, exponents);
      narrow_in_place<T, kNext, kPartScores>(s);
      issue_part<kPart + 1>(v);
    }
  }
  // O = O * correction + P V, the product by 32 keys from zero, 64 columns at a time: as many as
  // the scores' registers hold beside P (SPEC ATT-6.2).
  template <class Place>
  __device__ void add_product_apart(const Place& at) {
    constexpr int kColumns = Shape::kPartColumns;
    const MatrixDescriptor v = k_major(shared.transposed(at.stage));
#pragma unroll
    for (int part = 0; part < kDim / kColumns; ++part) {
      float sum[kColumns / 2];
      pin(sum);
      pin(narrow_p);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < kTile / 32; ++step)
        wgmma_registers<T, kColumns>(sum, narrow_p[step], v.at(part * kColumns * 128 + step * 32),
                                     step == 0 ? 0 : 1);
      wgmma_commit();
      pin(sum);
      wgmma_wait<0>();
      pin(sum);
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) {
        float& out = o[part * (kColumns / 2) + i];
        out = fma_rn(out, rows[i / 2 % 2].correction, sum[i]);
      }
    }
  }

  // Scores with a product behind them, or alone.
  __device__ void wait_scores() {
    wgmma_wait<1>();
    pin(s);
  }
  __device__ void wait_scores_alone() {
    wgmma_wait<0>();
    pin(s);
  }
  __device__ void wait_product() {
    wgmma_wait<0>();
    pin(o);
  }

  // Mask, maxima, vote. A unit's first tile is kept unasked (SPEC ATT-6.1).
  __device__ bool decide(const TileRanges& mine, int tile) {
    if (!mine.whole.contains(tile)) {
      // Computed again for the few tiles that need it, rather than kept.
      const Mask mask{p.mask, p.mask_size, work->shape.q_offset};
      hide<kTile>(s, tile * kTile + thread % 4 * 2,
                  attention::visible_keys(mask, row_of(0), work->shape.kv_len),
                  attention::visible_keys(mask, row_of(1), work->shape.kv_len));
    }
    maxima<kTile>(s, local);
    // Asked for before the vote, behind which it would be waited for.
#pragma unroll
    for (int row = 0; row < 2; ++row) neighbour[row] = shuffle_xor(local[row], 1);
    if constexpr (kMode == Mode::kDense) return true;
    bool keeps = true;
    if (tile != mine.visited.begin && (kMode == Mode::kSkip || p.threshold.enabled != 0)) {
      // A thread votes for its own columns: the row's maximum is low where all four are. Not && and
      // ||: both rows are a few instructions, and a branch is as many.
      const bool agrees = (padding(0) | may_skip(local[0], rows[0].max, offset)) &
                          (padding(1) | may_skip(local[1], rows[1].max, offset));
      keeps = !named_all(kVoteBarrier + unit, 128, agrees);
    }
    skipped += keeps ? 0 : 1;
    if constexpr (kMode == Mode::kTrace)
      if (thread == 0) write_decision(tile, keeps);
    return keeps;
  }
  // The rows' maxima move on, and the exponentials that the product begins with.
  __device__ void exponentials() {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      local[row] = max_nan(local[row], neighbour[row]);
      local[row] = max_nan(local[row], shuffle_xor(local[row], 2));
    }
    exponents = begin_exponentials<kShift>(local, p.scale_log2, rows);
    exponentials_part<0, kPartScores>(s, p.scale_log2, exponents);
    if constexpr (kParts == 1) {
      end_exponentials(exponents, rows);
      // A sum is never negative; that a branch asks keeps ptxas from moving the exponentials behind
      // the wait for the product that they are to overlap.
      if (rows[0].sum < 0.0f || rows[1].sum < 0.0f) [[unlikely]]
        give_up(p.record, static_cast<std::uint32_t>(Site::kNegativeSum), 0, 0);
    }
  }
  __device__ void narrow() {
    if constexpr (Shape::kFp8) {
      narrow_to_e4m3<kTile>(s, narrow_p);
    } else {
      // Nothing changes by 1, and a maximum seldom does.
      if (ballot(rows[0].correction != 1.0f || rows[1].correction != 1.0f) != 0)
        correct<kDim>(o, rows);
      if constexpr (Shape::kInTurn)
        narrow_in_place<T, 0, kPartScores>(s);
      else
        narrow_to<T, kTile>(s, narrow_p);
    }
  }

  // --- the end of a unit

  __device__ void end(const TileRanges& mine) {
    const int q = thread % 4;
    RowEnd ends[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      ends[row] = end_of<kShift>(rows[row].max, quad_sum(rows[row].sum), p.scale_log2, p.v_scale);
      if (p.lse != nullptr && q == 0 && !padding(row))
        p.lse[place(row, p.lse_request_stride, p.lse_row_stride, p.lse_head_stride)] =
            ends[row].lse_log2;
    }
    // Threads 2 j and 2 j + 1 of a quad trade, so that each stores 8 bytes and a quad 32.
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      std::uint16_t* const to =
          p.out + place(row, p.out_request_stride, p.out_row_stride, p.out_head_stride);
#pragma unroll
      for (int pair = 0; pair < kDim / 16; ++pair) {
        std::uint32_t word[2];
#pragma unroll
        for (int b = 0; b < 2; ++b) {
          const int i = 4 * (2 * pair + b) + 2 * row;
          word[b] =
              pack_rn<Out>(mul_rn(o[i], ends[row].factor), mul_rn(o[i + 1], ends[row].factor));
        }
        const bool odd = q % 2 != 0;
        const std::uint32_t other = shuffle_xor(odd ? word[0] : word[1], 1);
        const uint2 both = odd ? make_uint2(other, word[1]) : make_uint2(word[0], other);
        const int column = 16 * pair + (odd ? 8 : 0) + q / 2 * 4;
        if (!padding(row)) *reinterpret_cast<uint2*>(to + column) = both;
      }
    }
    if (p.counters != nullptr && thread == 0 && !mine.visited.empty()) {
      add_to(&p.counters[2 * work->head], static_cast<std::uint64_t>(mine.visited.count()));
      if (skipped != 0) add_to(&p.counters[2 * work->head + 1], skipped);
    }
  }

 private:
  template <class Place>
  __device__ MatrixDescriptor values_at(const Place& at) const {
    return n_major<Shape::kTileChunkBytes>(shared.values(at.stage));
  }
  // Rows beyond q_len agree to everything, and are not written.
  __device__ bool padding(int row) const { return rows_left <= 8 * row; }
  __device__ int row_of(int row) const {
    return work->first_row + unit * kUnitRows + fragment_row(thread, 2 * row);
  }
  __device__ std::int64_t place(int row, std::int64_t request_stride, std::int64_t row_stride,
                                std::int64_t head_stride) const {
    const bool packed = p.lengths.first_q != nullptr;
    return (packed ? 0 : work->request * request_stride) +
           (work->shape.q_begin + row_of(row)) * row_stride + work->head * head_stride;
  }
  __device__ void write_decision(int tile, bool keeps) const {
    if (p.decisions == nullptr) return;
    const std::int64_t unit_index = work->first_row / kUnitRows + unit;
    if (unit_index >= p.decision_units || tile >= p.decision_tiles) return;
    const std::int64_t row =
        (static_cast<std::int64_t>(work->request) * p.q_heads + work->head) * p.decision_units +
        unit_index;
    p.decisions[row * p.decision_tiles + tile] = keeps ? 1 : 2;
  }
};

}  // namespace assay::attention_kernels
