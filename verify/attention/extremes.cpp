// Properties of scores and rows at the ends of what there is: rising, extreme and NaN scores, rows
// without keys, positions beyond the last key. Decides what each expects of a profile (SPEC
// VER-23.3).
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "verify/attention/check.hpp"

namespace assay::verify {
namespace {

using namespace check;
using attention::EmptyGuard;
using attention::MaskKind;
using attention::ZeroSum;

Prediction always(const Profile&) { return holds(); }

// Blocks of keys, each 2.5 nats above the one before it, then a low one.
void check_rising(Trial& t) {
  const BuiltPtr b = build(t.c());
  const std::int32_t block = t.c().block;
  const std::int32_t blocks = (t.c().kv[0] + block - 1) / block;
  set_q_column(*b, 0, 4);
  set_k_column(*b, 0, [&](std::size_t, std::int32_t key) {
    const std::int32_t at = key / block;
    const float nats = at == blocks - 1 ? -30.0f : 2.5f * static_cast<float>(at);
    return nats / 4 / b->problem.scale;
  });
  const Trial::Ran* ran = t.run(b->problem);
  if (ran == nullptr || !near_truth(t, *ran)) return;
  // Errors of scores hide what happens to P in fp8; with values of 1 they cancel.
  fill_v(*b, [](auto...) { return 1.0f; });
  ran = t.run(b->problem);
  if (ran != nullptr)
    near_value(
        t, *ran, [](auto...) { return 1.0; }, 1, "values are all 1, scores rise slowly");
}

std::vector<AttentionCase> rising_cases(const Profile& p) {
  AttentionCase c = usual_case(p);
  c.dim = 32;
  c.contrast = 0;
  c.block = tile_of(p, c).kv_tile;
  if (c.block < 64) c.block = 64;
  c.kv = {5 * c.block};
  std::vector<AttentionCase> list = {c};
  if (p.fp8) {
    AttentionCase f = with(c, [](AttentionCase& o) { o.dtype = Dtype::kF8E4m3; });
    f.block = tile_of(p, f).kv_tile;
    // 7 in log2 units over three tiles: a maximum that waits for 8 has not moved, and P is too
    // large.
    f.kv = {4 * f.block};
    list.push_back(f);
  }
  return list;
}

Prediction predict_extreme(const Profile& p) {
  // Finite sentinels of ordinary size are maxima that no score reaches.
  const double sentinel = attention::as_double(p.skip.initial_max);
  if (sentinel > -1e30)
    return violated(fmt::format("skip.initial_max = {:.4g}", sentinel), "ATT-7.2", [](Profile& o) {
      o.skip.initial_max = o.skip.fill = attention::kMinusInfinity;
    });
  return holds();
}

// Scores around -131,072 and around 131,072; low blocks another 30 nats below. Values are 1,
// because nothing else can be said exactly at that size.
void check_extreme(Trial& t) {
  for (const float sign : {-1.0f, 1.0f}) {
    const BuiltPtr b = build(t.c());
    set_q_column(*b, 0, 256);
    set_q_column(*b, 1, 4);
    set_k_column(*b, 0, [&](auto...) { return sign * 512 / b->problem.scale; });
    set_k_column(*b, 1, [&](std::size_t, std::int32_t key) {
      return key / t.c().block % 2 == 1 ? -30 / 4 / b->problem.scale : 0.0f;
    });
    fill_v(*b, [](auto...) { return 1.0f; });
    const Trial::Ran* ran = t.run(b->problem);
    if (ran == nullptr) return;
    if (!near_value(
            t, *ran, [](auto...) { return 1.0; }, 1,
            sign < 0 ? "values are all 1, scores about -131072"
                     : "values are all 1, scores about 131072"))
      return;
  }
}

std::vector<AttentionCase> extreme_cases(const Profile& p) {
  return {with(usual_case(p),
               [](AttentionCase& c) { c.contrast = 0, c.scale = 1, c.dtype = Dtype::kBf16; })};
}

// All scores 200 nats up or down: decisions stay, and outputs stay near the truth, which knows the
// shift (the LSE moves by it).
void check_shift(Trial& t) {
  const auto shifted = [&](float nats) {
    BuiltPtr b = build(t.c());
    set_q_column(*b, 1, 8);
    set_k_column(*b, 1, [&](auto...) { return nats / 8 / b->problem.scale; });
    return b;
  };
  const BuiltPtr plain = shifted(0);
  const Trial::Ran* first = t.run(plain->problem);
  for (const float nats : {-200.0f, 200.0f}) {
    const BuiltPtr b = shifted(nats);
    const Trial::Ran* ran = t.run(b->problem);
    if (ran == nullptr || !near_truth(t, *ran)) return;
    if (ran->decision().cells != first->decision().cells)
      return t.fail(fmt::format("a shift of all scores by {} nats changed a decision", nats));
  }
}

Prediction predict_nan(const Profile& p) {
  if (p.skip.dense_only) return dense();
  const numerics::NanRule rule = p.softmax.max_nan;
  if (rule == numerics::NanRule::kDrop)
    return violated("softmax.max_nan = drop", "ATT-4.3",
                    [](Profile& o) { o.softmax.max_nan = numerics::NanRule::kPropagate; });
  return holds();
}

// One NaN among the keys of a tile that would be skipped.
void check_nan(Trial& t) {
  const BuiltPtr b = build(t.c());
  if (t.c().kv[0] < std::max(1, t.c().block / 2) || t.c().dim < 4)
    return t.decline("the case has no key half a block before its last, or no fourth column");
  if (t.run(b->problem) == nullptr) return;  // shows that the tile is skipped
  const std::int32_t key = t.c().kv[0] - t.c().block / 2;
  for (std::int32_t h = 0; h < b->k.heads; ++h)
    b->k.set(b->kv_row(0, key), h, 3, std::numeric_limits<float>::quiet_NaN());
  const Trial::Ran* ran = t.run(b->problem);
  if (ran == nullptr) return;
  for (std::size_t i = 0; i < ran->answer.out.size(); ++i) {
    if (std::isnan(out_value(b->problem.out_dtype, ran->answer.out[i]))) continue;
    const auto row = static_cast<std::int64_t>(i) / b->v.dim;
    return t.fail(fmt::format("key {} is NaN and visible, and the output is {:.4g}", key,
                              out_value(b->problem.out_dtype, ran->answer.out[i])),
                  {{"request", 0}, {"row", row / b->q.heads}, {"head", row % b->q.heads}});
  }
}

Prediction predict_no_keys(const Profile& p) {
  if (p.softmax.empty != EmptyGuard::kAlways)
    return violated(fmt::format("softmax.empty = {}",
                                p.softmax.empty == EmptyGuard::kNever ? "never" : "windowed"),
                    "ATT-5.2", [](Profile& o) {
                      o.softmax.empty = EmptyGuard::kAlways;
                      o.softmax.zero_sum = ZeroSum::kZero;
                    });
  if (p.softmax.zero_sum == ZeroSum::kInfinite)
    return violated("softmax.zero_sum = infinite", "ATT-7.7",
                    [](Profile& o) { o.softmax.zero_sum = ZeroSum::kZero; });
  return holds();
}

void check_no_keys(Trial& t) {
  const BuiltPtr b = build(t.c());
  const attention::Problem& p = b->problem;
  const Trial::Ran* ran = t.run(p);
  if (ran == nullptr) return;
  std::size_t at = 0;
  for (std::size_t i = 0; i < p.requests.size(); ++i)
    for (std::int32_t row = 0; row < p.requests[i].q_len; ++row)
      for (std::int32_t h = 0; h < p.q_heads; ++h, ++at) {
        bool sees = false;
        for (std::int32_t key = 0; key < p.requests[i].kv_len; ++key) sees |= p.sees(i, row, key);
        if (sees) continue;
        const std::vector<Coordinate> where = {
            {"request", static_cast<std::int64_t>(i)}, {"row", row}, {"head", h}};
        for (std::size_t d = 0; d < static_cast<std::size_t>(p.v_dim); ++d) {
          const double got =
              out_value(p.out_dtype, ran->answer.out[at * static_cast<std::size_t>(p.v_dim) + d]);
          if (got != 0) return t.fail(fmt::format("a row without keys gives {:.4g}", got), where);
        }
        if (!ran->answer.lse.empty() && ran->answer.lse[at].bits != attention::kMinusInfinity.bits)
          return t.fail(fmt::format("a row without keys has LSE {:.4g}",
                                    attention::as_double(ran->answer.lse[at])),
                        where);
      }
}

// log2(e) times this scale is exactly 1 in f32, so that a sentinel's multiple is what it was.
std::vector<AttentionCase> no_keys_cases(const Profile& p) {
  AttentionCase c = usual_case(p);
  c.scale = 0.6931471824645996f;
  c.mask = MaskKind::kCausal;
  c.contrast = 0;
  if (is_decode(p)) c.q_heads = 4;
  c.q = {is_decode(p) ? 6 : 70, 3};
  c.kv = {is_decode(p) ? 2 : 20, 0};
  return {c, with(c, [](AttentionCase& o) { o.mask = MaskKind::kFull; })};
}

Prediction predict_keys_end(const Profile& p) {
  if (p.skip.diagonal_only)
    return violated("skip.diagonal_only = true", "ATT-7.1",
                    [](Profile& o) { o.skip.diagonal_only = false; });
  return holds();
}

// Positions at and beyond the last key. What lies behind the keys has other values.
void check_keys_end(Trial& t) {
  const BuiltPtr small = build(t.c());
  fill_v(*small, [](auto...) { return 1.0f; });
  const BuiltPtr b = with_gaps(*small, 200, 0x4000);
  const Trial::Ran* ran = t.run(b->problem);
  if (ran == nullptr) return;
  near_value(
      t, *ran, [](auto...) { return 1.0; }, 1, "values are 1, and 2 behind the last key");
}

std::vector<AttentionCase> keys_end_cases(const Profile& p) {
  AttentionCase c = usual_case(p);
  c.top_left = true;
  c.mask = MaskKind::kCausal;
  c.contrast = 0;
  if (is_decode(p)) c.q_heads = 4;
  c.q = {is_decode(p) ? 8 : 120};
  c.kv = {is_decode(p) ? 3 : 70};
  return {c};
}

}  // namespace

std::vector<Property> extreme_properties() {
  return {
      {"rising",
       "Slowly rising scores lose nothing",
       "ATT-5.2",
       true,
       always,
       rising_cases,
       false,
       check_rising,
       {"missing_correction"}},
      {"extreme",
       "Scores of -131072 and 131072 are scores like others",
       "ATT-4.4",
       true,
       predict_extreme,
       extreme_cases,
       false,
       check_extreme,
       {"finite_sentinel"}},
      {"shift",
       "A shift of all scores changes no decision",
       "ATT-4.3",
       true,
       always,
       usual_only,
       false,
       check_shift,
       {"maximum_from_zero"},
       true},
      {"nan_seen",
       "A NaN among visible keys reaches the output, also from a low tile",
       "ATT-4.3",
       true,
       predict_nan,
       usual_only,
       false,
       check_nan,
       {"nan_dropped"}},
      {"no_keys",
       "A row without keys gives 0 and LSE -inf",
       "ATT-3.3",
       false,
       predict_no_keys,
       no_keys_cases,
       false,
       check_no_keys,
       {"empty_rows_unguarded"}},
      {"keys_end",
       "Positions beyond the last key see no more than the keys",
       "ATT-1.1",
       false,
       predict_keys_end,
       keys_end_cases,
       false,
       check_keys_end,
       {"boundary_mask_missing"}},
  };
}

}  // namespace assay::verify
