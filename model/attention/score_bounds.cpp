// How far approximate scores may be off, and what follows for a tile's vote. Decides SPEC ATT-5.11.
#include "model/attention/score_bounds.hpp"

#include <algorithm>
#include <cmath>

#include "model/numerics/bulk.hpp"
#include "model/numerics/tensor_core/tensor_core.hpp"

namespace assay::attention {
namespace {

// A margin below this, in log2 units, agrees to skip by every comparison of ATT-4.3: their
// roundings are within tie_width, of which this demands to be twice as large.
constexpr double kCertain = -0.01;
constexpr double kWidthMost = 0.005;

// More exact scores than these by the scalar path cost as much as the product of the whole tile.
constexpr int kDotsMost = 64;

double smallest_normal(Dtype dtype) { return dtype == Dtype::kF16 ? 0x1p-14 : 0x1p-126; }

void widen(Dtype dtype, const std::uint16_t* from, std::size_t count, float* to) {
  const std::span<F32> out(reinterpret_cast<F32*>(to), count);
  if (dtype == Dtype::kF16)
    numerics::widen_row({reinterpret_cast<const F16*>(from), count}, out);
  else
    numerics::widen_row({reinterpret_cast<const Bf16*>(from), count}, out);
}

bool moderate(double x) { return x > 0x1p-60 && x < 0x1p60; }

}  // namespace

bool ScoreBounds::apply(const UnitView& view) {
  const numerics::Rule& rule = view.arithmetic.rule;
  if (view.dtype == Dtype::kF8E4m3 || view.arithmetic.lowering != numerics::Lowering::kNative)
    return false;
  if (rule.output != numerics::OutputFormat::kF32 || rule.fraction_bits < 24 ||
      rule.products > 16 || rule.scale != numerics::ScaleFormat::kNone)
    return false;
  return view.lambda.enabled && std::abs(view.lambda.log2_exact) <= 100 &&
         moderate(view.scale.unit_log2) && moderate(as_double(view.scale.log2)) &&
         moderate(as_double(view.scale.natural));
}

void ScoreBounds::prepare(const UnitView& view, const UnitScratch<std::uint16_t>& scratch,
                          int rows) {
  const int dim = view.head_dim;
  pitch_ = (rows + 31) / 32 * 32;
  const auto pitch = static_cast<std::size_t>(pitch_), width = static_cast<std::size_t>(dim);
  const auto keys = static_cast<std::size_t>(view.tile.kv_tile);
  queries_t_.assign(pitch * width, 0.0f);
  keys_.resize(keys * width);
  approx_.resize(keys * pitch);
  row_max_.resize(pitch);
  std::vector<float> row(width);
  for (int i = 0; i < rows; ++i) {
    widen(view.dtype, scratch.q + static_cast<std::size_t>(i) * width, width, row.data());
    for (std::size_t d = 0; d < width; ++d)
      queries_t_[d * pitch + static_cast<std::size_t>(i)] = row[d];
    query_norms_.push_back(static_cast<double>(largest_norm(row.data(), 1, dim)) * 1.001);
  }
}

// With B the product of the norms, which bounds every product and partial sum: a block of L
// products cuts L + 1 terms and then rounds; an f32 sum rounds twice a product at most. Operands
// count with the smallest normal exponent at least.
double score_error(const UnitView& view, double query_norm, double key_norm) {
  const double dim = view.head_dim, floor = smallest_normal(view.dtype) * std::sqrt(dim);
  const double norms = (query_norm + floor) * (key_norm + floor);
  const numerics::Rule& rule = view.arithmetic.rule;
  const double of_block = std::ldexp(rule.products + 1.0, -rule.fraction_bits) + 0x1p-23;
  return 1.01 * norms * (dim / rule.products * of_block + dim * 0x1p-23) + 0x1p-100;
}

// The margin of a row whose raw maximum is within `error` of the approximate one; an upper end of
// infinity where nothing is certain.
ScoreBounds::Bound ScoreBounds::bound_of(const UnitView& view, int row, F32 reference,
                                         double factor, double error) const {
  const double g = as_double(reference);
  const double raw = static_cast<double>(row_max_[static_cast<std::size_t>(row)]);
  const double infinity = as_double(F32{0x7F800000u});
  if (!(std::abs(g) < 1e30) || !(std::abs(raw) + error < 1e30)) return {-infinity, infinity, error};
  const double unit = view.scale.unit_log2;
  const auto margin = [&](double l) {
    const bool with_tile = view.skip.reference == Reference::kInclusive && l > g;
    return (with_tile ? 0 : (l - g) * unit) - view.lambda.log2_exact;
  };
  // Scaled scores are rounded once more.
  const double slack = 0x1p-22 * (std::abs(raw) + error) * factor;
  const double low = (raw - error) * factor - slack, high = (raw + error) * factor + slack;
  const double largest = std::max({std::abs(low), std::abs(high), std::abs(g)});
  const double width = 0x1p-21 * (largest * unit + std::abs(view.lambda.log2_exact) + 1);
  if (!(width < kWidthMost) || !(margin(high) < kCertain)) return {-infinity, infinity, error};
  // The profile's own comparison must agree for a maximum that is larger still: it may compare in
  // other units than its scores have, as wrong kernels do.
  const F32 beyond = rounded(high - kCertain / unit);
  const F32 g_beyond = view.skip.reference == Reference::kInclusive
                           ? numerics::max_of(beyond, reference, view.soft.max_nan)
                           : reference;
  if (!row_may_skip(view.skip, view.lambda, view.scale, beyond, g_beyond, view.soft.flush))
    return {-infinity, infinity, error};
  return {margin(low), margin(high), error};
}

F32 ScoreBounds::exact_maximum(const UnitView& view, const UnitScratch<std::uint16_t>& scratch,
                               int row, double error, F32 factor, int& dots) const {
  const auto dim = static_cast<std::size_t>(view.head_dim);
  const auto i = static_cast<std::size_t>(row), pitch = static_cast<std::size_t>(pitch_);
  const double least = static_cast<double>(row_max_[i]) - 2 * error;
  F32 best = kMinusInfinity;
  for (std::size_t j = 0; j < static_cast<std::size_t>(view.tile.kv_tile); ++j) {
    if (static_cast<double>(approx_[j * pitch + i]) < least) continue;
    if (++dots > kDotsMost) return best;
    const F32 score = numerics::dot(*view.instruction, scratch.q + i * dim, scratch.k + j * dim,
                                    view.head_dim, F32{0});
    best = numerics::max_of(best, score);
  }
  return view.soft.unit == ScoreUnit::kRaw ? best : Fp{view.soft.flush}.mul(best, factor);
}

ScoreBounds::Settled ScoreBounds::settle(const UnitView& view,
                                         const UnitScratch<std::uint16_t>& scratch, int rows,
                                         const RowState* states, F32 factor) {
  if (query_norms_.empty()) prepare(view, scratch, rows);
  ++looked_;
  waited_ = 0;
  const int keys = view.tile.kv_tile, dim = view.head_dim;
  widen(view.dtype, scratch.k, keys_.size(), keys_.data());
  const double key_norm = static_cast<double>(largest_norm(keys_.data(), keys, dim)) * 1.001;
  if (!(key_norm < 0x1p50)) return {};
  approximate_scores(queries_t_.data(), pitch_, keys_.data(), keys, dim, approx_.data(),
                     row_max_.data());
  // The row that is least willing is among those that could be more unwilling than any is for sure.
  double unwilling = -as_double(F32{0x7F800000u});
  std::vector<Bound> bounds;
  for (int i = 0; i < rows; ++i) {
    const double query_norm = query_norms_[static_cast<std::size_t>(i)];
    if (!(query_norm < 0x1p50)) return {};
    const double error = score_error(view, query_norm, key_norm);
    bounds.push_back(bound_of(view, i, states[i].max, as_double(factor), error));
    if (!(bounds.back().upper < kCertain)) return {};
    unwilling = std::max(unwilling, bounds.back().lower);
  }
  Settled settled;
  double largest = 0;
  int dots = 0;
  for (int i = 0; i < rows; ++i) {
    const Bound& bound = bounds[static_cast<std::size_t>(i)];
    if (bound.upper < unwilling - 1e-6 * (1 + std::abs(unwilling))) continue;
    const F32 l = exact_maximum(view, scratch, i, bound.error, factor, dots);
    if (dots > kDotsMost) return {};
    F32 g = states[i].max;
    if (view.skip.reference == Reference::kInclusive) g = numerics::max_of(l, g, view.soft.max_nan);
    const double margin = row_margin(view.lambda, view.scale, l, g);
    if (settled.row >= 0 && !(margin > largest)) continue;
    largest = margin;
    settled.row = i;
    settled.local = l;
  }
  ++settled_;
  return settled;
}

}  // namespace assay::attention
