// What can be said of outputs whose profile is of grade decisions: each decision, with near-ties as
// wide as the arithmetic that is not known makes them, and whether outputs lie within the stated
// bound around fp64 truth over what was kept. Internal to judge.cpp. Decides SPEC VER-21.3.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "verify/attention/given.hpp"
#include "verify/attention/judge.hpp"

namespace assay::verify {

struct WithinGrade {
  attention::Counters counters;             // of the profile's own votes
  std::vector<UnitDifference> differences;  // of decisions, one a unit
  std::vector<TieTaken> ties;
  std::optional<Mismatch> out;  // an element beyond the bound
  std::int64_t elements = 0;    // that were held against it
  // Rows whose scores are so large that the bound says nothing about them.
  std::optional<ScoresTooLarge> too_large;
  std::vector<std::string> notes;
};

// With a mask, what was kept is what it says, if it is right; else what the profile decides, and
// rows of units with a near-tie are not judged.
WithinGrade within_grade(const attention::Emulator& emulator, const Given& given, int threads);

}  // namespace assay::verify
