// The decode kernels for f16.
#include "cuda/launch/decode_kernels.cuh"

namespace assay::cuda {

DecodeKernel find_decode_kernel_f16(int head_dim, int rows) {
  return decode_kernel_of<F16>(head_dim, rows);
}

}  // namespace assay::cuda
