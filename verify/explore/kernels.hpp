// The one-sided bodies instantiated for exploration: as a table of functions over ExploreOps, once.
// A mutant made from a patch (verify/mutants/order_*.mutant) brings a table in which all bodies
// come from its changed copy. Decides which top_k are compiled: bf16 rows and the default
// arithmetic are enough to see every protocol fault, arithmetic is what the suites are for.
#pragma once

#include <span>

#include "cuda/kernels/one_sided/params.hpp"
#include "verify/explore/mutated_ops.hpp"

namespace assay::verify {

// top_k with a body: one pick, every pair of two ranks, and what the sample trace has.
#define ASSAY_EXPLORE_TOP_KS(X) X(1) X(2) X(4)

struct ExploreKernels {
  using Dispatch = void (*)(ExploreOps&, const one_sided::DispatchParams&);
  using Sanitize = void (*)(ExploreOps&, const one_sided::SanitizeParams&);
  using Combine = void (*)(ExploreOps&, const one_sided::CombineParams&);
  using SentinelDispatch = void (*)(ExploreOps&, const one_sided::SentinelDispatchParams&);
  using SentinelCombine = void (*)(ExploreOps&, const one_sided::SentinelCombineParams&);

  // Each returns null for a top_k that is not compiled.
  Dispatch (*dispatch)(int top_k);
  Sanitize sanitize;
  Combine (*combine)(int top_k);
  SentinelDispatch (*sentinel_dispatch)(int top_k);
  SentinelCombine (*sentinel_combine)(int top_k);
};

const ExploreKernels& own_explore_kernels();

}  // namespace assay::verify
