// The four warps of a decode block that add values: a quarter of the columns each, for all rows of
// the unit; at the end of a piece they write the output, or what is to be merged. Decides how a
// step of decode_flow.hpp becomes instructions (SPEC CUD-7.4). Every function is called by a whole
// warp.
#pragma once

#include "cuda/kernels/attention/decode_fetch_sm90.cuh"

namespace assay::attention_kernels {

// Where packed row `row` of a unit lies in an output whose strides are given.
__device__ inline std::int64_t decode_place_of_row(const PrefillParams& p, std::int32_t request,
                                                   const RequestShape& shape,
                                                   const DecodePlace& place, int row,
                                                   std::int64_t request_stride,
                                                   std::int64_t row_stride,
                                                   std::int64_t head_stride) {
  const int in_request = place.unit * kUnitRows + row;
  const int token = in_request / p.group;
  const int head = place.head * p.group + in_request % p.group;
  return (p.lengths.first_q != nullptr ? 0 : request * request_stride) +
         (std::int64_t{shape.q_begin} + token) * row_stride + head * head_stride;
}

// One element of the output, as the low 16 bits. e4m3 inputs give either type.
template <class T>
__device__ inline std::uint16_t narrow_output(float x, bool f16) {
  if constexpr (sizeof(T) == 1)
    return static_cast<std::uint16_t>(f16 ? pack_rn<F16>(x, x) : pack_rn<Bf16>(x, x));
  else
    return static_cast<std::uint16_t>(pack_rn<T>(x, x));
}

template <class Shape>
struct ValueAdder {
  using T = typename Shape::Element;
  using Operand = std::conditional_t<Shape::kFp8, F16, T>;
  static constexpr int kShift = Shape::kFp8 ? 8 : 0;
  static constexpr int kN = Shape::kRows / 8;          // blocks of eight query rows
  static constexpr int kM = Shape::kHeadDim / 16 / 4;  // blocks of sixteen columns of a warp
  static_assert(!Shape::kFp8 || kM % 2 == 0);

  const DecodeParams& p;
  const DecodeMap<Shape>& shared;
  int warp;  // among the four
  int lane;

  // Columns column(m, 0) and column(m, 1) of rows 8 n + 2 q and + 1: of this chunk, and of the
  // piece's chunks so far, folded.
  float o[kM][kN][4];
  float total[kM][kN][4];
  PieceEnd ends[kN][2];  // that belong to `total`
  float correction[kN][2];
  std::int32_t chunk = 0;
  bool folds = false;  // something came before

  __device__ ValueAdder(const DecodeParams& params, const DecodeMap<Shape>& map, int index)
      : p(params), shared(map), warp(index), lane(thread_index() % 32) {}

  __device__ void begin(const DecodeItem& item) {
    chunk = chunks_of(item.tiles).begin;
    folds = false;
    clear();
  }

  // --- steps of decode_flow.hpp

  template <class Place>
  __device__ void wait_entry(const Place& at) {
    shared.wait(Shape::kEntryFull, at, false, DecodeSite::kEntryFull);
  }
  template <class Place>
  __device__ std::int32_t entry_tile(const Place& at) {
    return static_cast<std::int32_t>(shared_load4(shared.entry_tile(at.stage)));
  }
  template <class Place>
  __device__ void wait_values(const Place& at) {
    shared.wait(Shape::kValuesFull, at, false, DecodeSite::kValuesFull);
  }
  template <class Place>
  __device__ void release_entry(const Place& at) {
    shared.arrive(Shape::kEntryFree, at.stage);
  }

  // O = O * correction; for e4m3 that comes with the product (SPEC ATT-6.2).
  template <class Place>
  __device__ void correct(const Place& at) {
#pragma unroll
    for (int n = 0; n < kN; ++n)
      shared_load_floats(shared.correction(at.stage, 8 * n + lane % 4 * 2), correction[n]);
    if constexpr (!Shape::kFp8) {
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int n = 0; n < kN; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) o[m][n][i] = mul_rn(o[m][n][i], correction[n][i % 2]);
    }
  }

  // O^T += V^T P^T.
  template <class Place>
  __device__ void add_product(const Place& at) {
    if constexpr (Shape::kFp8)
      add_apart(at);
    else
      add_chain(at);
  }

  // Of a piece with a unit's first chunk, the chunk is folded into what came before, and in the end
  // that is the output or the first part of it; other chunks are parts by themselves.
  template <class Place>
  __device__ void finish_chunk(const Place& at, const DecodeItem& item, bool last) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      float sums[4][2], max[2];
#pragma unroll
      for (int w = 0; w < 4; ++w)
        shared_load_floats(shared.end_sum(at.stage, w, 8 * n + lane % 4 * 2), sums[w]);
      shared_load_floats(shared.end_maximum(at.stage, 8 * n + lane % 4 * 2), max);
#pragma unroll
      for (int e = 0; e < 2; ++e)
        fold(n, e,
             {scaled_maximum<kShift>(max[e], p.call.scale_log2),
              sum_of_warps(sums[0][e], sums[1][e], sums[2][e], sums[3][e])});
    }
    folds = item.leads != 0;
    if (last || item.leads == 0) {
      const int first = item.leads != 0 ? chunks_of(item.tiles).begin : chunk;
#pragma unroll
      for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int row = 8 * n + lane % 4 * 2 + e;
          if (row >= item.rows) continue;
          if (item.is_all != 0)
            write_row(item, n, e, row);
          else
            keep_part(item, first, n, e, row);
        }
    }
    ++chunk;
    clear();
  }

 private:
  __device__ int column(int m, int upper) const {
    const int first = (kM * warp + m) * 16;
    return Shape::kFp8 ? first + lane / 4 * 2 + upper : first + lane / 4 + 8 * upper;
  }
  // Of V: a 16-byte piece of a row of the tile.
  __device__ SharedAddress value_piece(std::uint32_t entry, int key, int piece) const {
    return shared.values(entry) + piece / 8 * Shape::kTileChunkBytes +
           swizzled_offset(key, piece % 8 * 16);
  }

  template <class Place>
  __device__ void add_chain(const Place& at) {
#pragma unroll
    for (int k = 0; k < kDecodeTile / 16; ++k) {
      std::uint32_t b[kN / 2][4];
#pragma unroll
      for (int pair = 0; pair < kN / 2; ++pair)
        // Rows 0-7 of the first block with keys 0-7 and 8-15, then of the second.
        load_matrices(b[pair], shared.probabilities(at.stage) +
                                   swizzled_offset(16 * pair + lane / 16 * 8 + lane % 8,
                                                   (2 * k + lane / 8 % 2) * 16));
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        // Keys 0-7 of columns 0-7 and 8-15, then keys 8-15.
        std::uint32_t a[4];
        load_transposed(a, value_piece(at.stage, 16 * k + lane / 16 * 8 + lane % 8,
                                       2 * (kM * warp + m) + lane / 8 % 2));
#pragma unroll
        for (int n = 0; n < kN; ++n)
          warp_mma<Operand>(o[m][n], a, b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
      }
    }
  }

  // O = O * correction + P V, the product by 32 keys from zero: of those the ones with key mod 4
  // below 2, then the others; then an addition (SPEC NUM-4.6). Bytes 0 and 2 of a transposed word
  // are column 2 g of two keys, bytes 1 and 3 column 2 g + 1.
  template <class Place>
  __device__ void add_apart(const Place& at) {
#pragma unroll
    for (int pair = 0; pair < kM / 2; ++pair) {
      float product[2][kN][4];
#pragma unroll
      for (int k = 0; k < kDecodeTile / 32; ++k) {
        std::uint32_t a[2][2][4];  // [half][column block]
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          // Keys 4 (r / 2) + 2 half + r % 2, r = 0 to 7, of sixteen, then of the next sixteen.
          const int r = lane % 8;
          const int key = 32 * k + lane / 8 % 2 * 16 + r / 2 * 4 + 2 * half + r % 2;
          std::uint32_t words[4];
          load_transposed(words, value_piece(at.stage, key, kM * warp + 2 * pair + lane / 16));
#pragma unroll
          for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int j = 0; j < 2; ++j) {
              const std::uint32_t apart = bytes_of(words[2 * m + j], 0, 0x3120);
              a[half][m][2 * j] = widen_low_e4m3(apart);
              a[half][m][2 * j + 1] = widen_high_e4m3(apart);
            }
        }
#pragma unroll
        for (int n = 0; n < kN; ++n) {
          // Keys 4 q to 4 q + 3 of sixteen, then of the next sixteen.
          std::uint32_t b[2][2];
#pragma unroll
          for (int j = 0; j < 2; ++j)
            shared_load_words(shared.probabilities(at.stage) +
                                  swizzled_offset(8 * n + lane / 4, 64 * k + 32 * j + lane % 4 * 8),
                              b[j]);
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            float part[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            warp_mma<Operand>(part, a[0][m], b[0][0], b[1][0]);
            warp_mma<Operand>(part, a[1][m], b[0][1], b[1][1]);
#pragma unroll
            for (int i = 0; i < 4; ++i)
              product[m][n][i] = add_rn(part[i], k == 0 ? 0.0f : product[m][n][i]);
          }
        }
      }
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int n = 0; n < kN; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            float& out = o[2 * pair + m][n][i];
            out = fma_rn(out, correction[n][i % 2], product[m][n][i]);
          }
    }
  }

  __device__ void clear() {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) o[m][n][i] = 0.0f;
  }
  __device__ void fold(int n, int e, const PieceEnd& mine) {
    PieceEnd& so_far = ends[n][e];
    if (!folds) {
      so_far = mine;
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int upper = 0; upper < 2; ++upper) total[m][n][2 * upper + e] = o[m][n][2 * upper + e];
      return;
    }
    const float after = max_nan(so_far.scaled_max, mine.scaled_max);
    const FoldWeights w = fold_weights(so_far.scaled_max, mine.scaled_max, after);
    so_far = {after, folded(so_far.sum, mine.sum, w)};
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        float& x = total[m][n][2 * upper + e];
        x = folded(x, o[m][n][2 * upper + e], w);
      }
  }

  __device__ void write_row(const DecodeItem& item, int n, int e, int row) {
    const PrefillParams& c = p.call;
    const RowEnd end = folded_end(ends[n][e], c.v_scale);
    if (c.lse != nullptr && warp == 0 && lane < 4)
      c.lse[decode_place_of_row(c, item.request, item.shape, item.place, row, c.lse_request_stride,
                                c.lse_row_stride, c.lse_head_stride)] = end.lse_log2;
    std::uint16_t* const to =
        c.out + decode_place_of_row(c, item.request, item.shape, item.place, row,
                                    c.out_request_stride, c.out_row_stride, c.out_head_stride);
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int upper = 0; upper < 2; ++upper)
        to[column(m, upper)] =
            narrow_output<T>(mul_rn(total[m][n][2 * upper + e], end.factor), p.out_f16 != 0);
  }
  __device__ void keep_part(const DecodeItem& item, int at_chunk, int n, int e, int row) {
    const std::int64_t at =
        p.partials.entry(item.request, p.kv_heads, item.place.head, item.place.unit, at_chunk) *
            p.partials.rows +
        row;
    if (warp == 0 && lane < 4) p.partial_ends[at] = ends[n][e];
    float* const to = p.partial_out + at * Shape::kHeadDim;
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) to[column(m, upper)] = total[m][n][2 * upper + e];
  }
};

}  // namespace assay::attention_kernels
