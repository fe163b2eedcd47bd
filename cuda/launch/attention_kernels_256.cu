// The prefill kernels for heads of 256 elements.
#include "cuda/launch/attention_kernels.cuh"

namespace assay::cuda {

PrefillKernel find_prefill_kernel_256(Dtype dtype, PrefillMode mode) {
  return prefill_kernel_of<256>(dtype, mode);
}

}  // namespace assay::cuda
