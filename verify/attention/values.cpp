// Properties of what comes out: values that are known beforehand, and fp64 truth. Decides what each
// expects of a profile (SPEC VER-23.3); how near is near is check.hpp's.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "verify/attention/check.hpp"

namespace assay::verify {
namespace {

using namespace check;
using attention::EmptyGuard;
using attention::LseForm;
using attention::MaskKind;
using attention::Reference;
using attention::Threshold;
using attention::ZeroSum;

Prediction always(const Profile&) { return holds(); }

bool serves_empty_rows(const Profile& p) {
  return p.softmax.empty == EmptyGuard::kAlways && p.softmax.zero_sum != ZeroSum::kInfinite;
}

// Sums of P and P V meet the same keys, so scores cancel: what remains is how P, sums and the
// output round.
void check_ones(Trial& t) {
  const BuiltPtr b = build(t.c());
  fill_v(*b, [](auto...) { return 1.0f; });
  const Trial::Ran* ran = t.run(b->problem);
  if (ran == nullptr) return;
  near_value(
      t, *ran, [](auto...) { return 1.0; }, 1, "values are all 1");
}

std::vector<AttentionCase> ones_cases(const Profile& p) {
  const AttentionCase usual = usual_case(p);
  std::vector<AttentionCase> list = {
      usual,
      with(usual, [](AttentionCase& c) { c.dtype = Dtype::kBf16, c.kv = {300}; }),
      with(usual, [](AttentionCase& c) { c.kv = {419}, c.mask = MaskKind::kCausal, c.page = 16; }),
  };
  return and_fp8(p, std::move(list));
}

// Keys are random signs and a query is the key it looks for, so its score is dim and the others' a
// few times sqrt(dim): the row's output is the value of that key, which spells the key's number.
void check_one_hot(Trial& t) {
  const BuiltPtr b = build(t.c());
  const attention::Request& r = b->problem.requests[0];
  if (r.kv_len == 0) return t.decline("the case has no key to look at");
  Dice dice(t.c().seed);
  for (std::int64_t i = 0; i < b->k.rows; ++i)
    for (std::int32_t h = 0; h < b->k.heads; ++h)
      for (std::int32_t d = 0; d < b->k.dim; ++d)
        b->k.set(i, h, d, dice.below(2) == 0 ? -1.0f : 1.0f);
  const float a = std::round(1 / b->problem.scale);
  // The first half of the rows looks into one tile, the second into another.
  const auto target = [&](std::int32_t row, std::int32_t head) {
    const std::int32_t at = row * b->q.heads + head;
    const std::int32_t half = at < r.q_len * b->q.heads / 2 ? 0 : r.kv_len / 2;
    return half + at * 37 % std::clamp(r.kv_len / 2, 1, 60);
  };
  for (std::int32_t row = 0; row < r.q_len; ++row)
    for (std::int32_t h = 0; h < b->q.heads; ++h)
      for (std::int32_t d = 0; d < b->q.dim; ++d) {
        const std::int32_t kv_head = h / b->problem.group();
        b->q.set(row, h, d, a * b->k.get(b->kv_row(0, target(row, h)), kv_head, d));
      }
  fill_v(*b, [](std::size_t, std::int32_t key, std::int32_t, std::int32_t d) {
    return static_cast<float>(key >> (4 * (d % 3)) & 15);
  });
  const Trial::Ran* ran = t.run(b->problem);
  if (ran == nullptr) return;
  std::size_t at = 0;
  for (std::int32_t row = 0; row < r.q_len; ++row)
    for (std::int32_t h = 0; h < b->q.heads; ++h)
      for (std::int32_t d = 0; d < b->v.dim; ++d, ++at) {
        const double got = out_value(b->problem.out_dtype, ran->answer.out[at]) / t.c().v_scale;
        const std::int32_t digit = target(row, h) >> (4 * (d % 3)) & 15;
        if (std::abs(got - digit) < 0.5) continue;
        return t.fail(fmt::format("the row looks at key {}, whose value is {} here; got {:.4g}",
                                  target(row, h), digit, got),
                      {{"request", 0}, {"row", row}, {"head", h}, {"element", d}});
      }
}

std::vector<AttentionCase> one_hot_cases(const Profile& p) {
  return {usual_case(p), with(usual_case(p), [](AttentionCase& c) { c.page = 16; })};
}

// Equal scores: P is the same everywhere. Value columns count the visible keys by their number
// modulo, the last column all of them.
void check_mean(Trial& t) {
  const BuiltPtr b = build(t.c());
  std::fill(b->q.bytes.begin(), b->q.bytes.end(), std::byte{0});
  const std::int32_t others = b->v.dim - 1;
  fill_v(*b, [&](std::size_t, std::int32_t key, std::int32_t, std::int32_t d) {
    return d == others || key % others == d ? 1.0f : 0.0f;
  });
  const attention::Problem& p = b->problem;
  const Trial::Ran* ran = t.run(p);
  if (ran == nullptr) return;
  const auto share = [&](std::size_t i, std::int32_t row, std::int32_t, std::int32_t d) {
    std::int32_t seen = 0, counted = 0;
    for (std::int32_t key = 0; key < p.requests[i].kv_len; ++key) {
      if (!p.sees(i, row, key)) continue;
      ++seen;
      counted += d == others || key % others == d;
    }
    return static_cast<double>(counted) / seen;
  };
  near_value(t, *ran, share, 1,
             "scores are all equal, so the output is the mean of visible values");
}

std::vector<AttentionCase> mean_cases(const Profile& p) {
  AttentionCase c = usual_case(p);
  c.q = {is_decode(p) ? 3 : 70};
  c.kv = {131};
  if (is_decode(p)) c.q_heads = 4;
  std::vector<AttentionCase> list = {c};
  for (const MaskKind mask : {MaskKind::kCausal, MaskKind::kWindow, MaskKind::kChunked})
    list.push_back(with(c, [&](AttentionCase& o) { o.mask = mask, o.mask_size = 20; }));
  list.push_back(with(c, [](AttentionCase& o) { o.kv = {300}, o.mask = MaskKind::kCausal; }));
  if (serves_empty_rows(p)) {
    list.push_back(with(c, [](AttentionCase& o) { o.custom = true; }));
    list.push_back(
        with(c, [](AttentionCase& o) { o.top_left = true, o.mask = MaskKind::kCausal; }));
  }
  return and_fp8(p, std::move(list));
}

void check_truth(Trial& t) {
  const BuiltPtr b = build(t.c());
  const Trial::Ran* ran = t.run(b->problem);
  if (ran != nullptr) near_truth(t, *ran);
}

std::vector<AttentionCase> truth_cases(const Profile& p) {
  AttentionCase c = usual_case(p);
  c.spread = 1;
  c.contrast = 8;
  if (c.threshold.kind != Threshold::Kind::kOff) c.threshold.value = 0.02f;
  std::vector<AttentionCase> list = {
      c,
      with(c, [](AttentionCase& o) { o.dtype = Dtype::kBf16, o.scale = 0.2f, o.page = 16; }),
      with(c, [](AttentionCase& o) { o.kv = {500}, o.splits = 3, o.mask = MaskKind::kCausal; }),
  };
  return and_fp8(p, and_pairs(p, std::move(list)));
}

Prediction predict_lse(const Profile& p) {
  if (p.softmax.lse == LseForm::kNone) return not_applicable("the kernel writes no LSE", "ATT-5.5");
  return holds();
}

// A third of the mass or so is dropped, so that the LSE of all keys is another number.
std::vector<AttentionCase> lse_cases(const Profile& p) {
  AttentionCase c = usual_case(p);
  c.spread = 0.1f;
  c.contrast = 2;
  if (c.threshold.kind != Threshold::Kind::kOff) c.threshold.value = 0.3f;
  std::vector<AttentionCase> list = {
      c, with(c, [](AttentionCase& o) { o.kv = {300}, o.mask = MaskKind::kCausal; })};
  return and_fp8(p, std::move(list));
}

Prediction predict_sinks(const Profile& p) {
  if (p.softmax.sink == attention::SinkForm::kNone)
    return not_applicable("the kernel has no sinks", "ATT-4.2");
  return holds();
}

void check_sinks(Trial& t) {
  const BuiltPtr b = build(t.c());
  const Trial::Ran* without = t.run(b->problem);
  const BuiltPtr with_sinks = build(t.c());
  for (std::int32_t h = 0; h < t.c().q_heads; ++h)
    with_sinks->sinks.push_back(5.5f + 0.4f * static_cast<float>(h % 3));
  with_sinks->point_problem();
  const Trial::Ran* ran = t.run(with_sinks->problem);
  if (ran == nullptr || !near_truth(t, *ran)) return;
  if (without->answer.decision && ran->answer.decision &&
      without->answer.decision->cells != ran->answer.decision->cells)
    t.fail("sinks changed a decision");
}

// A sink of group sizes that are no multiple of a vector is read beyond its array by kernels that
// round up.
std::vector<AttentionCase> sink_cases(const Profile& p) {
  const AttentionCase c = usual_case(p);
  return {c, with(c, [](AttentionCase& o) { o.q_heads = 5, o.kv_heads = 1; })};
}

// Lengths on both sides of a tile's edge, and rows on both sides of a unit's.
std::vector<AttentionCase> edge_cases(const Profile& p) {
  std::vector<AttentionCase> list;
  AttentionCase c = usual_case(p);
  c.dim = 32;
  c.contrast = 6;
  c.spread = 0.3f;
  const attention::TileShape shape = tile_of(p, c);
  c.block = shape.kv_tile;
  int which = 0;
  for (const std::int32_t tiles : {1, 2, 3})
    for (const std::int32_t step : {-1, 0, 1}) {
      c.kv = {tiles * shape.kv_tile + step};
      // Masks end at rows, so their edges move with them.
      c.q = {is_decode(p) ? 1 : shape.unit_rows + which % 3 - 1};
      c.mask = which % 2 == 1 && c.kv[0] >= c.q[0] ? MaskKind::kCausal : MaskKind::kFull;
      c.threshold.value = c.threshold.kind == Threshold::Kind::kOff ? 0 : 0.02f;
      list.push_back(c);
      ++which;
    }
  // Whole units, so that rows which only fill one up cannot keep every tile.
  c.q = usual_case(p).q;
  c.mask = MaskKind::kFull;
  for (const std::int32_t step : {-1, 0, 1}) {
    c.kv = {4 * shape.kv_tile + step};
    list.push_back(c);
  }
  return list;
}

}  // namespace

std::vector<Property> value_properties() {
  return {
      {"ones",
       "Values that are all 1 give 1",
       "ATT-3.6",
       true,
       always,
       ones_cases,
       true,
       check_ones,
       {"boundary_mask_missing", "eight_lanes"}},
      {"one_hot",
       "A row that looks at one key gets that key's value",
       "ATT-3.1",
       true,
       always,
       one_hot_cases,
       false,
       check_one_hot,
       {"v_row_off_by_one"}},
      {"mean",
       "Equal scores give the mean of the visible values",
       "ATT-1.1",
       false,
       always,
       mean_cases,
       true,
       check_mean,
       {"last_key_missing"}},
      {"truth",
       "Outputs and LSE are within the bound of fp64 over the kept keys",
       "ATT-3.6",
       true,
       always,
       truth_cases,
       true,
       check_truth,
       {"scale_ignored"}},
      {"lse",
       "LSE is of what was kept",
       "ATT-5.5",
       true,
       predict_lse,
       lse_cases,
       false,
       check_truth,
       {"lse_of_dense_sum", "lse_of_other_base"}},
      {"sinks",
       "A sink enters the sum, and no decision",
       "ATT-3.2",
       true,
       predict_sinks,
       sink_cases,
       false,
       check_sinks,
       {"sinks_ignored"}},
      {"edges",
       "Lengths around k * tile and k * unit are nothing special",
       "ATT-1.2",
       true,
       always,
       edge_cases,
       false,
       check_truth,
       {"tail_tile_dropped"}},
  };
}

}  // namespace assay::verify
