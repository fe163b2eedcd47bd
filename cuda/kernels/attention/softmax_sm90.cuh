// What a thread does with its fragment of a score tile by itself: mask, maxima, exponentials, sums,
// the narrow copy for the second product, and the last division; a host runs it too, in tests.
// Decides the order and rounding of every operation between the two products (SPEC ATT-4.3, ATT-5,
// ATT-6.2). A thread holds two rows, g and g + 8 of its warp's sixteen, and of each the columns 8 i
// + 2 q and 8 i + 2 q + 1, q its place in the quad that shares the rows.
#pragma once

#include "cuda/kernels/attention/plan.hpp"
#include "cuda/ops/scalar.hpp"

namespace assay::attention_kernels {

using namespace assay::cuda;

// What a row carries from tile to tile, as one of its quad's threads sees it.
struct RowState {
  float max;         // -inf before the first tile
  float sum;         // of this thread's columns
  float correction;  // of the last kept tile
};

// Hides what the rows do not see. `column`: the key of this thread's first column in the tile.
template <int kTile>
ASSAY_DEVICE inline void hide(float (&s)[kTile / 2], int column, Range row0, Range row1) {
  const int begin[2] = {row0.begin - column, row1.begin - column};
  const int end[2] = {row0.end - column, row1.end - column};
  ASSAY_UNROLL
  for (int i = 0; i < kTile / 2; ++i) {
    const int at = i / 4 * 8 + i % 2;
    const int row = i / 2 % 2;
    if (at < begin[row] || at >= end[row]) s[i] = minus_infinity();
  }
}

// The maxima of both rows over the thread's columns. Any order gives the same bits.
template <int kTile>
ASSAY_DEVICE inline void maxima(const float (&s)[kTile / 2], float (&local)[2]) {
  float part[2][2];
  ASSAY_UNROLL
  for (int row = 0; row < 2; ++row) {
    ASSAY_UNROLL
    for (int j = 0; j < 2; ++j) part[row][j] = s[2 * row + j];
  }
  ASSAY_UNROLL
  for (int i = 4; i < kTile / 2; ++i)
    part[i / 2 % 2][i % 2] = max_nan(part[i / 2 % 2][i % 2], s[i]);
  ASSAY_UNROLL
  for (int row = 0; row < 2; ++row) local[row] = max_nan(part[row][0], part[row][1]);
}

// SPEC ATT-6.3: whether a row whose maximum over the tile is `local` agrees to skip it.
ASSAY_DEVICE inline bool may_skip(float local, float running, float offset) {
  return local < max_number(add_rn(running, offset), lowest_float());
}

// log2(lambda) / scale_log2, lambda being at most 1 (SPEC ATT-6.3).
ASSAY_DEVICE inline float skip_offset(float factor, bool divides, int kv_len,
                                      float scale_log2_inverse) {
  float lambda = divides ? div_rn(factor, from_int_rn(kv_len)) : factor;
  if (lambda >= 1.0f) lambda = 1.0f;  // false for NaN, which then skips nothing
  return mul_rn(lg2_approx_ftz(lambda), scale_log2_inverse);
}

// The maximum as exponents use it: with kShift, P is 2^kShift times larger (SPEC ATT-6.2).
template <int kShift>
ASSAY_DEVICE inline float scaled_maximum(float max, float c) {
  if constexpr (kShift == 0) return mul_rn(max, c);
  return fma_rn(max, c, -static_cast<float>(kShift));
}

// What the exponentials of a tile have in common: what each row's exponents subtract, and the sums
// of its even and odd columns so far.
struct Exponents {
  float scaled[2];
  float even[2], odd[2];
};

// The rows' maxima move on (SPEC ATT-5.2, ATT-6.2). Before the first kept tile a row's sum is 0 and
// its output zeros, which the correction, 0 or NaN with all the row, leaves alone.
template <int kShift = 0>
ASSAY_DEVICE inline Exponents begin_exponentials(const float (&local)[2], float c,
                                                 RowState (&rows)[2]) {
  Exponents e;
  ASSAY_UNROLL
  for (int row = 0; row < 2; ++row) {
    const float before = scaled_maximum<kShift>(rows[row].max, c);
    rows[row].max = max_nan(rows[row].max, local[row]);
    const bool empty = rows[row].max == minus_infinity();
    e.scaled[row] = empty ? 0.0f : scaled_maximum<kShift>(rows[row].max, c);
    rows[row].correction = ex2_approx_ftz(sub_rn(before, e.scaled[row]));
  }
  return e;
}

// kCount scores from kFirst on become exponentials and enter the sums (SPEC ATT-5.3): all of a
// tile's in order, in one part or several.
template <int kFirst, int kCount, int kScores>
ASSAY_DEVICE inline void exponentials_part(float (&s)[kScores], float c, Exponents& e) {
  ASSAY_UNROLL
  for (int i = kFirst; i < kFirst + kCount; ++i)
    s[i] = ex2_approx_ftz(fma_rn(s[i], c, -e.scaled[i / 2 % 2]));
  ASSAY_UNROLL
  for (int row = 0; row < 2; ++row) {
    ASSAY_UNROLL
    for (int i = kFirst + 2 * row; i < kFirst + kCount; i += 4) {
      e.even[row] = i < 4 ? s[i] : add_rn(e.even[row], s[i]);
      e.odd[row] = i < 4 ? s[i + 1] : add_rn(e.odd[row], s[i + 1]);
    }
  }
}

ASSAY_DEVICE inline void end_exponentials(const Exponents& e, RowState (&rows)[2]) {
  ASSAY_UNROLL
  for (int row = 0; row < 2; ++row)
    rows[row].sum = fma_rn(rows[row].sum, rows[row].correction, add_rn(e.even[row], e.odd[row]));
}

template <int kTile, int kShift = 0>
ASSAY_DEVICE inline void exponentials_of(float (&s)[kTile / 2], const float (&local)[2], float c,
                                         RowState (&rows)[2]) {
  Exponents e = begin_exponentials<kShift>(local, c, rows);
  exponentials_part<0, kTile / 2>(s, c, e);
  end_exponentials(e, rows);
}

// Exponentials as the A operand of the second product, 16 keys an instruction.
template <class T, int kTile>
ASSAY_DEVICE inline void narrow_to(const float (&s)[kTile / 2], std::uint32_t (&p)[kTile / 16][4]) {
  ASSAY_UNROLL
  for (int k = 0; k < kTile / 16; ++k) {
    ASSAY_UNROLL
    for (int j = 0; j < 4; ++j) p[k][j] = pack_rn<T>(s[8 * k + 2 * j], s[8 * k + 2 * j + 1]);
  }
}

// kCount exponentials from kFirst on, likewise, into the first half of the exponentials' own
// registers: word i is of elements 2 i and 2 i + 1, so it overwrites nothing that is still to be
// read. ptxas gives an array of its own registers of its own, which three units do not have.
template <class T, int kFirst, int kCount, int kScores>
ASSAY_DEVICE inline void narrow_in_place(float (&s)[kScores]) {
  ASSAY_UNROLL
  for (int i = kFirst / 2; i < (kFirst + kCount) / 2; ++i)
    s[i] = std::bit_cast<float>(pack_rn<T>(s[2 * i], s[2 * i + 1]));
}

// Likewise for e4m3, 32 keys an instruction. The operand's bytes 4 q to 4 q + 3 of every sixteen,
// which its thread q holds, stand for the keys that thread q has: 2 q, 2 q + 1, 2 q + 8, 2 q + 9.
// Values are transposed in the same order (transpose_sm90.cuh), and inside an instruction order
// changes no bit (SPEC NUM-4.1).
template <int kTile>
ASSAY_DEVICE inline void narrow_to_e4m3(const float (&s)[kTile / 2],
                                        std::uint32_t (&p)[kTile / 32][4]) {
  ASSAY_UNROLL
  for (int k = 0; k < kTile / 32; ++k) {
    ASSAY_UNROLL
    for (int j = 0; j < 4; ++j) {
      const int i = 16 * k + j / 2 * 8 + j % 2 * 2;
      p[k][j] = pack_e4m3(s[i], s[i + 1], s[i + 4], s[i + 5]);
    }
  }
}

template <int kDim>
ASSAY_DEVICE inline void correct(float (&o)[kDim / 2], const RowState (&rows)[2]) {
  ASSAY_UNROLL
  for (int i = 0; i < kDim / 2; ++i) o[i] = mul_rn(o[i], rows[i / 2 % 2].correction);
}

// What a row's output is multiplied by, and its LSE (SPEC ATT-5.5, ATT-6.2). `sum` is the quad's.
struct RowEnd {
  float factor;
  float lse_log2;
};
template <int kShift = 0>
ASSAY_DEVICE inline RowEnd end_of(float max, float sum, float c, float v_scale) {
  const float scaled = scaled_maximum<kShift>(max, c);
  const float base = scaled == minus_infinity() ? 0.0f : scaled;
  const bool nothing = sum == 0.0f;
  RowEnd end;
  end.factor = mul_rn(nothing ? 0.0f : div_rn(1.0f, sum), v_scale);
  end.lse_log2 = nothing ? minus_infinity() : add_rn(base, lg2_approx_ftz(sum));
  return end;
}

}  // namespace assay::attention_kernels
