// The prefill kernels for heads of 128 elements.
#include "cuda/launch/attention_kernels.cuh"

namespace assay::cuda {

PrefillKernel find_prefill_kernel_128(Dtype dtype, PrefillMode mode) {
  return prefill_kernel_of<128>(dtype, mode);
}

}  // namespace assay::cuda
