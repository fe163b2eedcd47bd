// The instantiation matrix of the one-sided kernels as a lookup: from the step of a protocol and
// its formats to a __global__ function. Instantiated twice, in a file each: for launches of one
// rank and of several. kernel_table.cuh alone knows the bodies.
#pragma once

#include "cuda/launch/one_sided_launch.hpp"

namespace assay::cuda {

// A pointer to the kernel for `step`; null if this build has none.
const void* find_single_rank_kernel(Step step, const KernelRequest& request);
const void* find_several_ranks_kernel(Step step, const KernelRequest& request);

}  // namespace assay::cuda
