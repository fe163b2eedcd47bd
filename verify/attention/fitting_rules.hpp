// Which rules reproduce a wrong output: other profiles, and the deviations of the profile itself.
// Internal to judge.cpp. Decides SPEC VER-21.4: what a rule must reproduce to be told.
#pragma once

#include <string>
#include <vector>

#include "verify/attention/given.hpp"

namespace assay::verify {

struct FittingRules {
  std::vector<std::string> sentences;
  std::vector<std::string> profiles;  // other profiles that give every bit
};

// `mismatches` is what is wrong under `profile`; not empty.
FittingRules fitting_rules(const attention::Profile& profile, const attention::Emulator& emulator,
                           const Given& given, const std::vector<Mismatch>& mismatches,
                           const AttentionJudgeOptions& options);

}  // namespace assay::verify
