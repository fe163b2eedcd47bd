// What a replay tells about the routing itself: load by rank and expert, imbalance, empty pairs and
// ranks, traffic, how full the receive buffers get. Computed from the plan of dispatch and the
// picks, never from what a subject reports, so it is the same whatever is under test (SPEC
// TRC-3.5).
#pragma once

#include <cstdint>
#include <vector>

#include "model/moe/dispatch.hpp"
#include "model/moe/placement.hpp"
#include "model/moe/routing.hpp"

namespace assay::traces {

// A mean and a worst value over rounds.
struct Spread {
  double sum = 0;
  double worst = 0;
  std::int64_t count = 0;

  void add(double value);
  void merge(const Spread& other);
  double mean() const { return count == 0 ? 0 : sum / static_cast<double>(count); }
};

// Sums over rounds. Own rank included everywhere: a row that stays on its rank is a row.
struct Statistics {
  std::int32_t ep_size = 1;
  std::int32_t num_experts = 1;
  std::int32_t num_layers = 1;

  std::int64_t rounds = 0;
  std::int64_t tokens = 0;
  std::int64_t picks = 0;          // that name an expert
  std::int64_t rows = 0;           // (token, rank): picks of one token at one rank are one row
  std::int64_t empty_pairs = 0;    // (round, source, destination) without a row
  std::int64_t empty_ranks = 0;    // (round, destination) without a row
  std::int64_t empty_experts = 0;  // (round, expert) without a pick

  std::vector<std::int64_t> rows_by_pair;     // [source, destination]
  std::vector<std::int64_t> tokens_by_rank;   // [source]
  std::vector<std::int64_t> picks_by_expert;  // [layer, expert]

  // Per round: the largest share over the mean share. 1 is a perfect balance. Rounds without a row
  // do not count.
  Spread rank_imbalance;    // rows that a rank receives
  Spread expert_imbalance;  // picks that an expert gets
  Spread busiest_expert;    // its picks
  Spread occupancy;         // of a rank's receive buffer: rows over ep_size * max_tokens_per_rank

  Statistics() = default;
  Statistics(std::int32_t ep_size, std::int32_t num_experts, std::int32_t num_layers);

  // One round of `layer` (0..num_layers-1).
  void add(const moe::Placement& placement, const moe::Routing& routing,
           const moe::DispatchPlan& plan, std::int32_t layer);
  void merge(const Statistics& other);

  double empty_pair_fraction() const;
  double empty_rank_fraction() const;
  double empty_expert_fraction() const;
  double ranks_per_token() const;
  std::int64_t rows_received(std::int32_t rank) const;
  std::int64_t rows_sent(std::int32_t rank) const;
  std::int64_t picks_of_expert(std::int32_t expert) const;  // all layers
  // Over all rounds of a layer together: the busiest expert's picks over the mean.
  double layer_imbalance(std::int32_t layer) const;
};

}  // namespace assay::traces
