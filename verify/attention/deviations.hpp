// The rules that a wrong attention output is tried against: the profile or the problem with one
// thing changed, as kernels get it wrong. Decides which there are and how they are told (SPEC
// VER-21.4). Whether one reproduces what was written is decided in judge.cpp.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/attention/attention.hpp"

namespace assay::verify {

struct AttentionDeviation {
  std::string sentence;  // "fits instead: tiles are skipped with <= rather than <"
  attention::Profile profile;
  attention::Problem problem;
  bool lse_only = false;  // explains an LSE next to right outputs
  // What the two point into, where that is neither the original nor static.
  std::vector<std::shared_ptr<const void>> storage;
};

// All that make sense for a profile and a problem whose first wrong place is in `request`. Copies
// of rows of V, K and Q are made for the rules that move them by one.
std::vector<AttentionDeviation> attention_deviations(const attention::Profile& profile,
                                                     const attention::Problem& problem,
                                                     std::size_t request);

}  // namespace assay::verify
