// The routings, one function each, from a stream of hashed words.
#include "verify/gen/routing_gen.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "model/core/contract.hpp"
#include "model/core/prng.hpp"
#include "model/moe/placement.hpp"

namespace assay::verify {

namespace {

using Picks = std::vector<std::int32_t>;

// A stream of random words from a key.
class Words {
 public:
  explicit Words(std::uint64_t key) : key_(key) {}
  std::uint64_t next() { return hash(key_, ++counter_); }
  std::int32_t below(std::int32_t limit) {
    return static_cast<std::int32_t>(random_below(next(), static_cast<std::uint64_t>(limit)));
  }

 private:
  std::uint64_t key_;
  std::uint64_t counter_ = 0;
};

void add_distinct(Picks& picks, std::int32_t id, std::int32_t experts) {
  // The next free one: top_k is at most experts, so there is one.
  while (std::find(picks.begin(), picks.end(), id) != picks.end()) id = (id + 1) % experts;
  picks.push_back(id);
}

Picks uniform(const MoeCase& c, Words& words) {
  Picks picks;
  while (static_cast<std::int32_t>(picks.size()) < c.top_k)
    add_distinct(picks, words.below(c.experts), c.experts);
  return picks;
}

// The cube of a uniform number: half of the picks are among the first eighth of the experts.
Picks skewed(const MoeCase& c, Words& words) {
  Picks picks;
  while (static_cast<std::int32_t>(picks.size()) < c.top_k) {
    const std::int64_t u = words.below(1024);
    const std::int64_t id = c.experts * u * u * u / (std::int64_t{1} << 30);
    add_distinct(picks, static_cast<std::int32_t>(id), c.experts);
  }
  return picks;
}

// Half of the tokens have all their picks at one rank; a rank with fewer experts than top_k gets
// some of them twice. The others keep two ranks, the smallest number that has both a duplicate and
// a choice of who is first.
Picks one_rank(const MoeCase& c, const moe::Placement& placement, Words& words) {
  const RankId first(words.below(c.ep));
  const RankId second = words.below(2) == 0 ? first : RankId(words.below(c.ep));
  Picks picks;
  for (std::int32_t k = 0; k < c.top_k; ++k) {
    const moe::ExpertRange own = placement.experts_of(words.below(2) == 0 ? first : second);
    picks.push_back(own.first.value() + words.below(own.count));
  }
  return picks;
}

Picks duplicates(const MoeCase& c, Words& words) {
  const std::int32_t pool = std::max(1, std::min(c.experts, c.top_k / 2 + 1));
  const std::int32_t start = words.below(c.experts);
  Picks picks;
  for (std::int32_t k = 0; k < c.top_k; ++k)
    picks.push_back((start + words.below(pool) * std::max(1, c.experts / pool)) % c.experts);
  return picks;
}

std::int32_t invalid_id(const Scenario& scenario, Words& words) {
  constexpr std::int32_t kLowest = std::numeric_limits<std::int32_t>::min();
  constexpr std::int32_t kHighest = std::numeric_limits<std::int32_t>::max();
  const std::int32_t experts = scenario.moe_case.experts;
  const std::int32_t ids[] = {-1,
                              experts,
                              kLowest,
                              kHighest,
                              -2,
                              experts + 1,
                              -experts,
                              2 * experts,
                              kLowest + 1,
                              kHighest - 1,
                              scenario.setup.invalid_expert_id};
  return ids[words.below(static_cast<std::int32_t>(std::size(ids)))];
}

// Valid picks go to ranks of their own as far as there are ranks; a hole is an invalid id or a
// second pick of a rank that an earlier pick already has. Where all ids must be valid it is the
// latter, and the first pick is no hole.
Picks hole_picks(const Scenario& scenario, const moe::Placement& placement, std::uint64_t index,
                 Words& words) {
  const MoeCase& c = scenario.moe_case;
  const std::uint32_t valid = hole_pattern(c.top_k, index);
  const auto ranks = shuffled_ranks(c.ep, words.next());
  const auto expert_of = [&](std::int32_t rank) {
    const moe::ExpertRange own = placement.experts_of(RankId(rank));
    return own.first.value() + words.below(own.count);
  };
  Picks picks;
  std::size_t used = 0;
  for (std::int32_t k = 0; k < c.top_k; ++k) {
    const bool only_valid = scenario.axes.valid_ids;
    if (used < ranks.size() && ((valid >> k & 1) != 0 || (only_valid && used == 0))) {
      picks.push_back(expert_of(ranks[used++]));
    } else if (used > 0 && (only_valid || words.below(2) == 0)) {
      picks.push_back(
          expert_of(ranks[static_cast<std::size_t>(words.below(static_cast<std::int32_t>(used)))]));
    } else {
      picks.push_back(invalid_id(scenario, words));
    }
  }
  return picks;
}

}  // namespace

void fill_routing(const Scenario& scenario, std::int32_t round, std::uint64_t key, RankId src,
                  std::int32_t num_tokens, std::vector<std::int32_t>& out) {
  const MoeCase& c = scenario.moe_case;
  const auto placement = moe::Placement::contiguous(c.ep, c.experts);
  CONTRACT(placement.has_value());  // make_scenario checked
  const auto rank = static_cast<std::uint64_t>(src.value());
  out.clear();
  for (std::int32_t token = 0; token < num_tokens; ++token) {
    Words words(hash(hash(key, 0x1D5 + rank), static_cast<std::uint64_t>(token)));
    Picks picks;
    switch (scenario.axes.routing) {
      case Axes::Routing::kUniform:
        picks = uniform(c, words);
        break;
      case Axes::Routing::kSkewed:
        picks = skewed(c, words);
        break;
      case Axes::Routing::kOneRank:
        picks = one_rank(c, *placement, words);
        break;
      case Axes::Routing::kDuplicates:
        picks = duplicates(c, words);
        break;
      case Axes::Routing::kHolePatterns: {
        // Tokens of one round count through: with enough of them every class occurs in round 0.
        const std::uint64_t index =
            (static_cast<std::uint64_t>(round) * static_cast<std::uint64_t>(c.max_tokens) +
             static_cast<std::uint64_t>(token)) *
                static_cast<std::uint64_t>(c.ep) +
            rank;
        picks = hole_picks(scenario, *placement, index, words);
        break;
      }
    }
    const std::int32_t invalid = scenario.axes.valid_ids ? 0 : scenario.axes.invalid_percent;
    for (std::int32_t& pick : picks)
      if (words.below(100) < invalid) pick = invalid_id(scenario, words);
    out.insert(out.end(), picks.begin(), picks.end());
  }
}

std::uint32_t hole_pattern(std::int32_t top_k, std::uint64_t index) {
  const std::uint32_t all = (std::uint32_t{1} << top_k) - 1;  // top_k is at most 22
  if (top_k <= 6) return static_cast<std::uint32_t>(index) & all;
  const std::uint32_t half = (std::uint32_t{1} << (top_k / 2)) - 1;
  const std::uint32_t fixed[] = {all, 0, 0x55555555u & all, 0xAAAAAAAAu & all, half, all & ~half};
  if (index < std::size(fixed)) return fixed[index];
  index -= std::size(fixed);
  const auto picks = static_cast<std::uint64_t>(top_k);
  if (index < picks) return std::uint32_t{1} << index;
  index -= picks;
  if (index < picks) return all & ~(std::uint32_t{1} << index);
  return static_cast<std::uint32_t>(hash(0x401E, index)) & all;
}

std::vector<std::int32_t> shuffled_ranks(std::int32_t ep_size, std::uint64_t key) {
  std::vector<std::int32_t> ranks(static_cast<std::size_t>(ep_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  for (std::size_t i = ranks.size(); i > 1; --i)
    std::swap(ranks[i - 1], ranks[random_below(hash(key, i), i)]);
  return ranks;
}

std::uint64_t hash(std::uint64_t a, std::uint64_t b) {
  return scrambled(a + kSplitmix64Step * (b + 1));  // what splitmix64 from a gives at step b
}

std::uint64_t random_below(std::uint64_t word, std::uint64_t limit) {
  CONTRACT(limit >= 1, limit);
  // The bias is at most limit / 2^32, which no test of ours can see.
  return ((word >> 32) * limit) >> 32;
}

}  // namespace assay::verify
