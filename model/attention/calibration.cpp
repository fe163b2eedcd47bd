// Sweep, fit, run again. Decides SPEC ATT-8.3, ATT-8.5 and ATT-8.6.
#include "model/attention/calibration.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "model/attention/parallel.hpp"

namespace assay::attention {
namespace {

// Half-octaves of lambda: from 1e-6, which is Model Optimizer's lowest trial, to 128, enough for
// its factor of 18471 down to 144 keys. Above 1 only where the profile computes with it.
constexpr int kLowest = -40, kHighest = 14;
// Which sparsities a curve goes through; Model Optimizer's own choice.
constexpr double kFitLow = 0.1, kFitHigh = 0.9;
// Any two points lie on some curve of two numbers.
constexpr std::size_t kSparsitiesMin = 3;

std::vector<double> lambdas_of(const SkipRule& rule) {
  std::vector<double> out;
  const int end = rule.above_one == LambdaAboveOne::kAllow ? kHighest : -1;
  for (int i = kLowest; i <= end; ++i) out.push_back(std::exp2(i / 2.0));
  return out;
}

struct Scored {
  const Sample* sample;
  DecisionReplay replay;

  TileCounts count(double factor) const {
    return replay.count({Threshold::Kind::kScaleFactor, static_cast<float>(factor)});
  }
};

PhaseCalibration::SampleSummary summary_of(const Scored& scored) {
  PhaseCalibration::SampleSummary out;
  out.name = scored.sample->name;
  out.kv_len = scored.sample->kv_len;
  out.calls = scored.sample->problem.requests.size();
  for (const Request& r : scored.sample->problem.requests) out.rows += r.q_len;
  out.dense = scored.replay.count({Threshold::Kind::kLambda, 0});
  return out;
}

// Once a sample skips all that it can, ever larger factors go with one sparsity and would bend the
// curve: of such points only the first is kept. (Tiles that are never skipped, the first ones, hold
// a short sample far below 90 %.)
void leave_out_saturated(std::vector<SweepPoint>& points, std::size_t lambdas) {
  for (std::size_t first = 0; first < points.size(); first += lambdas) {
    std::int64_t most = 0;
    for (std::size_t i = 0; i < lambdas; ++i)
      most = std::max(most, points[first + i].counts.skipped);
    for (std::size_t i = lambdas - 1; i > 0; --i)
      if (points[first + i].counts.skipped == most && points[first + i - 1].counts.skipped == most)
        points[first + i].fitted = false;
  }
}

std::vector<SweepPoint> sweep(const std::vector<Scored>& scored, const SkipRule& rule,
                              int threads) {
  const std::vector<double> lambdas = lambdas_of(rule);
  std::vector<SweepPoint> points(scored.size() * lambdas.size());
  parallel_for(static_cast<std::int64_t>(points.size()), threads, [&](std::int64_t at, int) {
    const auto i = static_cast<std::size_t>(at);
    SweepPoint& p = points[i];
    p.sample = i / lambdas.size();
    p.lambda = lambdas[i % lambdas.size()];
    p.factor = p.lambda * scored[p.sample].sample->kv_len;
    p.counts = scored[p.sample].count(p.factor);
    const double s = p.counts.of_visited();
    // Hidden tiles are skipped at any threshold: where nothing else is, they say nothing about it.
    p.fitted = p.counts.skipped > p.counts.hidden && s >= kFitLow && s <= kFitHigh;
  });
  leave_out_saturated(points, lambdas.size());
  return points;
}

// Empty if the points say something (SPEC ATT-8.10).
std::string vacuity(const std::vector<SweepPoint>& points) {
  bool some_skipped = false, some_kept = false;
  for (const SweepPoint& p : points) {
    some_skipped |= p.counts.skipped > p.counts.hidden;
    some_kept |= p.counts.skipped < p.counts.asked;
  }
  if (!some_skipped) return "no tile was skipped at any threshold";
  if (!some_kept) return "every tile that was asked about was skipped at every threshold";
  std::set<double> sparsities;
  for (const SweepPoint& p : points)
    if (p.fitted) sparsities.insert(p.counts.of_visited());
  if (sparsities.size() >= kSparsitiesMin) return "";
  return fmt::format(
      "of different sparsities from 10 to 90 % there are {}; {} and more show whether they lie on "
      "a "
      "curve, which has two numbers",
      sparsities.size(), kSparsitiesMin);
}

// Empty if the factor does what it is for: on a step of two sparsities, say, no curve is of use.
std::string missed(const CalibrationTarget& t) {
  if (t.achieved.skipped > t.achieved.hidden && std::abs(t.error) <= t.sparsity / 2) return "";
  return fmt::format(
      "the factor for a sparsity of {} is {:.6g}, and run again it skips {:.3g} of the tiles: more "
      "than half of what was asked for is missing, or too much",
      t.sparsity, t.factor, t.achieved.of_visited());
}

CalibrationTarget run_again(const std::vector<Scored>& scored, const PhaseCalibration& so_far,
                            double sparsity) {
  CalibrationTarget t;
  t.sparsity = sparsity;
  t.factor = so_far.exponential->factor(sparsity);
  for (const Scored& s : scored) {
    const TileCounts counts = s.count(t.factor);
    const double error = counts.of_visited() - sparsity;
    if (std::abs(error) > std::abs(t.worst_error)) t.worst_error = error;
    t.achieved += counts;
    t.above_one_here |= t.factor >= s.sample->kv_len;
  }
  t.error = t.achieved.of_visited() - sparsity;
  double lowest = 1, highest = 0;
  for (const SweepPoint& p : so_far.points) {
    if (!p.fitted) continue;
    lowest = std::min(lowest, p.counts.of_visited());
    highest = std::max(highest, p.counts.of_visited());
  }
  t.extrapolated = sparsity < lowest || sparsity > highest;
  t.kv_len_at_one = static_cast<std::int64_t>(std::min(std::floor(t.factor), 1e18));
  return t;
}

}  // namespace

std::string above_one_sentence(const SkipRule& rule) {
  switch (rule.above_one) {
    case LambdaAboveOne::kDense:
      return "above 1 nothing is skipped";
    case LambdaAboveOne::kClamp:
      return "lambda counts as 1: a tile that holds a row's maximum is never skipped";
    case LambdaAboveOne::kAllow:
      break;
  }
  if (rule.reference == Reference::kInclusive)
    return rule.kept_first == 0
               ? "above 1 every tile is skipped, the first too: the output is 0 / 0"
               : "above 1 every tile that is asked about is skipped";
  const std::string first =
      rule.kept_first > 0 ? "" : "; the first visited tile is kept by its comparison";
  return (rule.max_on_skip == MaxOnSkip::kRaise
              ? "tiles that hold a row's maximum are skipped too, and raise the running maximum"
              : "tiles that hold a row's maximum are skipped too, and the running maximum stays") +
         first;
}

Expected<PhaseCalibration> calibrate(const Profile& profile, Phase phase, const Samples& samples,
                                     const CalibrationOptions& options) {
  PhaseCalibration out;
  out.phase = phase;
  out.profile = std::string(profile.name);
  out.above_one = above_one_sentence(profile.skip);
  std::vector<Scored> scored;
  for (const Sample& sample : samples.list) {
    if (sample.phase != phase) continue;
    auto replay = DecisionReplay::make(profile, sample.problem, options.threads);
    if (!replay) return replay.error().within(fmt::format("{} {}", sample.name, phase_name(phase)));
    scored.push_back({&sample, *std::move(replay)});
    out.grade = scored.back().replay.emulator().resolved().grade;
    out.samples.push_back(summary_of(scored.back()));
    if (options.on_sample) options.on_sample();
  }
  if (scored.empty())
    return bad_input(fmt::format("the input holds no {} call", phase_name(phase)));
  out.points = sweep(scored, profile.skip, options.threads);
  out.vacuous = vacuity(out.points);
  if (!out.vacuous.empty()) return out;
  std::vector<FitPoint> fitted;
  for (const SweepPoint& p : out.points)
    if (p.fitted) fitted.push_back({p.counts.of_visited(), p.factor});
  ASSAY_TRY(out.exponential, fit_factors(FitForm::kExponential, fitted));
  ASSAY_TRY(out.power, fit_factors(FitForm::kPower, fitted));
  if (!(out.exponential->b > 0)) {
    out.vacuous = fmt::format("the curve falls with sparsity (b is {:.4g})", out.exponential->b);
    return out;
  }
  std::set<double> targets(options.targets.begin(), options.targets.end());
  targets.insert(options.wanted);
  const std::vector<double> sparsities(targets.begin(), targets.end());
  out.targets.resize(sparsities.size());
  parallel_for(static_cast<std::int64_t>(out.targets.size()), options.threads,
               [&](std::int64_t i, int) {
                 const auto at = static_cast<std::size_t>(i);
                 out.targets[at] = run_again(scored, out, sparsities[at]);
               });
  for (const CalibrationTarget& t : out.targets)
    if (t.sparsity == options.wanted) out.vacuous = missed(t);
  return out;
}

}  // namespace assay::attention
