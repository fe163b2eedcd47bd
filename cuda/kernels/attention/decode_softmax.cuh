// What a thread of a decode block does by itself between scores and P, and with the sums at the
// end; a host runs it too, in tests. Decides the order and rounding of every operation there (SPEC
// ATT-4.3, ATT-5, ATT-6.4). Keys are the rows of the score tile: lane 4 g + q of warp w holds keys
// 16 w + g and 16 w + g + 8 of query rows 8 n + 2 q and 8 n + 2 q + 1.
#pragma once

#include "cuda/kernels/attention/softmax_sm90.cuh"

namespace assay::attention_kernels {

// Hides what the two query rows do not see of two keys; s as a fragment has it: key, key + 8.
ASSAY_DEVICE inline void hide_keys(float (&s)[4], int key, Range row0, Range row1) {
  ASSAY_UNROLL
  for (int i = 0; i < 4; ++i)
    if (!(i % 2 == 0 ? row0 : row1).contains(key + i / 2 * 8)) s[i] = minus_infinity();
}

// A kept tile raises the row's maximum to `local` or more; returns the maximum as exponents use it.
template <int kShift>
ASSAY_DEVICE inline float raise_maximum(RowState& row, float local, float c) {
  const float before = scaled_maximum<kShift>(row.max, c);
  row.max = max_nan(row.max, local);
  const float scaled = row.max == minus_infinity() ? 0.0f : scaled_maximum<kShift>(row.max, c);
  row.correction = ex2_approx_ftz(sub_rn(before, scaled));
  return scaled;
}

// Two scores of a row, of keys 16 w + g and 16 w + g + 8, become exponentials and enter the
// thread's sum. Before the first kept tile the sum is 0, which the correction, 0 or NaN with all
// the row, leaves alone.
ASSAY_DEVICE inline void exponentials_of_pair(float& first, float& second, float c, float scaled,
                                              RowState& row) {
  first = ex2_approx_ftz(fma_rn(first, c, -scaled));
  second = ex2_approx_ftz(fma_rn(second, c, -scaled));
  row.sum = fma_rn(row.sum, row.correction, add_rn(first, second));
}

// The sum of a row out of its four warps'.
ASSAY_DEVICE inline float sum_of_warps(float w0, float w1, float w2, float w3) {
  return add_rn(add_rn(w0, w1), add_rn(w2, w3));
}

// What a chunk, or several folded ones, leave of a row beside O.
struct PieceEnd {
  float scaled_max;
  float sum;
};
// A chunk meets what came before it: both are weighted by how far they lie below the larger
// maximum (SPEC ATT-5.4). The first chunk stays as it is.
struct FoldWeights {
  float before;
  float chunk;
};
ASSAY_DEVICE inline float fold_base(float scaled_max) {
  return scaled_max == minus_infinity() ? 0.0f : scaled_max;
}
// `after` is the larger maximum.
ASSAY_DEVICE inline FoldWeights fold_weights(float before, float chunk, float after) {
  const float base = fold_base(after);
  return {ex2_approx_ftz(sub_rn(before, base)), ex2_approx_ftz(sub_rn(chunk, base))};
}
ASSAY_DEVICE inline float folded(float so_far, float chunk, FoldWeights w) {
  return fma_rn(chunk, w.chunk, mul_rn(so_far, w.before));
}
// What a row's output is multiplied by, and its LSE (SPEC ATT-5.5, ATT-6.2).
ASSAY_DEVICE inline RowEnd folded_end(const PieceEnd& all, float v_scale) {
  const bool nothing = all.sum == 0.0f;
  RowEnd end;
  end.factor = mul_rn(nothing ? 0.0f : div_rn(1.0f, all.sum), v_scale);
  end.lse_log2 =
      nothing ? minus_infinity() : add_rn(fold_base(all.scaled_max), lg2_approx_ftz(all.sum));
  return end;
}

}  // namespace assay::attention_kernels
