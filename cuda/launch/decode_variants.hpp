// Decode kernels that differ in speed and in no bit, for the benchmark to choose from. Decides
// nothing; which one is launched is decode_tuning() in cuda/kernels/attention/decode_shape.cuh.
#pragma once

#include <vector>

#include "cuda/launch/decode_kernels.hpp"

namespace assay::cuda {

struct DecodeVariant {
  const char* name;
  DecodeKernel kernel;
};
// For bf16, head_dim 128 and at most 16 rows.
std::vector<DecodeVariant> decode_variants();

}  // namespace assay::cuda
