// What happens to one row of a kept tile between its scores and P, and to its running sum: scalar
// functions, each with one rounding per operation. Decides SPEC ATT-5.2 and ATT-5.3. Not decided
// here: which tiles are kept (vote.hpp, emulate.cpp).
#pragma once

#include <array>
#include <span>

#include "model/attention/profile.hpp"
#include "model/attention/rows_simd.hpp"
#include "model/attention/vote.hpp"
#include "model/core/contract.hpp"
#include "model/numerics/special/special.hpp"

namespace assay::attention {

// What a row carries from tile to tile. `lanes` are the partial sums of the threads that share the
// row: one, a quad, or 4 warps of 8.
struct RowState {
  F32 max{0xFF800000u};
  std::array<F32, 32> lanes{};
};

// The maximum as the exponent uses it: m * c less p_log2, or 0 where the row has seen nothing and
// the profile guards against it (SPEC ATT-5.2).
inline F32 scaled_maximum(const Softmax& rule, F32 max, F32 c, F32 fill, bool guarded) {
  const Fp fp{rule.flush};
  if (guarded && max.bits == fill.bits) return F32{0};
  if (rule.unit == ScoreUnit::kLog2) return max;
  const F32 offset = numerics::from_float(-static_cast<float>(rule.p_log2));
  if (rule.p_log2_fused) return fp.fma(max, c, offset);
  const F32 product = fp.mul(max, c);
  return rule.p_log2 == 0 ? product : fp.add(product, offset);
}

// P before its multiplier: ex2 of the form's argument. p may be the scores.
inline void exponentials(const Softmax& rule, std::span<const F32> scores, F32 max, F32 scaled_max,
                         F32 c, std::span<F32> p) {
  switch (rule.exp) {
    case ExpForm::kFmaRz:
      exponent_arguments(ArgumentForm::kRz, scores, c, negated(scaled_max), rule.flush, p);
      break;
    case ExpForm::kFmaRn:
      exponent_arguments(ArgumentForm::kRn, scores, c, negated(scaled_max), rule.flush, p);
      break;
    case ExpForm::kSubtractMultiply:
      exponent_arguments(ArgumentForm::kSubtractMultiply, scores, c, negated(max), rule.flush, p);
      break;
  }
  numerics::mufu(numerics::Mufu::kEx2, p, p);
}

// ex2 of how far the maximum rose. Where -inf stands for "nothing yet", a row that had nothing
// gives 0, and so does one that still has nothing: its new maximum counts as 0.
inline F32 correction_of(const Softmax& rule, F32 old_max, F32 new_max, F32 c, F32 fill,
                         bool guarded) {
  const Fp fp{rule.flush};
  if (rule.correction == CorrectionForm::kScaledDifference) {
    return numerics::ex2_approx_ftz(fp.sub(scaled_maximum(rule, old_max, c, fill, false),
                                           scaled_maximum(rule, new_max, c, fill, guarded)));
  }
  if (guarded && new_max.bits == kMinusInfinity.bits) new_max = F32{0};
  return numerics::ex2_approx_ftz(fp.mul(fp.sub(old_max, new_max), c));
}

namespace sum_detail {

inline float f(F32 x) { return numerics::to_float(x); }

// Sums of P need neither flushing (P is normal or zero) nor NaN repair before the end: a NaN stays
// one. `ours` gives the column of element e of thread q.
inline constexpr int quad_column(int q, int e) { return e / 2 * 8 + 2 * q + e % 2; }

inline F32 quad(const std::array<float, 4>& t) {
  return numerics::from_float((t[0] + t[1]) + (t[2] + t[3]));
}

// Lanes xor 16, 8, 4 of a warp whose thread r of 8 holds `at(r)`.
template <class At>
float warp(const At& at) {
  const float a = at(0) + at(4), b = at(2) + at(6), c = at(1) + at(5), d = at(3) + at(7);
  return (a + b) + (c + d);
}

inline F32 joined(const Softmax& rule, F32 old, F32 correction, F32 tile) {
  const Fp fp{rule.flush};
  return rule.join == SumJoin::kFma ? fp.fma(old, correction, tile)
                                    : fp.add(fp.mul(old, correction), tile);
}

}  // namespace sum_detail

// Adds a tile's P to a row's sums; `first` is the row's first kept tile (SPEC ATT-5.3).
inline void add_to_sums(const Softmax& rule, std::span<const F32> p, F32 correction, bool first,
                        RowState& row) {
  using namespace sum_detail;
  const int n = static_cast<int>(p.size());
  const int elements = n / 4;
  const auto at = [&](int i) { return f(p[static_cast<std::size_t>(i)]); };
  std::array<float, 4> t{};
  const auto join_first_lane = [&](F32 tile) {
    row.lanes[0] = first ? tile : joined(rule, row.lanes[0], correction, tile);
  };
  switch (rule.tree) {
    case SumTree::kQuadSequential:
      for (int q = 0; q < 4; ++q) t[static_cast<std::size_t>(q)] = at(2 * q);
      for (int e = 1; e < elements; ++e)
        for (int q = 0; q < 4; ++q) t[static_cast<std::size_t>(q)] += at(quad_column(q, e));
      return join_first_lane(quad(t));
    case SumTree::kQuadFourWay:
      for (int q = 0; q < 4; ++q) {
        std::array<float, 4> part{};
        for (int e = 0; e < elements; ++e)
          part[static_cast<std::size_t>(e % 4)] += at(quad_column(q, e));
        t[static_cast<std::size_t>(q)] = (part[0] + part[1]) + (part[2] + part[3]);
      }
      return join_first_lane(quad(t));
    case SumTree::kThreadRunning:
      for (int q = 0; q < 4; ++q) {
        F32& lane = row.lanes[static_cast<std::size_t>(q)];
        const F32 head = p[static_cast<std::size_t>(quad_column(q, 0))];
        float sum = f(first ? head : joined(rule, lane, correction, head));
        for (int e = 1; e < elements; ++e) sum += at(quad_column(q, e));
        lane = numerics::from_float(sum);
      }
      return;
    case SumTree::kThreadEvenOdd:
      for (int q = 0; q < 4; ++q) {
        float even = at(2 * q), odd = at(2 * q + 1);
        for (int i = 8; i < n; i += 8) {
          even += at(i + 2 * q);
          odd += at(i + 2 * q + 1);
        }
        F32& lane = row.lanes[static_cast<std::size_t>(q)];
        const F32 tile = numerics::from_float(even + odd);
        lane = first ? tile : joined(rule, lane, correction, tile);
      }
      return;
    case SumTree::kTokensWarps:
    case SumTree::kTokensRunning:
      break;
  }
  CONTRACT(n % 64 == 0, n);
  // Thread (w, r) owns keys 16 w + r and 16 w + r + 8 of every 64.
  const auto thread = [&](int w, int r) {
    float sum = at(16 * w + r) + at(16 * w + r + 8);
    for (int m = 64; m < n; m += 64) {
      sum += at(m + 16 * w + r);
      sum += at(m + 16 * w + r + 8);
    }
    return sum;
  };
  if (rule.tree == SumTree::kTokensRunning) {
    for (int w = 0; w < 4; ++w) {
      for (int r = 0; r < 8; ++r) {
        F32& lane = row.lanes[static_cast<std::size_t>(8 * w + r)];
        const F32 tile = numerics::from_float(thread(w, r));
        lane = first ? tile : joined(rule, lane, correction, tile);
      }
    }
    return;
  }
  // The running sum starts from 0 and is rescaled first; then the warps' sums follow.
  F32 sum = first ? F32{0} : Fp{rule.flush}.mul(row.lanes[0], correction);
  for (int w = 0; w < 4; ++w)
    sum = numerics::from_float(f(sum) + warp([&](int r) { return thread(w, r); }));
  row.lanes[0] = sum;
}

// The row's sum out of its lanes.
inline F32 sum_of(const Softmax& rule, const RowState& row) {
  using namespace sum_detail;
  F32 sum = row.lanes[0];
  if (rule.tree == SumTree::kThreadRunning || rule.tree == SumTree::kThreadEvenOdd)
    sum = quad({f(row.lanes[0]), f(row.lanes[1]), f(row.lanes[2]), f(row.lanes[3])});
  if (rule.tree == SumTree::kTokensRunning) {
    std::array<float, 4> warps{};
    for (std::size_t w = 0; w < 4; ++w) {
      warps[w] = warp([&](int r) { return f(row.lanes[8 * w + static_cast<std::size_t>(r)]); });
    }
    sum = quad(warps);
  }
  return numerics::is_nan(sum) ? numerics::canonical_nan<F32>() : sum;
}

}  // namespace assay::attention
