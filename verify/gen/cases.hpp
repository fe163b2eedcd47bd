// Random cases, and the way to smaller ones. Shrinking happens in case space, toward one rank, one
// pick, one element, one token, one round, so what is reported at the end is a line for --case and
// not a pile of bytes. Decides SPEC VER-6.4. RapidCheck's view of the same is arbitrary.hpp.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "model/core/case_text.hpp"

namespace assay::verify {

// Upper bounds of random cases. Sizes are products, so each stays small.
struct CaseLimits {
  std::int32_t ep = 8;
  std::int32_t top_k = 8;
  std::int32_t hidden = 96;
  std::int32_t tokens = 6;
  std::int32_t rounds = 3;
};

// Legal by check_case, top_k one that combine has a tree for. `word(limit)` gives a number below
// limit; the sizes come first, so that RapidCheck and a counter can both drive it.
using Dice = std::function<std::uint64_t(std::uint64_t limit)>;
MoeCase random_case(const CaseLimits& limits, const Dice& dice);
// Case `index` of a seed.
MoeCase random_case(const CaseLimits& limits, std::uint64_t seed, std::uint64_t index);

// Legal cases that are smaller in one respect, the boldest first. Empty for the smallest case.
// Repeated replacement by any of them ends.
std::vector<MoeCase> smaller_cases(const MoeCase& c);

}  // namespace assay::verify
