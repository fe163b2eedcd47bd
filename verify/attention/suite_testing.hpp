// What the tests of the attention suite share: names made into things, and a suite without random
// cases. Decides nothing.
#pragma once

#include <memory>
#include <string_view>

#include "model/core/testing.hpp"
#include "verify/attention/mutants.hpp"
#include "verify/attention/suite.hpp"

namespace assay::verify::testing {

inline AttentionSuiteOptions quick() {
  AttentionSuiteOptions options;
  options.budget_seconds = 0;
  return options;
}

inline const attention::Profile& profile_named(std::string_view name) {
  const auto found = attention::find_profile(name);
  REQUIRE(found.has_value());
  return **found;
}
inline const Property& property_named(std::string_view name) {
  const auto found = find_property(name);
  REQUIRE(found.has_value());
  return **found;
}
inline std::unique_ptr<AttentionSubject> mutant_named(std::string_view name) {
  const auto found = find_attention_mutant(name);
  REQUIRE(found.has_value());
  return mutant_subject(**found);
}

}  // namespace assay::verify::testing
