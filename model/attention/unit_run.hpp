// One unit, tile by tile: gather, scores, vote, P, products, merge of its pieces. Internal to
// emulate.cpp. Decides the order of steps (SPEC ATT-5.1, ATT-5.4); nothing here depends on another
// unit.
#pragma once

#include <algorithm>
#include <bitset>
#include <cstring>
#include <vector>

#include "model/attention/emulate.hpp"
#include "model/attention/finish.hpp"
#include "model/attention/softmax.hpp"
#include "model/attention/unit_plan.hpp"
#include "model/numerics/bulk.hpp"

namespace assay::attention {

template <class T>
class UnitRun {
 public:
  explicit UnitRun(const UnitInput& in)
      : in_(in),
        p_(in.problem),
        r_(in.problem.requests[in.unit.request]),
        skip_(in.resolved.skip),
        soft_(in.resolved.softmax),
        kv_tile_(in.resolved.tile.kv_tile),
        plan_(in),
        rows_(plan_.rows()) {}

  UnitResult run() {
    gather_queries();
    std::vector<Piece> pieces;
    for (const Segment& segment : plan_.segments()) pieces.push_back(run_segment(segment));
    result_.unit = in_.unit;
    std::vector<std::size_t> valid;
    for (std::size_t i = 0; i < rows(); ++i) {
      if (!rows_[i].valid) continue;
      valid.push_back(i);
      result_.rows.push_back({rows_[i].token, rows_[i].q_head, F32{0}});
    }
    Finish finish{p_, skip_, soft_, in_.scale, std::move(valid)};
    finish.run(pieces, result_);
    return std::move(result_);
  }

 private:
  std::size_t rows() const { return rows_.size(); }
  std::size_t tile() const { return static_cast<std::size_t>(kv_tile_); }
  std::size_t v_dim() const { return static_cast<std::size_t>(p_.v_dim); }
  std::size_t head_dim() const { return static_cast<std::size_t>(p_.head_dim); }
  void gather_queries() {
    q_.resize(rows() * head_dim());
    for (std::size_t i = 0; i < rows(); ++i) {
      T* const to = &q_[i * head_dim()];
      if (rows_[i].valid || skip_.padding_fill == PaddingFill::kNeighbour)
        copy_query(p_, r_, rows_[i].q_head, rows_[i].token, reinterpret_cast<std::byte*>(to));
      else
        std::fill_n(to, head_dim(), T{0});
    }
    k_.resize(tile() * head_dim());
    v_t_.resize(v_dim() * tile());
    scores_.resize(rows() * tile());
    p_bits_.resize(rows() * tile());
    local_.resize(rows());
    corrections_.resize(rows());
  }

  bool key_exists(std::int32_t key) const {
    return key < r_.kv_len || skip_.padding_fill == PaddingFill::kNeighbour;
  }

  // S = Q K^T by the chain of matrix instructions over head_dim.
  void compute_scores(std::int32_t tile_index) {
    for (int j = 0; j < kv_tile_; ++j) {
      const std::int32_t key = tile_index * kv_tile_ + j;
      T* const to = &k_[static_cast<std::size_t>(j) * head_dim()];
      if (key_exists(key))
        copy_key(p_, r_, plan_.kv_head(), key, reinterpret_cast<std::byte*>(to));
      else
        std::fill_n(to, head_dim(), T{0});
    }
    numerics::MmaProblem<T> mma;
    mma.m = static_cast<int>(rows());
    mma.n = kv_tile_;
    mma.k = p_.head_dim;
    mma.a = q_.data();
    mma.b = k_.data();
    mma.d = scores_.data();
    const Status done = numerics::mma(*in_.resolved.qk, mma);
    CONTRACT(done.has_value(), done ? "" : done.error().sentence);
    for (std::size_t i = 0; i < rows(); ++i) scale_and_mask(i, tile_index);
  }

  std::span<F32> score_row(std::size_t i) { return {&scores_[i * tile()], tile()}; }

  // Scale, cap, bias, then the mask (SPEC ATT-5.1).
  void scale_and_mask(std::size_t i, std::int32_t tile_index) {
    const UnitPlan::Row& row = rows_[i];
    const Fp fp{soft_.flush};
    const std::span<F32> s = score_row(i);
    const std::int32_t first = tile_index * kv_tile_;
    if (soft_.unit != ScoreUnit::kRaw) {
      const F32 factor = soft_.unit == ScoreUnit::kNatural ? in_.scale.natural : in_.scale.log2;
      for (F32& x : s) x = fp.mul(x, factor);
    }
    if (p_.softcap > 0) {
      for (F32& x : s) x = fp.mul(numerics::from_float(p_.softcap), numerics::tanh_approx(x));
    }
    if (!p_.alibi_slopes.empty()) {
      const F32 slope = numerics::from_float(p_.alibi_slopes[static_cast<std::size_t>(row.q_head)]);
      for (std::size_t j = 0; j < s.size(); ++j)
        s[j] = fp.fma(numerics::from_float(static_cast<float>(first + static_cast<int>(j))), slope,
                      s[j]);
    }
    const auto column = [&](std::int32_t key) {
      return static_cast<std::size_t>(std::clamp(key - first, 0, kv_tile_));
    };
    const std::size_t begin = row.keys.empty() ? tile() : column(row.keys.begin);
    const std::size_t end = row.keys.empty() ? tile() : column(row.keys.end);
    std::fill(s.begin(), s.begin() + static_cast<std::ptrdiff_t>(begin), skip_.fill);
    std::fill(s.begin() + static_cast<std::ptrdiff_t>(std::max(begin, end)), s.end(), skip_.fill);
    if (p_.custom_mask.empty()) return;
    for (std::size_t j = begin; j < end; ++j) {
      if (!row.valid || !p_.sees(in_.unit.request, row.token, first + static_cast<int>(j)))
        s[j] = skip_.fill;
    }
  }

  bool guards_empty_rows() const {
    return soft_.empty == EmptyGuard::kAlways ||
           (soft_.empty == EmptyGuard::kWindowed &&
            (p_.mask == MaskKind::kWindow || p_.mask == MaskKind::kChunked ||
             !p_.custom_mask.empty()));
  }

  // The vote (SPEC ATT-4.4): every voting row, and the groups of zeroing_rows for themselves.
  TileTrace vote(std::int32_t tile_index, const Piece& piece, bool asked) {
    TileTrace trace;
    trace.tile = tile_index;
    trace.asked = asked;
    trace.decision = Decision::kKept;
    for (std::size_t i = 0; i < rows(); ++i) local_[i] = row_maximum(score_row(i), soft_.max_nan);
    if (!asked) return trace;
    bool all = true;
    double largest = -std::numeric_limits<double>::infinity();
    const int group = skip_.zeroing_rows == 0 ? static_cast<int>(rows()) : skip_.zeroing_rows;
    std::bitset<128> may_zero;
    may_zero.set();
    for (std::size_t i = 0; i < rows(); ++i) {
      const F32 l = local_[i];
      F32 g = piece.rows[i].max;
      if (skip_.reference == Reference::kInclusive) g = numerics::max_of(l, g, soft_.max_nan);
      const bool may = row_may_skip(skip_, in_.lambda, in_.scale, l, g, soft_.flush);
      all &= may;
      if (!may) may_zero.reset(i / static_cast<std::size_t>(group));
      const double margin = row_margin(in_.lambda, in_.scale, l, g);
      trace.near_tie |= std::abs(margin) <= tie_width(in_.lambda, in_.scale, l, g);
      if (i != 0 && !(margin > largest)) continue;
      largest = margin;
      trace.row = static_cast<std::int32_t>(i);
      trace.local_max = l;
      trace.running_max = g;
    }
    trace.margin_log2 = static_cast<float>(largest);
    // A row far on the keeping side makes other rows' ties harmless, unless groups decide alone.
    if (skip_.zeroing_rows == 0)
      trace.near_tie =
          std::abs(largest) <= tie_width(in_.lambda, in_.scale, trace.local_max, trace.running_max);
    if (all) {
      trace.decision = Decision::kSkipped;
    } else if (skip_.zeroing_rows != 0) {
      for (std::size_t g = 0; g * static_cast<std::size_t>(group) < rows(); ++g)
        trace.zeroed.set(g, may_zero.test(g));
      if (trace.zeroed.any()) trace.decision = Decision::kPartlyZeroed;
    }
    return trace;
  }

  F32 new_maximum(F32 local, F32 old) const {
    const F32 larger = numerics::max_of(local, old, soft_.max_nan);
    if (skip_.lazy_log2 <= 0 || old.bits == skip_.initial_max.bits) return larger;
    const Fp fp{soft_.flush};
    const F32 rise = fp.mul(fp.sub(larger, old), in_.scale.exponent);
    return not_above(rise, numerics::from_float(skip_.lazy_log2)) ? old : larger;
  }

  // P of one row, its sum, and the correction of what it had (SPEC ATT-5.2).
  void soft_row(std::size_t i, bool zeroed, Piece& piece) {
    RowState& state = piece.rows[i];
    const std::span<F32> s = score_row(i);
    const bool first = !piece.started;
    if (zeroed) {
      std::fill(s.begin(), s.end(), F32{0});
      corrections_[i] = kOne;
      add_to_sums(soft_, s, kOne, first, state);
      return;
    }
    const F32 c = in_.scale.exponent;
    const F32 max = first && skip_.initial_max.bits == kMinusInfinity.bits
                        ? local_[i]
                        : new_maximum(local_[i], state.max);
    const bool guarded = guards_empty_rows();
    const F32 scaled = scaled_maximum(soft_, max, c, skip_.fill, guarded);
    const bool empty = guarded && max.bits == skip_.fill.bits;
    exponentials(soft_, s, empty ? F32{0} : max, scaled, c, s);
    corrections_[i] = correction_of(soft_, state.max, max, c, skip_.fill, guarded);
    add_to_sums(soft_, s, corrections_[i], first, state);
    state.max = max;
    if (soft_.p_multiplier.bits == kOne.bits) return;
    const Fp fp{soft_.flush};
    for (F32& x : s) x = fp.mul(x, soft_.p_multiplier);
  }

  void narrow_p() {
    const std::span<const F32> from(scores_);
    if constexpr (sizeof(T) == 1) {
      numerics::narrow_row(from, {reinterpret_cast<E4m3*>(p_bits_.data()), p_bits_.size()});
    } else if (p_.dtype == Dtype::kF16) {
      numerics::narrow_row(from, {reinterpret_cast<F16*>(p_bits_.data()), p_bits_.size()});
    } else {
      numerics::narrow_row(from, {reinterpret_cast<Bf16*>(p_bits_.data()), p_bits_.size()});
    }
  }

  void gather_values(std::int32_t tile_index) {
    std::vector<T> value(v_dim());
    for (int j = 0; j < kv_tile_; ++j) {
      const std::int32_t key = tile_index * kv_tile_ + j;
      if (key_exists(key))
        copy_value(p_, r_, plan_.kv_head(), key, reinterpret_cast<std::byte*>(value.data()));
      else
        std::fill(value.begin(), value.end(), T{0});
      for (std::size_t d = 0; d < v_dim(); ++d)
        v_t_[d * tile() + static_cast<std::size_t>(j)] = value[d];
    }
  }

  // O = O * correction + P V, by the chain over the tile's keys, or with the product apart.
  void accumulate(Piece& piece) {
    numerics::MmaProblem<T> mma;
    mma.m = static_cast<int>(rows());
    mma.n = p_.v_dim;
    mma.k = kv_tile_;
    mma.a = p_bits_.data();
    mma.b = v_t_.data();
    const bool apart = soft_.promote && piece.started;
    if (apart) product_.resize(piece.o.size());
    mma.d = apart ? product_.data() : piece.o.data();
    if (piece.started && !apart) {
      correct(piece);
      mma.c = piece.o.data();
    }
    const Status done = numerics::mma(*in_.resolved.pv, mma);
    CONTRACT(done.has_value(), done ? "" : done.error().sentence);
    if (!apart) return;
    const Fp fp{soft_.flush};
    for (std::size_t i = 0; i < piece.o.size(); ++i)
      piece.o[i] = fp.fma(piece.o[i], corrections_[i / v_dim()], product_[i]);
  }

  void correct(Piece& piece) {
    for (std::size_t i = 0; i < rows(); ++i) {
      // A product with 1 changes nothing but what flushing would; the instruction's NaN is
      // canonical.
      if (corrections_[i].bits == kOne.bits && !soft_.correction_flushes) continue;
      for (std::size_t d = 0; d < v_dim(); ++d) {
        F32& o = piece.o[i * v_dim() + d];
        o = numerics::mul_rn(o, corrections_[i], soft_.correction_flushes);
      }
    }
  }

  Piece run_segment(const Segment& segment) {
    Piece piece;
    piece.rows.resize(rows());
    for (RowState& row : piece.rows) row.max = skip_.initial_max;
    piece.o.resize(rows() * v_dim());
    const int count = (segment.end - segment.begin + segment.step - 1) / segment.step;
    for (int n = 0; n < count; ++n) {
      const int at = skip_.backward ? count - 1 - n : n;
      const std::int32_t tile_index = segment.begin + at * segment.step;
      compute_scores(tile_index);
      const bool asked = in_.lambda.enabled && n >= skip_.kept_first;
      const TileTrace trace = vote(tile_index, piece, asked);
      result_.tiles.push_back(trace);
      if (trace.decision == Decision::kSkipped) {
        if (skip_.max_on_skip == MaxOnSkip::kRaise)
          for (std::size_t i = 0; i < rows(); ++i)
            piece.rows[i].max = new_maximum(local_[i], piece.rows[i].max);
        continue;
      }
      for (std::size_t i = 0; i < rows(); ++i) {
        const bool zeroed = trace.decision == Decision::kPartlyZeroed &&
                            trace.zeroed.test(i / static_cast<std::size_t>(skip_.zeroing_rows));
        soft_row(i, zeroed, piece);
      }
      narrow_p();
      gather_values(tile_index);
      accumulate(piece);
      piece.started = true;
    }
    return piece;
  }

  UnitInput in_;
  const Problem& p_;
  const Request& r_;
  const SkipRule& skip_;
  const Softmax& soft_;
  int kv_tile_;
  UnitPlan plan_;
  const std::vector<UnitPlan::Row>& rows_;
  std::vector<T> q_, k_, v_t_, p_bits_;
  std::vector<F32> scores_, local_, corrections_, product_;
  UnitResult result_;
};

}  // namespace assay::attention
