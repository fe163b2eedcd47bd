// Prefill kernels that differ in speed and in no bit, for the benchmark to choose from. Decides
// nothing; which one is launched is tuning_of() in cuda/kernels/attention/prefill_shape.cuh.
#pragma once

#include <vector>

#include "cuda/launch/attention_kernels.hpp"

namespace assay::cuda {

struct PrefillVariant {
  const char* name;
  PrefillKernel kernel;
};
// For bf16 and head_dim 128; kTrace is not among them.
std::vector<PrefillVariant> prefill_variants(PrefillMode mode);

}  // namespace assay::cuda
