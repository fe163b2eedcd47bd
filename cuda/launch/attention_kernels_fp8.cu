// The prefill kernels for e4m3.
#include "cuda/launch/attention_kernels.cuh"

namespace assay::cuda {
namespace {

template <int kDim>
PrefillKernel fp8_kernel_of(Dtype out_dtype, PrefillMode mode) {
  if (out_dtype == Dtype::kBf16) return prefill_kernel_of<E4m3, kDim, Bf16>(mode);
  if (out_dtype == Dtype::kF16) return prefill_kernel_of<E4m3, kDim, F16>(mode);
  return {};
}

}  // namespace

PrefillKernel find_prefill_kernel_fp8(Dtype out_dtype, int head_dim, PrefillMode mode) {
  if (head_dim == 128) return fp8_kernel_of<128>(out_dtype, mode);
  if (head_dim == 256) return fp8_kernel_of<256>(out_dtype, mode);
  return {};
}

}  // namespace assay::cuda
