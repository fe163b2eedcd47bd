// The decode kernels for bf16.
#include "cuda/launch/decode_kernels.cuh"

namespace assay::cuda {

DecodeKernel find_decode_kernel_bf16(int head_dim, int rows) {
  return decode_kernel_of<Bf16>(head_dim, rows);
}

}  // namespace assay::cuda
