// Which experts the tokens of one rank pick: the routings of Axes::Routing and the invalid ids
// among them. Decides SPEC VER-6.2.
#pragma once

#include <cstdint>
#include <vector>

#include "verify/gen/gen.hpp"

namespace assay::verify {

// out: [num_tokens, top_k]
void fill_routing(const Scenario& scenario, std::int32_t round, std::uint64_t key, RankId src,
                  std::int32_t num_tokens, std::vector<std::int32_t>& out);

// Which of top_k picks have a row of their own: bit k. Counting `index` up from 0 goes through all
// masks where there are at most 64, else through every class of holes (none, all, one, all but one,
// every second, a half) and then random masks.
std::uint32_t hole_pattern(std::int32_t top_k, std::uint64_t index);

// The ranks in an order that only the key decides.
std::vector<std::int32_t> shuffled_ranks(std::int32_t ep_size, std::uint64_t key);

// A hash of two words, and a number below `limit` from one (limit at least 1).
std::uint64_t hash(std::uint64_t a, std::uint64_t b);
std::uint64_t random_below(std::uint64_t word, std::uint64_t limit);

}  // namespace assay::verify
