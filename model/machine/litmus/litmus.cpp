// Names, and questions that a test answers about itself and its outcomes.
#include "model/machine/litmus/litmus.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace assay::machine::litmus {

const char* verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kAllowed:
      return "allowed";
    case Verdict::kForbidden:
      return "forbidden";
    case Verdict::kRace:
      return "race";
    case Verdict::kUnexplored:
      return "unexplored";
  }
  return "?";
}

const char* boundary_name(Boundary boundary) {
  switch (boundary) {
    case Boundary::kPtx:
      return "ptx";
    case Boundary::kFlush:
      return "flush";
    case Boundary::kPdl:
      return "pdl";
  }
  return "?";
}

bool Test::has_several_kernels() const {
  return std::any_of(threads.begin(), threads.end(),
                     [](const ThreadCode& t) { return t.place.kernel > 0; });
}

std::uint32_t Test::num_ranks() const {
  std::uint32_t ranks = 1;
  for (const ThreadCode& t : threads) ranks = std::max(ranks, t.place.rank + 1);
  return ranks;
}

bool satisfies_exists(const Test& test, Outcome outcome) {
  return std::all_of(test.exists.begin(), test.exists.end(), [&](const Comparison& c) {
    return (value_of(outcome, c.observable) == c.value) == c.equal;
  });
}

std::string outcome_text(const Test& test, Outcome outcome) {
  std::string out;
  for (std::uint32_t i = 0; i < test.observables.size(); ++i) {
    const std::uint32_t value = value_of(outcome, i);
    out += fmt::format("{}{}={}", i == 0 ? "" : " ", test.observables[i].text,
                       value == kOtherValue ? "?" : std::to_string(value));
  }
  return out;
}

}  // namespace assay::machine::litmus
