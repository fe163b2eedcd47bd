// The prefill kernels for heads of 64 elements.
#include "cuda/launch/attention_kernels.cuh"

namespace assay::cuda {

PrefillKernel find_prefill_kernel_64(Dtype dtype, PrefillMode mode) {
  return prefill_kernel_of<64>(dtype, mode);
}

}  // namespace assay::cuda
