// Drawing a legal case, and the steps to smaller ones.
#include "verify/gen/cases.hpp"

#include <algorithm>

#include "model/core/contract.hpp"
#include "model/moe/reduction_tree.hpp"
#include "verify/gen/routing_gen.hpp"

namespace assay::verify {

namespace {

// Brings a case back within the limits after one field got smaller.
MoeCase legal(MoeCase c) {
  c.tokens.resize(static_cast<std::size_t>(c.ep), 1);
  for (std::int32_t& tokens : c.tokens) tokens = std::min(tokens, c.max_tokens);
  c.experts = std::max({c.experts, c.ep, c.top_k});
  return c;
}

// Half, one less: a big step and a sure one.
std::vector<std::int32_t> steps_down(std::int32_t value, std::int32_t lowest) {
  std::vector<std::int32_t> steps;
  for (const std::int32_t next : {lowest, value / 2, value - 1}) {
    if (next >= lowest && next < value &&
        std::find(steps.begin(), steps.end(), next) == steps.end())
      steps.push_back(next);
  }
  return steps;
}

std::int32_t lower_top_k(std::int32_t top_k) {
  std::int32_t lower = 1;
  for (const std::int32_t allowed : moe::allowed_top_k())
    if (allowed < top_k) lower = allowed;
  return lower;
}

void add(std::vector<MoeCase>& cases, const MoeCase& from, MoeCase c) {
  c = legal(std::move(c));
  if (c == from || !check_case(c)) return;
  if (std::find(cases.begin(), cases.end(), c) == cases.end()) cases.push_back(std::move(c));
}

void add_fewer_tokens(std::vector<MoeCase>& cases, const MoeCase& c) {
  for (const std::int32_t to : {0, 1}) {
    MoeCase all = c;
    for (std::int32_t& tokens : all.tokens) tokens = std::min(tokens, to);
    add(cases, c, all);
  }
  for (std::size_t rank = 0; rank < c.tokens.size(); ++rank) {
    for (const std::int32_t tokens : steps_down(c.tokens[rank], 0)) {
      MoeCase one = c;
      one.tokens[rank] = tokens;
      add(cases, c, one);
    }
  }
}

}  // namespace

MoeCase random_case(const CaseLimits& limits, const Dice& dice) {
  const auto between = [&](std::int32_t low, std::int32_t high) {
    return low + static_cast<std::int32_t>(dice(static_cast<std::uint64_t>(high - low + 1)));
  };
  MoeCase c;
  c.ep = between(1, limits.ep);
  const auto allowed = moe::allowed_top_k();
  const auto num_allowed = static_cast<std::int32_t>(std::count_if(
      allowed.begin(), allowed.end(), [&](std::int32_t k) { return k <= limits.top_k; }));
  c.top_k = allowed[static_cast<std::size_t>(between(0, num_allowed - 1))];
  c.hidden = between(1, limits.hidden);
  c.rounds = between(1, limits.rounds);
  // Every third case has one expert per rank, or a remainder.
  const std::int32_t lowest = std::max(c.ep, c.top_k);
  c.experts = between(0, 2) == 0 ? lowest : between(lowest, 4 * lowest);
  c.max_tokens = between(1, limits.tokens);
  c.tokens.clear();
  for (std::int32_t rank = 0; rank < c.ep; ++rank) c.tokens.push_back(between(0, c.max_tokens));
  c.seed = 1 + dice(1'000'000);
  return c;
}

MoeCase random_case(const CaseLimits& limits, std::uint64_t seed, std::uint64_t index) {
  std::uint64_t counter = 0;
  const std::uint64_t key = hash(seed, index);
  return random_case(
      limits, [&](std::uint64_t limit) { return random_below(hash(key, ++counter), limit); });
}

std::vector<MoeCase> smaller_cases(const MoeCase& c) {
  std::vector<MoeCase> cases;
  const auto with = [&](std::int32_t MoeCase::*field, std::int32_t value) {
    MoeCase smaller = c;
    smaller.*field = value;
    add(cases, c, smaller);
  };
  for (const std::int32_t ep : steps_down(c.ep, 1)) with(&MoeCase::ep, ep);
  for (const std::int32_t rounds : steps_down(c.rounds, 1)) with(&MoeCase::rounds, rounds);
  add_fewer_tokens(cases, c);
  if (c.top_k > 1) {
    with(&MoeCase::top_k, 1);
    with(&MoeCase::top_k, lower_top_k(c.top_k));
  }
  for (const std::int32_t hidden : steps_down(c.hidden, 1)) with(&MoeCase::hidden, hidden);
  const std::int32_t most = std::max(1, *std::max_element(c.tokens.begin(), c.tokens.end()));
  for (const std::int32_t max : steps_down(c.max_tokens, most)) with(&MoeCase::max_tokens, max);
  for (const std::int32_t experts : steps_down(c.experts, std::max(c.ep, c.top_k)))
    with(&MoeCase::experts, experts);
  if (c.seed > 1) {
    MoeCase first_seed = c;
    first_seed.seed = 1;
    add(cases, c, first_seed);
  }
  return cases;
}

}  // namespace assay::verify
