// Cases and comparisons that the checks of properties share. Decides how near is near: SPEC
// VER-23.3.
#include "verify/attention/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "model/numerics/convert.hpp"

namespace assay::verify::check {

using attention::Packing;
using attention::Problem;
using attention::Request;
using attention::Threshold;
using attention::TruthRow;

bool is_decode(const Profile& profile) { return profile.skip.packing == Packing::kGroupRows; }

attention::TileShape tile_of(const Profile& profile, const AttentionCase& c) {
  Problem p;
  p.dtype = c.dtype;
  p.q_heads = c.q_heads;
  p.kv_heads = c.kv_heads;
  p.head_dim = c.dim;
  p.v_dim = c.v_dim;
  p.mask = c.mask;
  const auto resolved = attention::resolve(profile, p);
  return resolved ? resolved->tile : attention::TileShape{};
}

AttentionCase usual_case(const Profile& profile) {
  AttentionCase c;
  c.dtype = Dtype::kF16;
  c.q = {is_decode(profile) ? 1 : 128};
  c.q_heads = is_decode(profile) ? 64 : 1;
  c.kv = {512};
  c.spread = 0.1f;
  c.contrast = 30;
  if (!profile.skip.dense_only) c.threshold = {Threshold::Kind::kLambda, 1e-3f};
  return c;
}

AttentionCase with(AttentionCase c, const std::function<void(AttentionCase&)>& change) {
  change(c);
  return c;
}

// A low block is 8 nats below. By its own 420 keys the first request has ln lambda = -7.7, by the
// longest 1100 it has -8.7.
AttentionCase ragged_case(const Profile& profile, bool whole_units) {
  AttentionCase c = usual_case(profile);
  c.kv = {420, 512, 1100};
  const std::int32_t rows = c.q[0];
  c.q = {rows, rows, rows};
  if (!whole_units) {
    c.q = is_decode(profile) ? std::vector<std::int32_t>{2, 1, 3}
                             : std::vector<std::int32_t>{40, 90, 7};
    if (is_decode(profile)) c.q_heads = 4;
  }
  c.contrast = 8;
  c.spread = 0.05f;
  if (!profile.skip.dense_only) c.threshold = {Threshold::Kind::kScaleFactor, 0.19f};
  return c;
}

std::vector<AttentionCase> and_fp8(const Profile& profile, std::vector<AttentionCase> cases) {
  if (!profile.fp8) return cases;
  AttentionCase c = cases.front();
  c.dtype = Dtype::kF8E4m3;
  if (c.block == 128) c.block = tile_of(profile, c).kv_tile;  // low blocks are whole tiles
  c.kv[0] = std::max(c.kv[0], 2 * c.block);
  c.v_scale = 0.3f;
  cases.push_back(std::move(c));
  return cases;
}

std::vector<AttentionCase> and_pairs(const Profile& profile, std::vector<AttentionCase> cases) {
  if (is_decode(profile)) return cases;
  AttentionCase c = cases.front();
  c.q_heads = 4;
  c.kv_heads = 2;
  for (std::int32_t& rows : c.q) rows *= 2;
  cases.push_back(std::move(c));
  return cases;
}

std::int32_t unit_tokens(const Profile& profile, const AttentionCase& c) {
  const std::int32_t rows = tile_of(profile, c).unit_rows;
  return is_decode(profile) ? std::max(1, rows / (c.q_heads / c.kv_heads)) : rows;
}

void fill_v(
    Built& built,
    const std::function<float(std::size_t, std::int32_t, std::int32_t, std::int32_t)>& value) {
  for (std::size_t i = 0; i < built.problem.requests.size(); ++i)
    for (std::int32_t key = 0; key < built.problem.requests[i].kv_len; ++key)
      for (std::int32_t h = 0; h < built.v.heads; ++h)
        for (std::int32_t d = 0; d < built.v.dim; ++d)
          built.v.set(built.kv_row(i, key), h, d, value(i, key, h, d));
}

void set_k_column(Built& built, std::int32_t column,
                  const std::function<float(std::size_t, std::int32_t)>& value) {
  for (std::size_t i = 0; i < built.problem.requests.size(); ++i)
    for (std::int32_t key = 0; key < built.problem.requests[i].kv_len; ++key)
      for (std::int32_t h = 0; h < built.k.heads; ++h)
        built.k.set(built.kv_row(i, key), h, column, value(i, key));
}

void set_q_column(Built& built, std::int32_t column, float value) {
  for (std::int64_t row = 0; row < built.q.rows; ++row)
    for (std::int32_t h = 0; h < built.q.heads; ++h) built.q.set(row, h, column, value);
}

double out_value(Dtype out_dtype, std::uint16_t bits) {
  return attention::as_double(out_dtype == Dtype::kF16 ? numerics::widen(F16{bits})
                                                       : numerics::widen(Bf16{bits}));
}

namespace {

ElementFormat format_of_out(const Problem& p) {
  return p.out_dtype == Dtype::kF16 ? ElementFormat::kF16 : ElementFormat::kBf16;
}

// The request that holds a packed row, and the row within it.
std::pair<std::size_t, std::int32_t> place_of(const Problem& p, std::int64_t row) {
  std::size_t request = 0;
  while (row >= p.requests[request].q_len) row -= p.requests[request++].q_len;
  return {request, static_cast<std::int32_t>(row)};
}

std::vector<Coordinate> coordinates(std::int64_t request, std::int64_t row, std::int64_t head) {
  return {{"request", request}, {"row", row}, {"head", head}};
}

std::vector<Coordinate> element_place(const Problem& p, std::size_t at) {
  const auto dim = static_cast<std::size_t>(p.v_dim);
  const auto heads = static_cast<std::size_t>(p.q_heads);
  const auto [request, row] = place_of(p, static_cast<std::int64_t>(at / dim / heads));
  std::vector<Coordinate> where = coordinates(static_cast<std::int64_t>(request), row,
                                              static_cast<std::int64_t>(at / dim % heads));
  where.push_back({"element", static_cast<std::int64_t>(at % dim)});
  return where;
}

std::int32_t tiles_max(const Trial::Ran& ran) {
  std::int32_t longest = 0;
  for (const Request& r : ran.problem->requests) longest = std::max(longest, r.kv_len);
  return longest / ran.emulator->resolved().tile.kv_tile + 1;
}

// Relative part of ATT-3.6's bound, for a row whose values are 1.
double unit_bound(const Trial::Ran& ran, double score_magnitude) {
  TruthRow row;
  row.v_max = 1;
  row.score_magnitude = score_magnitude;
  return attention::arithmetic_bound(ran.emulator->resolved(), *ran.problem, row, tiles_max(ran));
}

bool near_lse(Trial& trial, const Trial::Ran& ran, const TruthRow& row, std::size_t at) {
  if (ran.answer.lse.empty()) return true;
  const bool ln = ran.expected.lse_form == attention::LseForm::kLn;
  const double got = attention::as_double(ran.answer.lse[at]);
  const double want = ln ? row.lse_ln : row.lse_log2;
  // What a sum may be off by, in the LSE's unit, and the rounding of the LSE itself.
  const double bound = 2 * unit_bound(ran, row.score_magnitude) / (ln ? 1.0 : std::log(2.0)) +
                       std::abs(want) * 0x1p-22 + 0x1p-20;
  if (std::abs(got - want) <= bound) return true;
  const auto heads = static_cast<std::size_t>(ran.problem->q_heads);
  const auto [request, token] = place_of(*ran.problem, static_cast<std::int64_t>(at / heads));
  trial.fail(fmt::format("LSE is {:.6g}; of what was kept it is {:.6g}, give or take {:.2g}", got,
                         want, bound),
             coordinates(static_cast<std::int64_t>(request), token,
                         static_cast<std::int64_t>(at % heads)));
  return false;
}

}  // namespace

bool same_rows(Trial& trial, Slice got, Slice want, std::int64_t rows, std::string_view what,
               std::int64_t request) {
  const Problem& p = *got.ran.problem;
  const auto dim = static_cast<std::int64_t>(p.v_dim);
  for (std::int64_t i = 0; i < rows * p.q_heads; ++i) {
    const std::int64_t a = got.first_row * p.q_heads + i, b = want.first_row * p.q_heads + i;
    std::vector<Coordinate> where = coordinates(request, i / p.q_heads, i % p.q_heads);
    for (std::int64_t d = 0; d < dim; ++d) {
      const std::uint16_t x = got.ran.answer.out[static_cast<std::size_t>(a * dim + d)];
      const std::uint16_t y = want.ran.answer.out[static_cast<std::size_t>(b * dim + d)];
      if (x == y) continue;
      where.push_back({"element", d});
      trial.fail(std::string(what), std::move(where), Values{format_of_out(p), x, y});
      return false;
    }
    if (got.ran.answer.lse.empty()) continue;
    const F32 x = got.ran.answer.lse[static_cast<std::size_t>(a)];
    const F32 y = want.ran.answer.lse[static_cast<std::size_t>(b)];
    if (x.bits == y.bits) continue;
    trial.fail(fmt::format("{}, in the LSE", what), std::move(where),
               Values{ElementFormat::kF32, x.bits, y.bits});
    return false;
  }
  return true;
}

bool same_answer(Trial& trial, const Trial::Ran& got, const Trial::Ran& want,
                 std::string_view what) {
  const Problem& p = *got.problem;
  std::int64_t row = 0;
  for (std::size_t i = 0; i < p.requests.size(); ++i) {
    const std::int64_t rows = p.requests[i].q_len;
    if (!same_rows(trial, {got, row}, {want, row}, rows, what, static_cast<std::int64_t>(i)))
      return false;
    row += rows;
  }
  if (!got.answer.decision || !want.answer.decision) return true;
  const attention::DecisionMap& a = *got.answer.decision;
  const attention::DecisionMap& b = *want.answer.decision;
  if (a.extents == b.extents && a.cells == b.cells) return true;
  trial.fail(fmt::format("{}, in the decisions", what));
  return false;
}

attention::Kept kept_of(const Trial::Ran& ran) {
  const attention::Kept profile = attention::kept_pairs(*ran.emulator, ran.expected);
  if (!ran.answer.decision) return profile;
  return [&ran, profile](std::size_t request, int head, std::int32_t row, std::int32_t key) {
    const std::int32_t tile = key / ran.emulator->resolved().tile.kv_tile;
    const std::uint8_t cell = decision_at(ran, request, head, row, tile);
    const auto decision = static_cast<attention::Decision>(cell);
    if (decision == attention::Decision::kPartlyZeroed) return profile(request, head, row, key);
    return decision == attention::Decision::kKept;
  };
}

std::uint8_t decision_at(const Trial::Ran& ran, std::size_t request, std::int32_t head,
                         std::int32_t row, std::int32_t tile) {
  const attention::DecisionMap& map = ran.decision();
  if (row >= ran.problem->requests[request].q_len) return 0;  // no unit decides for it
  const attention::Unit& unit = ran.emulator->units()[ran.emulator->unit_of(request, head, row)];
  if (tile >= map.extents[3]) return 0;
  std::size_t at = unit.request;
  at = at * static_cast<std::size_t>(map.extents[1]) + static_cast<std::size_t>(unit.head);
  at = at * static_cast<std::size_t>(map.extents[2]) + static_cast<std::size_t>(unit.index);
  at = at * static_cast<std::size_t>(map.extents[3]) + static_cast<std::size_t>(tile);
  return map.cells[at];
}

bool near_value(
    Trial& trial, const Trial::Ran& ran,
    const std::function<double(std::size_t, std::int32_t, std::int32_t, std::int32_t)>& expected,
    double v_max, std::string_view what) {
  const Problem& p = *ran.problem;
  const double bound = v_max * p.v_scale * unit_bound(ran, 0);
  const auto dim = static_cast<std::size_t>(p.v_dim);
  std::size_t at = 0;
  for (std::size_t i = 0; i < p.requests.size(); ++i)
    for (std::int32_t row = 0; row < p.requests[i].q_len; ++row)
      for (std::int32_t h = 0; h < p.q_heads; ++h, at += dim) {
        bool sees = false;
        for (std::int32_t key = 0; !sees && key < p.requests[i].kv_len; ++key)
          sees = p.sees(i, row, key);
        if (!sees) continue;
        for (std::int32_t d = 0; d < p.v_dim; ++d) {
          const std::uint16_t bits = ran.answer.out[at + static_cast<std::size_t>(d)];
          const double want = expected(i, row, h, d) * p.v_scale;
          if (std::abs(out_value(p.out_dtype, bits) - want) <= bound) continue;
          trial.fail(fmt::format("{}: expected {:.6g} give or take {:.2g}, got {:.6g}", what, want,
                                 bound, out_value(p.out_dtype, bits)),
                     element_place(p, at + static_cast<std::size_t>(d)));
          return false;
        }
      }
  return true;
}

bool near_truth(Trial& trial, const Trial::Ran& ran) {
  const Problem& p = *ran.problem;
  const auto truth = attention::truth(p, kept_of(ran));
  CONTRACT(truth.has_value(), truth ? "" : truth.error().sentence);
  const auto dim = static_cast<std::size_t>(p.v_dim);
  for (std::size_t i = 0; i < truth->rows.size(); ++i) {
    const TruthRow& row = truth->rows[i];
    if (row.visible_keys == 0 || std::isinf(row.lse_ln)) continue;
    const double bound =
        attention::arithmetic_bound(ran.emulator->resolved(), p, row, tiles_max(ran));
    for (std::size_t d = 0; d < dim; ++d) {
      const double got = out_value(p.out_dtype, ran.answer.out[i * dim + d]);
      const double want = truth->out[i * dim + d];
      if (std::abs(got - want) <= bound) continue;
      trial.fail(fmt::format("got {:.6g}; over the keys that were kept it is {:.6g} in fp64, give "
                             "or take {:.2g}",
                             got, want, bound),
                 element_place(p, i * dim + d));
      return false;
    }
    if (!near_lse(trial, ran, row, i)) return false;
  }
  return true;
}

Prediction dense() { return not_applicable("never skips", "ATT-4.2"); }
Prediction skipping(const attention::Profile& p) { return p.skip.dense_only ? dense() : holds(); }
std::vector<AttentionCase> usual_only(const attention::Profile& p) { return {usual_case(p)}; }
bool is_low(const AttentionCase& c, std::int32_t tile, std::int32_t kv_tile) {
  return tile * kv_tile / c.block % 2 == 1;
}

}  // namespace assay::verify::check
