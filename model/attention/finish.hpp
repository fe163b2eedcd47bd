// From a unit's pieces to its output rows: sinks, merge of splits, reciprocal, LSE, the final
// conversion. Internal to emulate.cpp. Decides SPEC ATT-5.4 and ATT-5.5's LSE.
#pragma once

#include <cmath>
#include <vector>

#include "model/attention/emulate.hpp"
#include "model/attention/softmax.hpp"
#include "model/numerics/convert.hpp"

namespace assay::attention {

// What a segment of tiles leaves: per row its maximum and sums, and O before any division.
struct Piece {
  std::vector<RowState> rows;
  std::vector<F32> o;    // [rows, v_dim]
  bool started = false;  // a tile was kept
};

class Finish {
 public:
  Finish(const Problem& p, const SkipRule& skip, const Softmax& soft, const Scale& scale,
         std::vector<std::size_t> rows)
      : p_(p), skip_(skip), soft_(soft), scale_(scale), fp_{soft.flush}, rows_(std::move(rows)) {}

  // Fills result.rows[].lse and result.out; result.rows are there already, one for each of rows_.
  void run(const std::vector<Piece>& pieces, UnitResult& result) const {
    const auto dim = static_cast<std::size_t>(p_.v_dim);
    result.out.resize(result.rows.size() * dim);
    std::vector<F32> o(dim);
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      UnitRow& row = result.rows[i];
      const bool merged_16 = soft_.partial == Partial::kRounded && pieces.size() > 1;
      if (merged_16)
        merge_rounded(pieces, rows_[i], row, o);
      else
        merge_f32(pieces, rows_[i], row, o);
      for (std::size_t d = 0; d < dim; ++d) result.out[i * dim + d] = converted(o[d]);
    }
  }

 private:
  std::uint16_t converted(F32 x) const {
    return p_.out_dtype == Dtype::kF16 ? numerics::cvt_rn_f16_f32(x).bits
                                       : numerics::cvt_rn_bf16_f32(x).bits;
  }
  F32 as_partial(F32 x) const {
    return p_.out_dtype == Dtype::kF16 ? numerics::widen(numerics::cvt_rn_f16_f32(x))
                                       : numerics::widen(numerics::cvt_rn_bf16_f32(x));
  }

  F32 with_sink(F32 sum, F32 max, F32 scaled, int q_head) const {
    if (p_.sinks.empty()) return sum;
    const F32 sink = numerics::from_float(p_.sinks[static_cast<std::size_t>(q_head)]);
    switch (soft_.sink) {
      case SinkForm::kNone:
        return sum;
      case SinkForm::kDouble: {
        // M_LOG2E is a double in the source, so this one expression is computed in double. Seen in
        // machine code: one DFMA, then a conversion to nearest.
        const double product = as_double(fp_.mul(max, scale_.exponent));
        const double x = std::fma(as_double(sink), 1.4426950408889634, -product) + soft_.p_log2;
        return fp_.add(sum, numerics::ex2_approx_ftz(rounded(x)));
      }
      case SinkForm::kNatural:
        return fp_.add(sum, numerics::ex2_approx_ftz(fp_.mul(fp_.sub(sink, max), kLog2E)));
      case SinkForm::kFma:
        return fp_.add(sum, numerics::ex2_approx_ftz(fp_.fma(sink, kLog2E, negated(scaled))));
    }
    return sum;
  }

  F32 reciprocal(F32 sum) const {
    if (numerics::is_zero(sum) && soft_.zero_sum != ZeroSum::kInfinite)
      return soft_.zero_sum == ZeroSum::kFactorOne ? kOne : F32{0};
    return soft_.reciprocal == Reciprocal::kApprox ? numerics::rcp_approx_ftz(sum)
                                                   : numerics::div_rn(kOne, sum, soft_.flush);
  }

  // What undoes P's multiplier, and v's scale: a constant that the host or the compiler computes.
  F32 after() const {
    const F32 undo = numerics::div_rn(kOne, soft_.p_multiplier, false);
    return numerics::mul_rn(undo, numerics::from_float(p_.v_scale), false);
  }

  void divide(F32 sum, std::vector<F32>& o) const {
    const F32 inverse = reciprocal(sum);
    const F32 factor = soft_.v_scale_in_reciprocal ? fp_.mul(inverse, after()) : inverse;
    const bool again = !soft_.v_scale_in_reciprocal && after().bits != kOne.bits;
    for (F32& x : o) {
      x = fp_.mul(x, factor);
      if (again) x = fp_.mul(x, after());
    }
  }

  // The logarithm of what was kept (SPEC ATT-5.5): the maximum in log2 units plus log2 of the sum.
  F32 lse(F32 sum, F32 scaled) const {
    if (soft_.lse == LseForm::kNone) return F32{0};
    if (numerics::is_zero(sum)) return kMinusInfinity;
    const F32 log2 = fp_.add(scaled, numerics::lg2_approx_ftz(sum));
    return soft_.lse == LseForm::kLog2 ? log2 : fp_.mul(log2, kLn2);
  }

  std::span<const F32> piece_o(const Piece& piece, std::size_t row) const {
    const auto dim = static_cast<std::size_t>(p_.v_dim);
    return {&piece.o[row * dim], dim};
  }

  F32 scaled_max(const Piece& piece, std::size_t row) const {
    return scaled_maximum(soft_, piece.rows[row].max, scale_.exponent, skip_.fill, false);
  }

  // One piece as it is; several by their common maximum, each weighted, in order (SPEC ATT-5.4).
  void merge_f32(const std::vector<Piece>& pieces, std::size_t row, UnitRow& out,
                 std::vector<F32>& o) const {
    std::fill(o.begin(), o.end(), F32{0});
    F32 sum{0};
    F32 max = skip_.initial_max;
    F32 scaled = kMinusInfinity;
    for (const Piece& piece : pieces) {
      if (!piece.started) continue;
      max = numerics::max_of(max, piece.rows[row].max, soft_.max_nan);
      scaled = numerics::max_of(scaled, scaled_max(piece, row), soft_.max_nan);
    }
    if (pieces.size() == 1 && pieces[0].started) {
      sum = sum_of(soft_, pieces[0].rows[row]);
      const std::span<const F32> from = piece_o(pieces[0], row);
      std::copy(from.begin(), from.end(), o.begin());
    } else {
      bool first = true;
      const F32 common = scaled.bits == kMinusInfinity.bits ? F32{0} : scaled;
      for (const Piece& piece : pieces) {
        if (!piece.started) continue;
        const F32 weight = numerics::ex2_approx_ftz(fp_.sub(scaled_max(piece, row), common));
        const F32 part = sum_of(soft_, piece.rows[row]);
        sum = first ? fp_.mul(part, weight) : fp_.fma(part, weight, sum);
        const std::span<const F32> from = piece_o(piece, row);
        for (std::size_t d = 0; d < o.size(); ++d)
          o[d] = first ? fp_.mul(from[d], weight) : fp_.fma(from[d], weight, o[d]);
        first = false;
      }
    }
    // A row that saw nothing has no maximum; its sink, if any, then counts from 0.
    const F32 base = scaled.bits == kMinusInfinity.bits ? F32{0} : scaled;
    sum = with_sink(sum, max, base, out.q_head);
    out.lse = lse(sum, base);
    divide(sum, o);
  }

  // Pieces that were divided and rounded before they met, one after the other onto a state.
  void merge_rounded(const std::vector<Piece>& pieces, std::size_t row, UnitRow& out,
                     std::vector<F32>& o) const {
    std::fill(o.begin(), o.end(), F32{0});
    F32 sum{0};
    F32 max = skip_.initial_max;
    const auto weight_of = [&](F32 lower, F32 upper) {
      return numerics::ex2_approx_ftz(fp_.mul(fp_.sub(lower, upper), kLog2E));
    };
    for (const Piece& piece : pieces) {
      const std::span<const F32> from = piece_o(piece, row);
      std::vector<F32> part(from.begin(), from.end());
      const F32 part_sum = sum_of(soft_, piece.rows[row]);
      const F32 part_max = piece.rows[row].max;
      divide(part_sum, part);
      const bool raises = below(max, part_max);
      const F32 weight = raises ? weight_of(max, part_max) : weight_of(part_max, max);
      const F32 scaled_sum = fp_.mul(part_sum, weight);
      for (std::size_t d = 0; d < o.size(); ++d) {
        const F32 value = as_partial(part[d]);
        o[d] = raises ? fp_.fma(o[d], weight, fp_.mul(value, part_sum))
                      : fp_.fma(value, scaled_sum, o[d]);
      }
      sum = raises ? fp_.fma(sum, weight, part_sum) : fp_.fma(part_sum, weight, sum);
      if (raises) max = part_max;
    }
    sum = with_sink(sum, max, kMinusInfinity, out.q_head);
    out.lse = lse(sum, fp_.mul(max, kLog2E));
    const F32 inverse = numerics::rcp_approx_ftz(sum);
    for (F32& x : o) x = fp_.mul(x, inverse);
  }

  const Problem& p_;
  const SkipRule& skip_;
  const Softmax& soft_;
  const Scale& scale_;
  Fp fp_;
  std::vector<std::size_t> rows_;
};

}  // namespace assay::attention
