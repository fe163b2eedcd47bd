// fp64 attention with Eigen, one query row at a time. Decides SPEC ATT-3.1 to ATT-3.5.
#include "model/attention/truth.hpp"

#include <Eigen/Core>

#include <cmath>
#include <limits>

#include "model/attention/profile.hpp"
#include "model/numerics/formats.hpp"

namespace assay::attention {
namespace {

using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

double value(Dtype dtype, const std::byte* bits) {
  return static_cast<double>(numerics::to_float(element(dtype, bits)));
}

double smallest_normal(Dtype dtype) {
  return dtype == Dtype::kBf16 ? 0x1p-126 : dtype == Dtype::kF16 ? 0x1p-14 : 0x1p-6;
}

// The keys and values of one head of one request.
struct Head {
  RowMajor k, v;
};

Head read_head(const Problem& p, const Request& r, int kv_head) {
  const int bytes = p.element_bytes();
  Head head;
  head.k.resize(r.kv_len, p.head_dim);
  head.v.resize(r.kv_len, p.v_dim);
  std::vector<std::byte> row(static_cast<std::size_t>(std::max(p.head_dim, p.v_dim) * bytes));
  for (std::int32_t i = 0; i < r.kv_len; ++i) {
    copy_key(p, r, kv_head, i, row.data());
    for (int d = 0; d < p.head_dim; ++d)
      head.k(i, d) = value(p.dtype, &row[static_cast<std::size_t>(d * bytes)]);
    copy_value(p, r, kv_head, i, row.data());
    for (int d = 0; d < p.v_dim; ++d)
      head.v(i, d) = value(p.dtype, &row[static_cast<std::size_t>(d * bytes)]);
  }
  return head;
}

Eigen::VectorXd read_query(const Problem& p, const Request& r, int q_head, std::int32_t i) {
  const int bytes = p.element_bytes();
  std::vector<std::byte> row(static_cast<std::size_t>(p.head_dim * bytes));
  copy_query(p, r, q_head, i, row.data());
  Eigen::VectorXd q(p.head_dim);
  for (int d = 0; d < p.head_dim; ++d)
    q(d) = value(p.dtype, &row[static_cast<std::size_t>(d * bytes)]);
  return q;
}

double score(const Problem& p, const Request& r, int q_head, std::int32_t row, std::int32_t key,
             double dot) {
  double s = dot * (double{p.scale} * p.q_scale * p.k_scale);
  if (p.softcap > 0) s = p.softcap * std::tanh(s / p.softcap);
  if (!p.alibi_slopes.empty())
    s += p.alibi_slopes[static_cast<std::size_t>(q_head)] * (key - (row + r.q_offset));
  return s;  // the order scale, cap, bias, mask is SPEC ATT-3.1
}

struct RowInput {
  const Problem& p;
  std::size_t request;
  const Head& head;
  int q_head;
  std::int32_t row;
  const Kept& kept;
};

// Fills one row of `out` and its description.
TruthRow solve_row(const RowInput& in, double* out) {
  const Problem& p = in.p;
  const Request& r = p.requests[in.request];
  const Eigen::VectorXd q = read_query(p, r, in.q_head, in.row);
  const Eigen::VectorXd dots = in.head.k * q;
  std::vector<double> scores(static_cast<std::size_t>(r.kv_len), kMinusInfinity);
  std::vector<char> takes_part(static_cast<std::size_t>(r.kv_len), 0);
  TruthRow info;
  double largest = kMinusInfinity;
  const bool sink = !p.sinks.empty();
  const double sink_score = sink ? p.sinks[static_cast<std::size_t>(in.q_head)] : kMinusInfinity;
  if (sink) largest = sink_score;
  const double unit = double{p.scale} * p.q_scale * p.k_scale;
  const double least = smallest_normal(p.dtype);
  for (std::int32_t key = 0; key < r.kv_len; ++key) {
    if (!p.sees(in.request, in.row, key)) continue;
    const auto at = static_cast<std::size_t>(key);
    scores[at] = score(p, r, in.q_head, in.row, key, dots(key));
    takes_part[at] = !in.kept || in.kept(in.request, in.q_head, in.row, key);
    ++info.visible_keys;
    info.dropped_keys += takes_part[at] ? 0 : 1;
    largest = std::max(largest, scores[at]);
    info.v_max = std::max(info.v_max, in.head.v.row(key).cwiseAbs().maxCoeff() * p.v_scale);
    info.score_magnitude = std::max(info.score_magnitude,
                                    in.head.k.row(key).transpose().cwiseAbs().cwiseMax(least).dot(
                                        q.cwiseAbs().cwiseMax(least)) *
                                        unit);
  }
  Eigen::VectorXd sum = Eigen::VectorXd::Zero(p.v_dim);
  double mass = sink ? std::exp(sink_score - largest) : 0;
  double dropped = 0;
  for (std::int32_t key = 0; key < r.kv_len; ++key) {
    const auto at = static_cast<std::size_t>(key);
    if (scores[at] == kMinusInfinity) continue;
    const double weight = std::exp(scores[at] - largest);
    (takes_part[at] ? mass : dropped) += weight;
    if (takes_part[at]) sum += weight * in.head.v.row(key).transpose();
  }
  // A mass that is NaN stays one: it is not that nothing was kept.
  for (int d = 0; d < p.v_dim; ++d) out[d] = mass == 0 ? 0 : sum(d) / mass * p.v_scale;
  info.lse_ln = mass == 0 ? kMinusInfinity : largest + std::log(mass);
  info.lse_log2 = info.lse_ln / std::log(2.0);
  info.dropped_mass = dropped > 0 ? dropped / (dropped + mass) : 0;
  return info;
}

}  // namespace

Expected<Truth> truth(const Problem& problem, const Kept& kept) {
  ASSAY_CHECK(check(problem));
  Truth result;
  result.q_heads = problem.q_heads;
  result.v_dim = problem.v_dim;
  const std::int64_t total = problem.first_row(problem.requests.size());
  result.rows.resize(static_cast<std::size_t>(total * problem.q_heads));
  result.out.resize(result.rows.size() * static_cast<std::size_t>(problem.v_dim));
  for (std::size_t i = 0; i < problem.requests.size(); ++i) {
    const Request& r = problem.requests[i];
    if (r.q_len == 0) continue;
    const std::int64_t first = problem.first_row(i);
    for (int kv_head = 0; kv_head < problem.kv_heads; ++kv_head) {
      const Head head = read_head(problem, r, kv_head);
      for (int g = 0; g < problem.group(); ++g) {
        const int q_head = kv_head * problem.group() + g;
        for (std::int32_t row = 0; row < r.q_len; ++row) {
          const std::size_t at = result.at(first + row, q_head);
          result.rows[at] = solve_row({problem, i, head, q_head, row, kept},
                                      &result.out[at * static_cast<std::size_t>(problem.v_dim)]);
        }
      }
    }
  }
  return result;
}

DropBound drop_bound(const TruthRow& row, double lambda) {
  return {2 * row.dropped_mass * row.v_max,
          static_cast<double>(row.dropped_keys) * lambda * row.v_max};
}

namespace {
// One instruction cuts L products and c below 2^-F of the largest, then rounds its result.
double instruction_step(const Resolved& r, const Problem& p) {
  const numerics::Rule& rule = r.qk->arithmetic.rule;
  return (rule.products + 1) * std::ldexp(1.0, -rule.fraction_bits) +
         (p.dtype == Dtype::kF8E4m3 ? 0x1p-13 : 0x1p-23);
}
}  // namespace

double score_bound(const Resolved& r, const Problem& p, const TruthRow& row) {
  return p.head_dim / r.qk->arithmetic.k * instruction_step(r, p) * row.score_magnitude;
}

double arithmetic_bound(const Resolved& r, const Problem& p, const TruthRow& row, int tiles) {
  const bool fp8 = p.dtype == Dtype::kF8E4m3;
  const double step = instruction_step(r, p);
  const double a = row.score_magnitude;
  const double score_error = score_bound(r, p, row);
  // Scale, products with the maximum, the fused sum, ex2, and once more for every correction.
  const double weight_error = score_error + (tiles + 2) * 0x1p-19 * (a + 1);
  const double p_relative = fp8 ? 0x1p-4 : p.dtype == Dtype::kF16 ? 0x1p-11 : 0x1p-8;
  const double p_absolute = fp8                      ? std::ldexp(0x1p-10, -r.softmax.p_log2)
                            : p.dtype == Dtype::kF16 ? 0x1p-25
                                                     : 0;
  const double chain = double{step} * tiles * r.tile.kv_tile / r.pv->arithmetic.k;
  const double additions = (tiles * (r.tile.kv_tile / 4.0 + 2) + 8) * 0x1p-23;
  const double output = p.out_dtype == Dtype::kF16 ? 0x1p-11 : 0x1p-8;
  const double relative = 2 * std::expm1(2 * weight_error) + p_relative +
                          p_absolute * tiles * r.tile.kv_tile + 2 * chain + additions + output +
                          0x1p-20;
  return row.v_max * relative + (p.out_dtype == Dtype::kF16 ? 0x1p-24 : 0x1p-126);
}

}  // namespace assay::attention
