// Properties of thresholds: 0, around 1, above it, no number, by which length; and what a skipped
// tile leaves behind. Decides what each expects of a profile (SPEC VER-23.3).
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "verify/attention/check.hpp"

namespace assay::verify {
namespace {

using namespace check;
using attention::LambdaAboveOne;
using attention::LambdaLength;
using attention::MaxOnSkip;
using attention::Reference;
using attention::Threshold;

BuiltPtr with_threshold(const Trial& t, Threshold threshold) {
  BuiltPtr b = build(t.c());
  for (attention::Request& r : b->problem.requests) r.threshold = threshold;
  return b;
}
Threshold lambda(float value) { return {Threshold::Kind::kLambda, value}; }

// So does one that is far below every gap, also where f32 has no normal number for it.
void check_lambda_zero(Trial& t) {
  const BuiltPtr off = with_threshold(t, {});
  const BuiltPtr half = with_threshold(t, lambda(0.5f));
  t.run(half->problem);  // shows that there is something to skip
  const Trial::Ran* want = t.run(off->problem);
  for (const float value : {0.0f, 1e-40f, 1e-30f}) {
    if (value > 0 && t.c().contrast > 60) continue;  // lower than exp(-60)
    const BuiltPtr b = with_threshold(t, lambda(value));
    const Trial::Ran* ran = t.run(b->problem);
    if (ran == nullptr ||
        !same_rows(t, {*ran, 0}, {*want, 0}, off->q.rows,
                   fmt::format("lambda = {} has other bits than no threshold", value)))
      return;
    for (const std::uint8_t cell : ran->decision().cells)
      if (cell == static_cast<std::uint8_t>(attention::Decision::kSkipped))
        return t.fail(fmt::format("lambda = {} skipped a tile that rows see", value));
  }
}

// So low that ex2 of it is 0.
std::vector<AttentionCase> lambda_zero_cases(const Profile& p) {
  return {usual_case(p), with(usual_case(p), [](AttentionCase& c) { c.contrast = 300; })};
}

// The comparison with a maximum that includes the tile is l - l < log(lambda) for a row's highest
// tile: true for every lambda above 1.
Prediction predict_above_one(const Profile& p) {
  if (p.skip.dense_only) return dense();
  if (p.skip.reference == Reference::kInclusive && p.skip.kept_first == 0 &&
      p.skip.above_one == LambdaAboveOne::kAllow)
    return violated("skip.reference = inclusive, kept_first = 0", "ATT-7.7", [](Profile& o) {
      o.skip.reference = Reference::kExclusive;
      o.skip.kept_first = 1;
    });
  return holds();
}

constexpr float kInf = std::numeric_limits<float>::infinity();

void check_above_one(Trial& t) {
  for (const float value : {1.0f, std::nextafter(1.0f, 2.0f), 1.5f, 20.0f, 1e4f, kInf}) {
    const BuiltPtr b = with_threshold(t, lambda(value));
    fill_v(*b, [](auto...) { return 1.0f; });
    const Trial::Ran* ran = t.run(b->problem);
    if (ran == nullptr || !near_value(
                              t, *ran, [](auto...) { return 1.0; }, 1,
                              fmt::format("lambda = {:.9g}, values are all 1", value)))
      return;
  }
}

Prediction predict_maximum_kept(const Profile& p) {
  if (p.skip.dense_only) return dense();
  if (p.skip.above_one == LambdaAboveOne::kAllow)
    return violated("skip.above_one = allow", "ATT-4.6", [](Profile& o) {
      o.skip.above_one = LambdaAboveOne::kClamp;
      o.skip.strict = true;
    });
  return holds();
}

// Every block is 2 nats above the one before it; the last one is low. A tile that raises maxima
// must not be skipped, whatever lambda is.
void check_maximum_kept(Trial& t) {
  for (const float value : {0.5f, 1.0f, 20.0f, kInf}) {
    const BuiltPtr b = with_threshold(t, lambda(value));
    const std::int32_t block = t.c().block, blocks = t.c().kv[0] / block;
    set_q_column(*b, 0, 4);
    set_k_column(*b, 0, [&](std::size_t, std::int32_t key) {
      const std::int32_t at = key / block;
      return (at == blocks - 1 ? -30 : 2 * static_cast<float>(at)) / 4 / b->problem.scale;
    });
    const Trial::Ran* ran = t.run(b->problem);
    if (ran == nullptr) return;
    const std::int32_t kv_tile = ran->emulator->resolved().tile.kv_tile;
    for (std::int32_t tile = 0; tile * kv_tile < (blocks - 1) * block; ++tile) {
      if (tile * kv_tile % block != 0) continue;  // raises nothing
      const int got = decision_at(*ran, 0, 0, 0, tile);
      if (got != 1)
        return t.fail(fmt::format("lambda = {:.9g}: tile {} holds the maximum so far, and was "
                                  "left out",
                                  value, tile),
                      {{"request", 0}, {"row", 0}, {"head", 0}, {"tile", tile}});
    }
  }
}

std::vector<AttentionCase> climbing_cases(const Profile& p) {
  return {with(usual_case(p), [](AttentionCase& c) { c.kv = {640}; })};
}

Prediction predict_tie(const Profile& p) {
  if (p.skip.dense_only) return dense();
  if (!p.skip.strict)
    return violated("skip.strict = false", "ATT-4.3", [](Profile& o) { o.skip.strict = true; });
  return holds();
}

// Scores are exactly 0 or 30 nats lower. At lambda = 1, and one step below it, a tile that equals
// the maximum is kept and one below it is not.
void check_tie(Trial& t) {
  for (const float value : {std::nextafter(1.0f, 0.0f), 1.0f}) {
    const BuiltPtr b = with_threshold(t, lambda(value));
    for (std::int32_t d = 1; d < b->q.dim; ++d) set_q_column(*b, d, 0);
    const Trial::Ran* ran = t.run(b->problem);
    if (ran == nullptr) return;
    const std::int32_t kv_tile = ran->emulator->resolved().tile.kv_tile;
    for (std::int32_t tile = 0; tile * kv_tile < t.c().kv[0]; ++tile) {
      if (is_low(t.c(), tile, kv_tile) || decision_at(*ran, 0, 0, 0, tile) == 1) continue;
      return t.fail(
          fmt::format("lambda = {:.9g}: tile {} equals the maximum and was left out", value, tile),
          {{"request", 0}, {"row", 0}, {"head", 0}, {"tile", tile}});
    }
  }
}

// The three lengths of a threshold.
Prediction predict_own_length(const Profile& p) {
  if (p.skip.dense_only) return dense();
  if (p.skip.lambda_length != LambdaLength::kRequest)
    return violated(fmt::format("skip.lambda_length = {}",
                                p.skip.lambda_length == LambdaLength::kNone ? "none" : "batch_max"),
                    "ATT-4.6", [](Profile& o) { o.skip.lambda_length = LambdaLength::kRequest; });
  return holds();
}

void check_own_length(Trial& t) {
  if (t.c().threshold.kind != Threshold::Kind::kScaleFactor)
    return t.decline("the case has no factor, which is what lengths divide");
  const BuiltPtr b = build(t.c());
  const BuiltPtr given = build(t.c());
  for (attention::Request& r : given->problem.requests)
    r.threshold =
        r.kv_len == 0 ? Threshold{} : lambda(r.threshold.value / static_cast<float>(r.kv_len));
  const Trial::Ran* ran = t.run(b->problem);
  const Trial::Ran* want = t.run(given->problem);
  if (want != nullptr)
    same_answer(t, *ran, *want, "a factor is not the lambda that it gives by the request's length");
}

std::vector<AttentionCase> own_length_cases(const Profile& p) { return {ragged_case(p, true)}; }

void check_refused(Trial& t) {
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), -1.0f}) {
    const BuiltPtr b = with_threshold(t, lambda(value));
    if (!t.refuses(b->problem)) return t.fail(fmt::format("a threshold of {} was served", value));
  }
}

// Below 1, skipped tiles raise nothing; above it, those that do so change later decisions.
Prediction predict_forgets(const Profile& p) {
  if (p.skip.dense_only) return dense();
  if (p.skip.max_on_skip == MaxOnSkip::kRaise && p.skip.above_one == LambdaAboveOne::kAllow &&
      p.skip.reference == Reference::kExclusive)
    return violated("skip.max_on_skip = raise", "ATT-4.4",
                    [](Profile& o) { o.skip.max_on_skip = MaxOnSkip::kKeep; });
  return holds();
}

// Blocks climb by 6 nats and lambda is 1000 (6.9 nats), so every second block is skipped although
// it is the highest so far. Then the first one that was skipped is made low: nothing else may
// change.
void check_climbing(Trial& t) {
  const BuiltPtr b = build(t.c());
  const std::int32_t block = t.c().block;
  const auto height = [&](std::int32_t at, bool low) {
    return (low ? -30 : 6 * static_cast<float>(at)) / 4 / b->problem.scale;
  };
  set_q_column(*b, 0, 4);
  set_k_column(*b, 0, [&](std::size_t, std::int32_t key) { return height(key / block, false); });
  const Trial::Ran* first = t.run(b->problem);
  if (first == nullptr) return;
  const std::int32_t kv_tile = first->emulator->resolved().tile.kv_tile;
  std::int32_t gone = 0;  // the first block that was skipped
  while (gone * block < t.c().kv[0] && decision_at(*first, 0, 0, 0, gone * block / kv_tile) != 2)
    ++gone;
  const BuiltPtr other = build(t.c());
  set_q_column(*other, 0, 4);
  set_k_column(*other, 0, [&](std::size_t, std::int32_t key) {
    return height(key / block, key / block == gone);
  });
  const Trial::Ran* second = t.run(other->problem);
  if (second != nullptr)
    same_answer(t, *second, *first, "keys of skipped tiles changed what else was computed");
}

// The second case is for policies that skip nothing, or everything, above 1.
std::vector<AttentionCase> forgets_cases(const Profile& p) {
  return {with(usual_case(p),
               [](AttentionCase& c) {
                 c.kv = {896};
                 c.block = 128;
                 c.dim = 80;
                 c.threshold.value = 1000;
               }),
          with(usual_case(p), [](AttentionCase& c) {
            c.contrast = 6;
            c.threshold.value = 0.9f;
          })};
}

void check_forgets(Trial& t) {
  if (t.c().threshold.value > 1) return check_climbing(t);
  const BuiltPtr b = build(t.c());
  const Trial::Ran* first = t.run(b->problem);
  const BuiltPtr other = build(with(t.c(), [](AttentionCase& c) { c.contrast *= 2; }));
  const Trial::Ran* second = t.run(other->problem);
  if (second == nullptr) return;
  const std::int32_t kv_tile = first->emulator->resolved().tile.kv_tile;
  // Low tiles that are kept unasked hold less in the second run.
  if (t.profile().skip.kept_first * kv_tile > t.c().block) return;
  same_answer(t, *second, *first, "keys of skipped tiles changed what else was computed");
}

}  // namespace

std::vector<Property> threshold_properties() {
  return {
      {"lambda_zero",
       "lambda = 0 is no threshold, nor is a tiny one",
       "ATT-4.6",
       true,
       skipping,
       lambda_zero_cases,
       false,
       check_lambda_zero,
       {"zero_is_tiny"},
       true},
      {"lambda_above_one",
       "Above 1, every row still has a tile",
       "ATT-4.6",
       true,
       predict_above_one,
       usual_only,
       false,
       check_above_one,
       {"first_tile_skippable"},
       true},
      {"maximum_kept",
       "A tile that holds a row's maximum is never skipped",
       "ATT-4.6",
       true,
       predict_maximum_kept,
       climbing_cases,
       false,
       check_maximum_kept,
       {"no_clamp"},
       true},
      {"tie",
       "At lambda = 1 a tile that equals the maximum is kept",
       "ATT-4.3",
       true,
       predict_tie,
       usual_only,
       false,
       check_tie,
       {"not_strict"},
       true},
      {"own_length",
       "A scale factor is divided by the request's own length",
       "ATT-4.6",
       true,
       predict_own_length,
       own_length_cases,
       false,
       check_own_length,
       {"lambda_by_batch_max"},
       true},
      {"refused",
       "A threshold that is NaN or negative is refused",
       "ATT-2.1",
       false,
       skipping,
       usual_only,
       false,
       check_refused,
       {"nan_threshold_served"}},
      {"forgets",
       "A skipped tile leaves no trace in what follows",
       "ATT-4.4",
       true,
       predict_forgets,
       forgets_cases,
       false,
       check_forgets,
       {"maximum_raised_on_skip", "silently_dense"}},
  };
}

}  // namespace assay::verify
