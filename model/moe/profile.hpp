// Which library computes which combine, as data with its evidence. The table is profile.cpp, the
// only file that a new profile touches. This file decides what a profile says about itself.
#pragma once

#include <span>
#include <string_view>

#include "model/core/evidence.hpp"
#include "model/core/expected.hpp"
#include "model/moe/combine.hpp"

namespace assay::moe {

struct CombineProfile {
  // One field of the arithmetic, with where its value comes from.
  struct Field {
    std::string_view name;    // "accumulate", "flush_subnormals", "holes", "trees", "low_precision"
    std::string_view value;   // for people
    std::string_view source;  // document or repository, version, file
    Evidence evidence;
  };
  std::string_view name;  // <project>-<kernel>[-<arch>][@version], e.g. "flashinfer-oneside@0.6.16"
  std::string_view covers;   // which releases, e.g. "FlashInfer v0.6.0 to v0.6.15"
  std::string_view variant;  // "R1", "R2", "R2+ftz", "R3", "R4"
  CombineArithmetic arithmetic;
  Grade grade;
  Evidence evidence;  // of the whole: its weakest field
  std::span<const Field> fields;
};

std::span<const CombineProfile> combine_profiles();
// Exact name. The error lists the names.
Expected<const CombineProfile*> find_combine_profile(std::string_view name);
// What our own kernels compute when nothing is said.
const CombineProfile& default_combine_profile();

}  // namespace assay::moe
