// When a row agrees to skip a tile: the threshold of a request, the comparison of two maxima, and
// how near the decision was. Decides SPEC ATT-4.3 and ATT-4.6. Not decided here: which rows must
// agree (unit_run.hpp). What a row does compiles for host and device; thresholds are the host's.
#pragma once

#include <cmath>
#include <limits>

#include "model/attention/profile.hpp"
#include "model/core/platform.hpp"
#include "model/numerics/add.hpp"
#include "model/numerics/special/fast_math.hpp"

namespace assay::attention {

inline constexpr F32 kOne{0x3F800000u};
inline constexpr F32 kMinusInfinity{0xFF800000u};
inline constexpr F32 kLowest{0xFF7FFFFFu};  // -FLT_MAX
inline constexpr F32 kLog2E{0x3FB8AA3Bu};
inline constexpr F32 kLn2{0x3F317218u};

// f32 operations with one flush setting.
struct Fp {
  bool flush;
  ASSAY_HD F32 add(F32 a, F32 b) const { return numerics::add_rn(a, b, flush); }
  ASSAY_HD F32 sub(F32 a, F32 b) const { return add(a, F32{b.bits ^ 0x80000000u}); }
  ASSAY_HD F32 mul(F32 a, F32 b) const { return numerics::mul_rn(a, b, flush); }
  ASSAY_HD F32 fma(F32 a, F32 b, F32 c) const { return numerics::fma_rn(a, b, c, flush); }
};
ASSAY_HD inline F32 negated(F32 x) { return F32{x.bits ^ 0x80000000u}; }
ASSAY_HD inline bool below(F32 a, F32 b) { return numerics::to_float(a) < numerics::to_float(b); }
ASSAY_HD inline bool not_above(F32 a, F32 b) {
  return numerics::to_float(a) <= numerics::to_float(b);
}
ASSAY_HD inline double as_double(F32 x) { return static_cast<double>(numerics::to_float(x)); }
ASSAY_HD inline double absolute(double x) { return x < 0 ? -x : x; }

// The scale of a problem as kernels hold it: f32 products from left to right (SPEC ATT-5.1).
struct Scale {
  F32 natural;   // scale * q_scale * k_scale, divided by the softcap if there is one
  F32 log2;      // times log2(e)
  F32 exponent;  // c of ExpForm: by the unit of scores
  ScoreUnit unit;
  double unit_log2;  // one unit of the maxima's difference in log2 units, for margins
};
inline Scale scale_of(const Problem& problem, const Softmax& softmax) {
  const Fp host{false};
  Scale s;
  s.natural =
      host.mul(host.mul(numerics::from_float(problem.scale), numerics::from_float(problem.q_scale)),
               numerics::from_float(problem.k_scale));
  s.log2 = host.mul(s.natural, kLog2E);
  if (problem.softcap > 0)
    s.natural = numerics::div_rn(s.natural, numerics::from_float(problem.softcap), false);
  s.exponent = softmax.unit == ScoreUnit::kRaw       ? s.log2
               : softmax.unit == ScoreUnit::kNatural ? kLog2E
                                                     : kOne;
  s.unit = softmax.unit;
  s.unit_log2 = as_double(s.exponent);
  return s;
}

// The threshold of one request, in every form that a comparison needs.
struct Lambda {
  bool enabled = false;
  F32 lambda{0};
  F32 logarithm{kMinusInfinity};  // ln or log2, as the comparison has it
  F32 raw{kMinusInfinity};        // log2(lambda) / scale_log2
  double log2_exact = 0;          // of the f32 lambda, for margins
};

ASSAY_HD inline F32 rounded(double x) { return numerics::from_float(static_cast<float>(x)); }

// `length` is what the rule divides by. A length of 0 divides to Inf or NaN; NaN never skips
// (SPEC ATT-4.6).
inline Lambda lambda_of(const SkipRule& rule, const Threshold& threshold, std::int32_t length,
                        const Scale& scale, bool flush) {
  Lambda out;
  if (threshold.kind == Threshold::Kind::kOff) return out;
  out.enabled = true;
  out.lambda = numerics::from_float(threshold.value);
  if (threshold.kind == Threshold::Kind::kScaleFactor &&
      rule.lambda_length != LambdaLength::kNone) {
    const F32 divisor = numerics::from_float(static_cast<float>(length));
    out.lambda = rule.quotient == Quotient::kApprox ? numerics::div_approx_ftz(out.lambda, divisor)
                                                    : numerics::div_rn(out.lambda, divisor, flush);
  }
  if (!below(out.lambda, kOne) && !numerics::is_nan(out.lambda)) {
    const bool is_one = out.lambda.bits == kOne.bits;
    if (rule.above_one == LambdaAboveOne::kDense && !is_one) out.enabled = false;
    if (rule.above_one == LambdaAboveOne::kClamp) out.lambda = kOne;
  }
  const double exact = std::log2(as_double(out.lambda));
  out.log2_exact = exact;
  const bool natural = scale.unit == ScoreUnit::kNatural;
  if (rule.logarithm == Logarithm::kApprox) {
    const F32 log2 = numerics::lg2_approx_ftz(out.lambda);
    out.logarithm = natural ? numerics::mul_rn(log2, kLn2, true) : log2;
  } else {
    out.logarithm = rounded(natural ? std::log(as_double(out.lambda)) : exact);
  }
  out.raw = numerics::mul_rn(out.logarithm, numerics::div_rn(kOne, scale.log2, false), false);
  return out;
}

// Whether a row with tile maximum l and reference g may skip (SPEC ATT-4.3).
ASSAY_HD inline bool row_may_skip(const SkipRule& rule, const Lambda& lambda, const Scale& scale,
                                  F32 l, F32 g, bool flush) {
  const Fp fp{flush};
  const auto compare = [&](F32 a, F32 b) { return rule.strict ? below(a, b) : not_above(a, b); };
  switch (rule.compare) {
    case Compare::kExp2:
      return compare(numerics::ex2_approx_ftz(fp.mul(fp.sub(l, g), scale.log2)), lambda.lambda);
    case Compare::kExp:
      return compare(numerics::ex2_approx_ftz(fp.mul(fp.sub(l, g), kLog2E)), lambda.lambda);
    case Compare::kDifference:
      return compare(fp.sub(l, g), lambda.logarithm);
    case Compare::kScaledLog2:
      return compare(fp.sub(fp.mul(l, scale.log2), fp.mul(g, scale.log2)), lambda.logarithm);
    case Compare::kAddedLog2:
      return compare(l, fp.add(g, lambda.logarithm));
    case Compare::kAddedRaw: {
      // A row that sees nothing of the tile has l = -inf, and always agrees.
      return compare(l, numerics::max_of(fp.add(g, lambda.raw), kLowest));
    }
  }
  return false;
}

// log2(exp((l - g) * scale) / lambda): negative where the row agrees to skip, +Inf where it can
// never agree. Real numbers, for reports; the same bits on host and device, IEEE 754's.
ASSAY_HD inline double row_margin(const Lambda& lambda, const Scale& scale, F32 l, F32 g) {
  const double difference = as_double(l) - as_double(g);
  if (difference != difference) {
    const double infinity = as_double(F32{0x7F800000u});
    return l.bits == kMinusInfinity.bits ? -infinity : infinity;
  }
  return difference * scale.unit_log2 - lambda.log2_exact;
}

// How large a margin roundings could turn: a few ulp of the terms in the comparison. A decision
// within it is a near-tie (SPEC ATT-5.6).
ASSAY_HD inline double tie_width(const Lambda& lambda, const Scale& scale, F32 l, F32 g) {
  const double of_l = absolute(as_double(l)), of_g = absolute(as_double(g));
  const double largest = of_l < of_g ? of_g : of_l;
  if (!(largest < 1e30)) return 0;
  // lambda of 0 or Inf: every margin is infinite, and nothing is near it.
  if (!(absolute(lambda.log2_exact) < 1e30)) return 0;
  return 0x1p-21 * (largest * scale.unit_log2 + absolute(lambda.log2_exact) + 1);
}

}  // namespace assay::attention
