// Protocols with a hole that somebody's code really had: the bodies with one patch
// (verify/mutants/order_*.mutant), or right bodies used in a wrong way (Variant). Decides which
// holes exist and which check must find each (SPEC VER-8.7).
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "verify/explore/program.hpp"

namespace assay::verify {

struct Hole {
  std::string_view name;       // "order_no_release"
  std::string_view title;      // a sentence
  std::string_view clause;     // of model/SPEC.md that it breaks
  std::string_view caught_by;  // "explore.complete"
  Protocol protocol = Protocol::kFence;
  Variant variant = Variant::kNone;
  const ExploreKernels* kernels = nullptr;  // nullptr: our own
  std::string_view case_text = {};          // in place of search (a)'s, where that is too small
};

std::vector<Hole> holes(Protocol protocol);  // patched ones by name, then misuses
const Hole* find_hole(std::string_view name);

// Written by make_mutant.py.
std::span<const Hole> patched_holes();

}  // namespace assay::verify
