// The kernels of launches that hold several ranks of one device as ranges of blocks (SPEC CUD-1.3).
#include "cuda/launch/kernel_table.cuh"

namespace assay::cuda {

const void* find_several_ranks_kernel(Step step, const KernelRequest& request) {
  return find_kernel<kRanksPerLaunch>(step, request);
}

}  // namespace assay::cuda
