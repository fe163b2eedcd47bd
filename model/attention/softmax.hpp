// What happens to one row of a kept tile between its scores and P, and to its running sum: scalar
// functions, each with one rounding per operation. Decides SPEC ATT-5.2 and ATT-5.3. Not decided
// here: which tiles are kept (vote.hpp, unit_run.hpp). Compiles for host and device.
#pragma once

#include "model/attention/profile.hpp"
#include "model/attention/rows_simd.hpp"
#include "model/attention/vote.hpp"
#include "model/core/platform.hpp"
#include "model/numerics/special/mufu.hpp"

namespace assay::attention {

// What a row carries from tile to tile. `lanes` are the partial sums of the threads that share the
// row: one, a quad, or 4 warps of 8.
struct RowState {
  F32 max{0xFF800000u};  // that sums and outputs refer to: of the tiles that were kept
  // That votes compare with; above `max` where skipped tiles have raised it (SPEC ATT-4.7).
  F32 running_max{0xFF800000u};
  F32 lanes[32] = {};
};

// The running maximum after a tile whose maximum is `local`; a lazy one stays until the rise is
// more than the profile lets it miss (SPEC ATT-5.2).
ASSAY_HD inline F32 new_maximum(const SkipRule& skip, const Softmax& soft, const Scale& scale,
                                F32 local, F32 old) {
  const F32 larger = numerics::max_of(local, old, soft.max_nan);
  if (skip.lazy_log2 <= 0 || old.bits == skip.initial_max.bits) return larger;
  const Fp fp{soft.flush};
  const F32 rise = fp.mul(fp.sub(larger, old), scale.exponent);
  return not_above(rise, numerics::from_float(skip.lazy_log2)) ? old : larger;
}

// The maximum as the exponent uses it: m * c less p_log2, or 0 where the row has seen nothing and
// the profile guards against it (SPEC ATT-5.2).
ASSAY_HD inline F32 scaled_maximum(const Softmax& rule, F32 max, F32 c, F32 fill, bool guarded) {
  const Fp fp{rule.flush};
  if (guarded && max.bits == fill.bits) return F32{0};
  if (rule.unit == ScoreUnit::kLog2) return max;
  const F32 offset = numerics::from_float(-static_cast<float>(rule.p_log2));
  if (rule.p_log2_fused) return fp.fma(max, c, offset);
  const F32 product = fp.mul(max, c);
  return rule.p_log2 == 0 ? product : fp.add(product, offset);
}

// The argument of P's exponential, s being a score: form(s, factor, addend), as rows_simd.hpp has
// them.
struct Argument {
  ArgumentForm form = ArgumentForm::kRn;
  F32 factor{0};
  F32 addend{0};
};
ASSAY_HD inline Argument argument_of(const Softmax& rule, F32 max, F32 scaled_max, F32 c) {
  switch (rule.exp) {
    case ExpForm::kFmaRz:
      return {ArgumentForm::kRz, c, negated(scaled_max)};
    case ExpForm::kFmaRn:
      return {ArgumentForm::kRn, c, negated(scaled_max)};
    case ExpForm::kSubtractMultiply:
      return {ArgumentForm::kSubtractMultiply, c, negated(max)};
  }
  return {};
}

// P before its multiplier: ex2 of the form's argument, one at a time.
ASSAY_HD inline F32 exponential(const Argument& argument, bool flush, F32 score) {
  using namespace numerics;
  const F32 factor = argument.factor, addend = argument.addend;
  switch (argument.form) {
    case ArgumentForm::kRn:
      return ex2_approx_ftz(fma_rn(score, factor, addend, flush));
    case ArgumentForm::kRz:
      return ex2_approx_ftz(fma_rz(score, factor, addend, flush));
    case ArgumentForm::kSubtractMultiply:
      return ex2_approx_ftz(mul_rn(add_rn(score, addend, flush), factor, flush));
  }
  return canonical_nan<F32>();
}

// ex2 of how far the maximum rose. Where -inf stands for "nothing yet", a row that had nothing
// gives 0, and so does one that still has nothing: its new maximum counts as 0.
ASSAY_HD inline F32 correction_of(const Softmax& rule, F32 old_max, F32 new_max, F32 c, F32 fill,
                                  bool guarded) {
  const Fp fp{rule.flush};
  if (rule.correction == CorrectionForm::kNone) return kOne;
  if (rule.correction == CorrectionForm::kScaledDifference) {
    return numerics::ex2_approx_ftz(fp.sub(scaled_maximum(rule, old_max, c, fill, false),
                                           scaled_maximum(rule, new_max, c, fill, guarded)));
  }
  if (guarded && new_max.bits == kMinusInfinity.bits) new_max = F32{0};
  return numerics::ex2_approx_ftz(fp.mul(fp.sub(old_max, new_max), c));
}

namespace sum_detail {

ASSAY_HD inline float f(F32 x) { return numerics::to_float(x); }
// On the device an addition says its rounding; on the host -ffp-contract=off leaves it alone.
ASSAY_HD inline float plus(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

// Sums of P need neither flushing (P is normal or zero) nor NaN repair before the end: a NaN stays
// one. Thread q of a quad owns the columns 8 i + 2 q and 8 i + 2 q + 1.
ASSAY_HD constexpr int quad_column(int q, int e) { return e / 2 * 8 + 2 * q + e % 2; }

ASSAY_HD inline F32 quad(float a, float b, float c, float d) {
  return numerics::from_float(plus(plus(a, b), plus(c, d)));
}

// Lanes xor 16, 8, 4 of a warp whose thread r of 8 holds `at(r)`.
template <class At>
ASSAY_HD float warp(const At& at) {
  const float a = plus(at(0), at(4)), b = plus(at(2), at(6));
  const float c = plus(at(1), at(5)), d = plus(at(3), at(7));
  return plus(plus(a, b), plus(c, d));
}

ASSAY_HD inline F32 joined(const Softmax& rule, F32 old, F32 correction, F32 tile) {
  const Fp fp{rule.flush};
  return rule.join == SumJoin::kFma ? fp.fma(old, correction, tile)
                                    : fp.add(fp.mul(old, correction), tile);
}

// A quad's thread alone: its columns in order, or in four sums, or evens and odds apart.
ASSAY_HD inline float in_order(const F32* p, int n, int q) {
  float sum = f(p[2 * q]);
  for (int e = 1; e < n / 4; ++e) sum = plus(sum, f(p[quad_column(q, e)]));
  return sum;
}
ASSAY_HD inline float in_four(const F32* p, int n, int q) {
  float a = 0, b = 0, c = 0, d = 0;
  for (int i = 0; i < n; i += 16) {  // four elements; tiles are multiples of 16 keys
    a = plus(a, f(p[i + 2 * q]));
    b = plus(b, f(p[i + 2 * q + 1]));
    c = plus(c, f(p[i + 2 * q + 8]));
    d = plus(d, f(p[i + 2 * q + 9]));
  }
  return plus(plus(a, b), plus(c, d));
}
ASSAY_HD inline float evens_and_odds(const F32* p, int n, int q) {
  float even = f(p[2 * q]), odd = f(p[2 * q + 1]);
  for (int i = 8; i < n; i += 8) {
    even = plus(even, f(p[i + 2 * q]));
    odd = plus(odd, f(p[i + 2 * q + 1]));
  }
  return plus(even, odd);
}

// Keys as rows: thread (w, r) owns keys 16 w + r and 16 w + r + 8 of every 64.
ASSAY_HD inline float token_thread(const F32* p, int n, int w, int r) {
  float sum = plus(f(p[16 * w + r]), f(p[16 * w + r + 8]));
  for (int m = 64; m < n; m += 64) {
    sum = plus(sum, f(p[m + 16 * w + r]));
    sum = plus(sum, f(p[m + 16 * w + r + 8]));
  }
  return sum;
}

}  // namespace sum_detail

// Adds a tile's P, `n` keys, to a row's sums; `first` is the row's first kept tile (SPEC ATT-5.3).
// n is a multiple of 16, and of 64 where keys are rows.
ASSAY_HD inline void add_to_sums(const Softmax& rule, const F32* p, int n, F32 correction,
                                 bool first, RowState& row) {
  using namespace sum_detail;
  const auto join_lane = [&](int lane, F32 tile) {
    row.lanes[lane] = first ? tile : joined(rule, row.lanes[lane], correction, tile);
  };
  switch (rule.tree) {
    case SumTree::kQuadSequential:
      return join_lane(
          0, quad(in_order(p, n, 0), in_order(p, n, 1), in_order(p, n, 2), in_order(p, n, 3)));
    case SumTree::kQuadFourWay:
      return join_lane(
          0, quad(in_four(p, n, 0), in_four(p, n, 1), in_four(p, n, 2), in_four(p, n, 3)));
    case SumTree::kThreadRunning:
      for (int q = 0; q < 4; ++q) {
        join_lane(q, p[2 * q]);
        float sum = f(row.lanes[q]);
        for (int e = 1; e < n / 4; ++e) sum = plus(sum, f(p[quad_column(q, e)]));
        row.lanes[q] = numerics::from_float(sum);
      }
      return;
    case SumTree::kThreadEvenOdd:
      for (int q = 0; q < 4; ++q) join_lane(q, numerics::from_float(evens_and_odds(p, n, q)));
      return;
    case SumTree::kTokensRunning:
      for (int t = 0; t < 32; ++t)
        join_lane(t, numerics::from_float(token_thread(p, n, t / 8, t % 8)));
      return;
    case SumTree::kTokensWarps: {
      // The running sum starts from 0 and is rescaled first; then the warps' sums follow.
      F32 sum = first ? F32{0} : Fp{rule.flush}.mul(row.lanes[0], correction);
      for (int w = 0; w < 4; ++w) {
        const float part = warp([&](int r) { return token_thread(p, n, w, r); });
        sum = numerics::from_float(plus(f(sum), part));
      }
      row.lanes[0] = sum;
      return;
    }
  }
}

// The row's sum out of its lanes.
ASSAY_HD inline F32 sum_of(const Softmax& rule, const RowState& row) {
  using namespace sum_detail;
  const F32* const lanes = row.lanes;
  F32 sum = lanes[0];
  if (rule.tree == SumTree::kThreadRunning || rule.tree == SumTree::kThreadEvenOdd)
    sum = quad(f(lanes[0]), f(lanes[1]), f(lanes[2]), f(lanes[3]));
  if (rule.tree == SumTree::kTokensRunning) {
    const auto of_warp = [&](int w) { return warp([&](int r) { return f(lanes[8 * w + r]); }); };
    sum = quad(of_warp(0), of_warp(1), of_warp(2), of_warp(3));
  }
  return numerics::is_nan(sum) ? numerics::canonical_nan<F32>() : sum;
}

}  // namespace assay::attention
