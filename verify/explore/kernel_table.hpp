// Fills in an ExploreKernels from the bodies that are visible where it is included: our own, or a
// mutant's copy. Included by one file per copy, after the bodies.
#pragma once

#include "verify/explore/kernels.hpp"

namespace assay::verify {
namespace {

using ExploredSum = one_sided::SumTraits<one_sided::Sum::kF32>;

#define ASSAY_EXPLORE_TABLE(type, function, body) \
  ExploreKernels::type function(int top_k) {      \
    switch (top_k) { ASSAY_EXPLORE_TOP_KS(body) } \
    return nullptr;                               \
  }
#define ASSAY_CASE(k) \
  case k:             \
    return &one_sided::dispatch<k, ExploreOps>;
ASSAY_EXPLORE_TABLE(Dispatch, explore_dispatch, ASSAY_CASE)
#undef ASSAY_CASE
#define ASSAY_CASE(k) \
  case k:             \
    return &one_sided::combine<ExploredSum, Bf16, Bf16, k, ExploreOps>;
ASSAY_EXPLORE_TABLE(Combine, explore_combine, ASSAY_CASE)
#undef ASSAY_CASE
#define ASSAY_CASE(k) \
  case k:             \
    return &one_sided::sentinel_dispatch<k, ExploreOps>;
ASSAY_EXPLORE_TABLE(SentinelDispatch, explore_sentinel_dispatch, ASSAY_CASE)
#undef ASSAY_CASE
#define ASSAY_CASE(k) \
  case k:             \
    return &one_sided::sentinel_combine<ExploredSum, Bf16, Bf16, k, ExploreOps>;
ASSAY_EXPLORE_TABLE(SentinelCombine, explore_sentinel_combine, ASSAY_CASE)
#undef ASSAY_CASE
#undef ASSAY_EXPLORE_TABLE

constexpr ExploreKernels kExploreKernels{&explore_dispatch, &one_sided::sanitize<ExploreOps>,
                                         &explore_combine, &explore_sentinel_dispatch,
                                         &explore_sentinel_combine};

}  // namespace
}  // namespace assay::verify
