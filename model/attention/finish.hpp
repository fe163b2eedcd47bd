// From a unit's pieces to its output rows: sinks, merge of splits, reciprocal, LSE, the final
// conversion. Internal to the emulator. Decides SPEC ATT-5.4 and ATT-5.5's LSE. Compiles for host
// and device: row() comes first for every row, then element() for every element.
#pragma once

#include "model/attention/unit_scratch.hpp"
#include "model/numerics/convert.hpp"

namespace assay::attention {

template <class T>
class Finish {
 public:
  ASSAY_HD Finish(const UnitView& view, const UnitScratch<T>& scratch, int rows, int pieces)
      : v_(view),
        soft_(view.soft),
        fp_{view.soft.flush},
        s_(scratch),
        rows_(rows),
        pieces_(pieces) {
    after_ = numerics::mul_rn(numerics::div_rn(kOne, soft_.p_multiplier, false),
                              numerics::from_float(v_.v_scale), false);
  }

  // Everything about a row but its elements; gives the LSE.
  ASSAY_HD F32 row(int i, int q_head) const {
    if (rounds_partials()) return merge_rounded(i, q_head);
    return folds() ? merge_folded(i, q_head) : merge_f32(i, q_head);
  }

  // Bits of the output's type.
  ASSAY_HD std::uint16_t element(int i, int column) const {
    F32 x{0};
    if (rounds_partials()) {
      for (int p = 0; p < pieces_; ++p) x = with_rounded(x, weight(p, i), o(p, i, column));
      return converted(fp_.mul(x, s_.factor[i]));
    }
    if (single()) {
      x = o(0, i, column);
    } else {
      bool first = true;
      for (int p = 0; p < pieces_; ++p) {
        if (s_.started[p] == 0) continue;
        const PieceWeight& w = weight(p, i);
        if (folds())
          x = first ? o(p, i, column) : fp_.fma(o(p, i, column), w.weight, fp_.mul(x, w.factor));
        else
          x = first ? fp_.mul(o(p, i, column), w.weight) : fp_.fma(o(p, i, column), w.weight, x);
        first = false;
      }
    }
    return converted(divided(x, s_.factor[i]));
  }

 private:
  ASSAY_HD bool rounds_partials() const {
    return soft_.partial == Partial::kRounded && pieces_ > 1;
  }
  ASSAY_HD bool folds() const { return soft_.partial == Partial::kFolded; }
  ASSAY_HD bool single() const { return pieces_ == 1 && s_.started[0] != 0; }
  ASSAY_HD F32 o(int piece, int i, int column) const {
    return s_.o[(std::int64_t{piece} * rows_ + i) * v_.v_dim + column];
  }
  ASSAY_HD const RowState& state(int piece, int i) const { return s_.states[piece * rows_ + i]; }
  ASSAY_HD PieceWeight& weight(int piece, int i) const { return s_.weights[piece * rows_ + i]; }

  ASSAY_HD std::uint16_t converted(F32 x) const {
    return v_.out_dtype == Dtype::kF16 ? numerics::cvt_rn_f16_f32(x).bits
                                       : numerics::cvt_rn_bf16_f32(x).bits;
  }
  ASSAY_HD F32 as_partial(F32 x) const {
    return v_.out_dtype == Dtype::kF16 ? numerics::widen(numerics::cvt_rn_f16_f32(x))
                                       : numerics::widen(numerics::cvt_rn_bf16_f32(x));
  }

  ASSAY_HD F32 with_sink(F32 sum, F32 max, F32 scaled, int q_head) const {
    if (v_.sinks == nullptr) return sum;
    const F32 sink = numerics::from_float(v_.sinks[q_head]);
    switch (soft_.sink) {
      case SinkForm::kNone:
        return sum;
      case SinkForm::kDouble: {
        // M_LOG2E is a double in the source, so this one expression is computed in double. Seen in
        // machine code: one DFMA, then a conversion to nearest.
        const double product = as_double(fp_.mul(max, v_.scale.exponent));
        const double x = fma_double(as_double(sink), 1.4426950408889634, -product) + soft_.p_log2;
        return fp_.add(sum, numerics::ex2_approx_ftz(rounded(x)));
      }
      case SinkForm::kNatural:
        return fp_.add(sum, numerics::ex2_approx_ftz(fp_.mul(fp_.sub(sink, max), kLog2E)));
      case SinkForm::kFma:
        return fp_.add(sum, numerics::ex2_approx_ftz(fp_.fma(sink, kLog2E, negated(scaled))));
    }
    return sum;
  }

  ASSAY_HD F32 reciprocal(F32 sum) const {
    if (numerics::is_zero(sum) && soft_.zero_sum != ZeroSum::kInfinite)
      return soft_.zero_sum == ZeroSum::kFactorOne ? kOne : F32{0};
    return soft_.reciprocal == Reciprocal::kApprox ? numerics::rcp_approx_ftz(sum)
                                                   : numerics::div_rn(kOne, sum, soft_.flush);
  }

  // What O is multiplied by, and then, unless it is in the factor, by what undoes P's multiplier
  // and v's scale: a constant that the host or the compiler computes.
  ASSAY_HD F32 factor_of(F32 sum) const {
    const F32 inverse = reciprocal(sum);
    return soft_.v_scale_in_reciprocal ? fp_.mul(inverse, after_) : inverse;
  }
  ASSAY_HD F32 divided(F32 x, F32 factor) const {
    x = fp_.mul(x, factor);
    return soft_.v_scale_in_reciprocal || after_.bits == kOne.bits ? x : fp_.mul(x, after_);
  }

  // The logarithm of what was kept (SPEC ATT-5.5): the maximum in log2 units plus log2 of the sum.
  ASSAY_HD F32 lse(F32 sum, F32 scaled) const {
    if (soft_.lse == LseForm::kNone) return F32{0};
    if (numerics::is_zero(sum)) return kMinusInfinity;
    const F32 log2 = fp_.add(scaled, numerics::lg2_approx_ftz(sum));
    return soft_.lse == LseForm::kLog2 ? log2 : fp_.mul(log2, kLn2);
  }

  ASSAY_HD F32 scaled_max(int piece, int i) const {
    return scaled_maximum(soft_, state(piece, i).max, v_.scale.exponent, v_.skip.fill, false);
  }

  // One piece as it is; several by their common maximum, each weighted, in order (SPEC ATT-5.4).
  ASSAY_HD F32 merge_f32(int i, int q_head) const {
    F32 sum{0};
    F32 max = v_.skip.initial_max;
    F32 scaled = kMinusInfinity;
    for (int p = 0; p < pieces_; ++p) {
      if (s_.started[p] == 0) continue;
      max = numerics::max_of(max, state(p, i).max, soft_.max_nan);
      scaled = numerics::max_of(scaled, scaled_max(p, i), soft_.max_nan);
    }
    // A row that saw nothing has no maximum; its sink, if any, then counts from 0.
    const F32 base = scaled.bits == kMinusInfinity.bits ? F32{0} : scaled;
    bool first = true;
    for (int p = 0; p < pieces_; ++p) {
      if (s_.started[p] == 0) continue;
      const F32 part = sum_of(soft_, state(p, i));
      if (single()) {
        sum = part;
        break;
      }
      const F32 w = numerics::ex2_approx_ftz(fp_.sub(scaled_max(p, i), base));
      weight(p, i).weight = w;
      sum = first ? fp_.mul(part, w) : fp_.fma(part, w, sum);
      first = false;
    }
    sum = with_sink(sum, max, base, q_head);
    s_.factor[i] = factor_of(sum);
    return lse(sum, base);
  }

  // Pieces one after the other: what came before and the piece, each weighted by how far it lies
  // below the larger maximum (SPEC ATT-5.4).
  ASSAY_HD F32 merge_folded(int i, int q_head) const {
    F32 sum{0};
    F32 max = v_.skip.initial_max;
    F32 scaled = kMinusInfinity;
    F32 base{0};
    bool first = true;
    for (int p = 0; p < pieces_; ++p) {
      if (s_.started[p] == 0) continue;
      const F32 part_scaled = scaled_max(p, i), before = scaled;
      max = numerics::max_of(max, state(p, i).max, soft_.max_nan);
      scaled = numerics::max_of(scaled, part_scaled, soft_.max_nan);
      base = scaled.bits == kMinusInfinity.bits ? F32{0} : scaled;
      PieceWeight& w = weight(p, i);
      w.factor = numerics::ex2_approx_ftz(fp_.sub(before, base));
      w.weight = numerics::ex2_approx_ftz(fp_.sub(part_scaled, base));
      const F32 part = sum_of(soft_, state(p, i));
      sum = first ? part : fp_.fma(part, w.weight, fp_.mul(sum, w.factor));
      first = false;
    }
    sum = with_sink(sum, max, base, q_head);
    s_.factor[i] = factor_of(sum);
    return lse(sum, base);
  }

  // Pieces that were divided and rounded before they met, one after the other onto a state.
  ASSAY_HD F32 merge_rounded(int i, int q_head) const {
    F32 sum{0};
    F32 max = v_.skip.initial_max;
    for (int p = 0; p < pieces_; ++p) {
      PieceWeight w;
      w.sum = sum_of(soft_, state(p, i));
      w.factor = factor_of(w.sum);
      const F32 part_max = state(p, i).max;
      w.raises = below(max, part_max);
      const F32 lower = w.raises ? max : part_max, upper = w.raises ? part_max : max;
      w.weight = numerics::ex2_approx_ftz(fp_.mul(fp_.sub(lower, upper), kLog2E));
      w.scaled_sum = fp_.mul(w.sum, w.weight);
      sum = w.raises ? fp_.fma(sum, w.weight, w.sum) : fp_.fma(w.sum, w.weight, sum);
      if (w.raises) max = part_max;
      weight(p, i) = w;
    }
    sum = with_sink(sum, max, kMinusInfinity, q_head);
    s_.factor[i] = numerics::rcp_approx_ftz(sum);
    return lse(sum, fp_.mul(max, kLog2E));
  }
  ASSAY_HD F32 with_rounded(F32 x, const PieceWeight& w, F32 part) const {
    const F32 value = as_partial(divided(part, w.factor));
    return w.raises ? fp_.fma(x, w.weight, fp_.mul(value, w.sum)) : fp_.fma(value, w.scaled_sum, x);
  }

  ASSAY_HD static double fma_double(double a, double b, double c) {
#ifdef __CUDA_ARCH__
    return __fma_rn(a, b, c);
#else
    return std::fma(a, b, c);
#endif
  }

  const UnitView& v_;
  const Softmax& soft_;
  Fp fp_;
  const UnitScratch<T>& s_;
  int rows_;
  int pieces_;
  F32 after_{0};
};

}  // namespace assay::attention
