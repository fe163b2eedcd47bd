// The decode kernels for e4m3.
#include "cuda/launch/decode_kernels.cuh"

namespace assay::cuda {

DecodeKernel find_decode_kernel_fp8(int head_dim, int rows) {
  return decode_kernel_of<E4m3>(head_dim, rows);
}

}  // namespace assay::cuda
