// The kernels of launches that hold one rank, as on a device of its own.
#include "cuda/launch/kernel_table.cuh"

namespace assay::cuda {

const void* find_single_rank_kernel(Step step, const KernelRequest& request) {
  return find_kernel<1>(step, request);
}

}  // namespace assay::cuda
