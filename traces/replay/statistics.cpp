// See statistics.hpp.
#include "traces/replay/statistics.hpp"

#include <algorithm>
#include <numeric>

#include "model/core/contract.hpp"

namespace assay::traces {
namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

double fraction(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

void add_all(std::vector<std::int64_t>& sums, const std::vector<std::int64_t>& more) {
  CONTRACT(sums.size() == more.size(), sums.size(), more.size());
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += more[i];
}

// The largest over the mean; `values` has a sum above zero.
double imbalance(const std::vector<std::int64_t>& values) {
  const std::int64_t sum = std::accumulate(values.begin(), values.end(), std::int64_t{0});
  const std::int64_t largest = *std::max_element(values.begin(), values.end());
  return static_cast<double>(largest) * static_cast<double>(values.size()) /
         static_cast<double>(sum);
}

}  // namespace

Statistics::Statistics(std::int32_t ep, std::int32_t experts, std::int32_t layers)
    : ep_size(ep),
      num_experts(experts),
      num_layers(layers),
      rows_by_pair(at(std::int64_t{ep} * ep)),
      tokens_by_rank(at(ep)),
      picks_by_expert(at(std::int64_t{layers} * experts)) {}

void Statistics::add(const moe::Placement& placement, const moe::Routing& routing,
                     const moe::DispatchPlan& plan, std::int32_t layer) {
  CONTRACT(plan.ep_size() == ep_size && layer >= 0 && layer < num_layers, ep_size, layer);
  std::vector<std::int64_t> received(at(ep_size));
  for (RankId dst{0}; dst.value() < ep_size; dst = dst.next()) {
    for (RankId src{0}; src.value() < ep_size; src = src.next()) {
      const std::int64_t n = plan.recv_counter(dst, src);
      rows_by_pair[at(std::int64_t{src.value()} * ep_size + dst.value())] += n;
      received[at(dst.value())] += n;
      empty_pairs += n == 0 ? 1 : 0;
    }
    empty_ranks += received[at(dst.value())] == 0 ? 1 : 0;
    occupancy.add(
        fraction(received[at(dst.value())], std::int64_t{ep_size} * plan.max_tokens_per_rank()));
  }
  std::vector<std::int64_t> picked(at(num_experts));
  for (RankId src{0}; src.value() < ep_size; src = src.next()) {
    tokens_by_rank[at(src.value())] += routing.num_tokens(src);
    for (const std::int32_t id : routing.topk_ids(src)) {
      if (const auto place = placement.place_of_wire(id)) ++picked[at(place->value())];
    }
  }
  std::int64_t round_picks = 0;
  for (std::int32_t expert = 0; expert < num_experts; ++expert) {
    picks_by_expert[at(std::int64_t{layer} * num_experts + expert)] += picked[at(expert)];
    empty_experts += picked[at(expert)] == 0 ? 1 : 0;
    round_picks += picked[at(expert)];
  }
  rounds += 1;
  tokens += routing.total_tokens();
  picks += round_picks;
  rows += plan.total_rows();
  if (plan.total_rows() == 0) return;
  rank_imbalance.add(imbalance(received));
  expert_imbalance.add(imbalance(picked));
  busiest_expert.add(static_cast<double>(*std::max_element(picked.begin(), picked.end())));
}

void Statistics::merge(const Statistics& other) {
  rounds += other.rounds;
  tokens += other.tokens;
  picks += other.picks;
  rows += other.rows;
  empty_pairs += other.empty_pairs;
  empty_ranks += other.empty_ranks;
  empty_experts += other.empty_experts;
  add_all(rows_by_pair, other.rows_by_pair);
  add_all(tokens_by_rank, other.tokens_by_rank);
  add_all(picks_by_expert, other.picks_by_expert);
  rank_imbalance.merge(other.rank_imbalance);
  expert_imbalance.merge(other.expert_imbalance);
  busiest_expert.merge(other.busiest_expert);
  occupancy.merge(other.occupancy);
}

double Statistics::empty_pair_fraction() const {
  return fraction(empty_pairs, rounds * ep_size * ep_size);
}
double Statistics::empty_rank_fraction() const { return fraction(empty_ranks, rounds * ep_size); }
double Statistics::empty_expert_fraction() const {
  return fraction(empty_experts, rounds * num_experts);
}
double Statistics::ranks_per_token() const { return fraction(rows, tokens); }

std::int64_t Statistics::rows_received(std::int32_t rank) const {
  std::int64_t sum = 0;
  for (std::int64_t src = 0; src < ep_size; ++src) sum += rows_by_pair[at(src * ep_size + rank)];
  return sum;
}

std::int64_t Statistics::rows_sent(std::int32_t rank) const {
  const auto first = rows_by_pair.begin() + std::int64_t{rank} * ep_size;
  return std::accumulate(first, first + ep_size, std::int64_t{0});
}

std::int64_t Statistics::picks_of_expert(std::int32_t expert) const {
  std::int64_t sum = 0;
  for (std::int64_t layer = 0; layer < num_layers; ++layer)
    sum += picks_by_expert[at(layer * num_experts + expert)];
  return sum;
}

double Statistics::layer_imbalance(std::int32_t layer) const {
  const auto first = picks_by_expert.begin() + std::int64_t{layer} * num_experts;
  const std::vector<std::int64_t> of_layer(first, first + num_experts);
  const bool empty = std::all_of(of_layer.begin(), of_layer.end(), [](auto n) { return n == 0; });
  return empty ? 0 : imbalance(of_layer);
}

void Spread::add(double value) {
  sum += value;
  worst = std::max(worst, value);
  ++count;
}

void Spread::merge(const Spread& other) {
  sum += other.sum;
  worst = std::max(worst, other.worst);
  count += other.count;
}

}  // namespace assay::traces
