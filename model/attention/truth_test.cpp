// The fp64 truth against its own definition, and what its bounds bound.
#include "model/attention/truth.hpp"

#include <cmath>

#include "model/attention/attention_testing.hpp"

namespace {

using namespace assay;
using namespace assay::attention;
using namespace assay::attention::testing;

const Profile& ours() { return profile_named("assay-prefill-sm90"); }

double at(const Tensor& t, const Problem& p, int row, int heads, int head, int dim, int d) {
  const std::size_t place = static_cast<std::size_t>((row * heads + head) * dim + d);
  return static_cast<double>(numerics::to_float(
      element(t.dtype, &t.bytes[place * static_cast<std::size_t>(p.element_bytes())])));
}

bool close(double a, double b) { return std::abs(a - b) <= 1e-9 * (1 + std::abs(b)); }

// One (row, head) by the definition, without a maximum: long double holds exp of these scores.
struct Direct {
  std::vector<double> out;
  long double sum = 0;
};
Direct direct(const Built& b, std::size_t request, int q_head, int row) {
  const Problem& p = b.problem;
  const Request& r = p.requests[request];
  int q_row = row, kv_row = 0;
  for (std::size_t i = 0; i < request; ++i) {
    q_row += p.requests[i].q_len;
    kv_row += p.requests[i].kv_len;
  }
  Direct result;
  std::vector<long double> sums(static_cast<std::size_t>(p.v_dim));
  if (!p.sinks.empty())
    result.sum += std::exp(static_cast<long double>(p.sinks[static_cast<std::size_t>(q_head)]));
  for (int key = 0; key < r.kv_len; ++key) {
    if (!p.sees(request, row, key)) continue;
    long double s = 0;
    for (int d = 0; d < p.head_dim; ++d)
      s += static_cast<long double>(at(b.q, p, q_row, p.q_heads, q_head, p.head_dim, d)) *
           at(b.k, p, kv_row + key, p.kv_heads, q_head / p.group(), p.head_dim, d);
    s *= p.scale;
    if (p.softcap > 0) s = p.softcap * std::tanh(s / p.softcap);
    if (!p.alibi_slopes.empty())
      s += static_cast<long double>(p.alibi_slopes[static_cast<std::size_t>(q_head)]) *
           (key - row - r.q_offset);
    const long double weight = std::exp(s);
    result.sum += weight;
    for (int d = 0; d < p.v_dim; ++d)
      sums[static_cast<std::size_t>(d)] +=
          weight * at(b.v, p, kv_row + key, p.kv_heads, q_head / p.group(), p.v_dim, d);
  }
  for (const long double x : sums)
    result.out.push_back(result.sum > 0 ? static_cast<double>(x / result.sum) : 0);
  return result;
}

}  // namespace

TEST_CASE("the truth is softmax by its definition, with cap, bias, sinks and masks",
          "[ATT-3.1][ATT-3.2][ATT-3.3]") {
  prop("any problem", [] {
    Case c = *cases(ours(), {10, 30, 2, 2, true});
    c.spread = 1;
    auto built = build(c);
    Problem& p = built->problem;
    std::vector<float> sinks, slopes;
    for (int h = 0; h < c.q_heads; ++h) {
      sinks.push_back(0.5f * static_cast<float>(h) - 1);
      slopes.push_back(0.125f * static_cast<float>(h + 1));
    }
    if (*rc::gen::arbitrary<bool>()) p.sinks = sinks;
    if (*rc::gen::arbitrary<bool>()) p.alibi_slopes = slopes;
    if (*rc::gen::arbitrary<bool>()) p.softcap = 3;
    const auto result = truth(p);
    RC_ASSERT(result.has_value());
    std::int64_t row = 0;
    for (std::size_t i = 0; i < p.requests.size(); ++i)
      for (int q = 0; q < p.requests[i].q_len; ++q, ++row)
        for (int h = 0; h < p.q_heads; ++h) {
          const Direct expected = direct(*built, i, h, q);
          const TruthRow& info = result->rows[result->at(row, h)];
          if (expected.sum == 0) {
            RC_ASSERT(std::isinf(info.lse_ln) && info.lse_ln < 0);
          } else {
            RC_ASSERT(close(info.lse_ln, static_cast<double>(std::log(expected.sum))));
            RC_ASSERT(close(info.lse_log2 * std::log(2.0), info.lse_ln));
          }
          for (int d = 0; d < p.v_dim; ++d)
            RC_ASSERT(close(result->out[result->at(row, h) * static_cast<std::size_t>(p.v_dim) +
                                        static_cast<std::size_t>(d)],
                            expected.out[static_cast<std::size_t>(d)]));
        }
  });
}

TEST_CASE("what is left out shows as mass, in the sum, and within the certificate",
          "[ATT-3.2][ATT-3.4][ATT-3.5]") {
  double nearest = 0;
  prop("any problem, any tiles", [&] {
    const Case c = *cases(ours(), {20, 60, 2, 2, true});
    const auto built = build(c);
    const unsigned pattern = *rc::gen::arbitrary<unsigned>();
    const auto kept = [pattern](std::size_t, int, std::int32_t, std::int32_t key) {
      return (pattern >> (key / 8 % 32) & 1) != 0;
    };
    const auto dense = truth(built->problem);
    const auto pruned = truth(built->problem, kept);
    RC_ASSERT(dense.has_value() && pruned.has_value());
    for (std::size_t i = 0; i < dense->rows.size(); ++i) {
      const TruthRow& d = dense->rows[i];
      const TruthRow& p = pruned->rows[i];
      if (d.visible_keys == 0) continue;
      RC_ASSERT(d.dropped_keys == 0 && d.dropped_mass == 0);
      // exp(lse) of what was kept is 1 - mass of the dense one.
      RC_ASSERT(close(std::exp(p.lse_ln - d.lse_ln), 1 - p.dropped_mass));
      const DropBound bound = drop_bound(p, 0.5);
      if (p.dropped_keys == p.visible_keys) continue;
      for (int v = 0; v < c.v_dim; ++v) {
        const std::size_t at = i * static_cast<std::size_t>(c.v_dim) + static_cast<std::size_t>(v);
        const double error = std::abs(dense->out[at] - pruned->out[at]);
        RC_ASSERT(error <= bound.by_mass * (1 + 1e-9) + 1e-12);
        if (bound.by_mass > 0) nearest = std::max(nearest, error / bound.by_mass);
      }
    }
  });
  REQUIRE(nearest > 0.2);  // the bound is not idle
}

TEST_CASE("the published bound bounds the dropped mass, and half of the difference", "[ATT-3.5]") {
  // One kept key of weight 1, four dropped ones just below lambda, with values of opposite sign.
  Case c;
  c.kv_lens = {5};
  auto built = build(c);
  built->q.fill(c.dtype, 1, 1, 32, [](int, int, int d) { return d == 0 ? 1.0f : 0.0f; });
  built->k.fill(c.dtype, 5, 1, 32, [](int i, int, int d) {
    return d == 0 && i > 0 ? -13.0f : 0.0f;  // times 1/sqrt(32): -2.298 nats
  });
  built->v.fill(c.dtype, 5, 1, 32, [](int i, int, int) { return i == 0 ? 1.0f : -1.0f; });
  Problem& p = built->problem;
  Request& r = p.requests[0];
  r.q = contiguous_rows(built->q.bytes.data(), 0, 1, 1, 32, 2);
  r.k = contiguous_rows(built->k.bytes.data(), 0, 5, 1, 32, 2);
  r.v = contiguous_rows(built->v.bytes.data(), 0, 5, 1, 32, 2);
  const double lambda = 0.101;
  const auto dense = truth(p);
  const auto pruned =
      truth(p, [](std::size_t, int, std::int32_t, std::int32_t key) { return key == 0; });
  const DropBound bound = drop_bound(pruned->rows[0], lambda);
  const double error = std::abs(dense->out[0] - pruned->out[0]);
  REQUIRE(pruned->rows[0].dropped_mass < bound.published);
  REQUIRE(error > bound.published);
  REQUIRE(error < 2 * bound.published);
  REQUIRE(error <= bound.by_mass * (1 + 1e-12));
}
