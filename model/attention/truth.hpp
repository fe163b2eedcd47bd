// Attention in fp64: what mathematics says, dense or with given tiles left out, and how far a
// profile may be from it. The third route next to kernels and their emulation. Decides SPEC ATT-3.
// Not decided here: which tiles are left out (emulate.hpp), rounding (profile.hpp).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "model/attention/problem.hpp"
#include "model/core/expected.hpp"

namespace assay::attention {

// Whether the pair (query row of a query head, key) takes part. Asked only for visible pairs.
using Kept =
    std::function<bool(std::size_t request, int q_head, std::int32_t row, std::int32_t key)>;

// One (row, query head). Logarithms are of the sum of exp(score) over what takes part, the sink
// included; a row with nothing has -inf and output 0 (SPEC ATT-3.3).
struct TruthRow {
  double lse_ln = 0;
  double lse_log2 = 0;
  // The share of the dense softmax, sink included, that was left out: 0 to 1 (SPEC ATT-3.4).
  double dropped_mass = 0;
  std::int64_t dropped_keys = 0;  // visible keys that were left out
  std::int64_t visible_keys = 0;
  double v_max = 0;  // largest |v| among the visible keys
  // Largest sum of |q_i k_i| * scale over the visible keys, each factor counted as at least the
  // format's smallest normal number: what a matrix instruction's alignment is bounded by.
  double score_magnitude = 0;
};

struct Truth {
  int q_heads = 0;
  int v_dim = 0;
  std::vector<double> out;     // [total rows, q_heads, v_dim], times v_scale
  std::vector<TruthRow> rows;  // [total rows, q_heads]

  std::size_t at(std::int64_t row, int q_head) const {
    return static_cast<std::size_t>(row * q_heads + q_head);
  }
};

// Softmax over what `kept` lets take part (SPEC ATT-3.2); all of it if `kept` is empty. Memory: the
// keys and values of one head, and one row of scores. Errors: those of check().
Expected<Truth> truth(const Problem& problem, const Kept& kept = {});

// A certificate for leaving tiles out of one row (SPEC ATT-3.5): no output element differs from the
// dense one by more.
//   by_mass      2 * dropped_mass * v_max. Holds always: dense is a mean of pruned and dropped.
//   published    dropped_keys * lambda * v_max, the bound of the paper, which needs lambda < 1 and
//                a running maximum that only kept tiles raise. It bounds the dropped mass, and so
//                half of the difference: use 2 * published for outputs whose values differ in sign.
struct DropBound {
  double by_mass = 0;
  double published = 0;
};
DropBound drop_bound(const TruthRow& row, double lambda);

struct Resolved;
// How far an output element of a resolved profile may be from the truth over the same keys, by the
// roundings of its arithmetic, summed as absolute values (SPEC ATT-3.6). Loose on purpose: it holds
// for every input whose scores are finite. `tiles` is how many tiles the row's unit kept at most.
double arithmetic_bound(const Resolved& resolved, const Problem& problem, const TruthRow& row,
                        int tiles);
// Its part for the chain of the first product: how far a score may be from the truth, in nats.
double score_bound(const Resolved& resolved, const Problem& problem, const TruthRow& row);

}  // namespace assay::attention
