// The attention kernels that nvcc compiled, by what tells them apart. Host side of
// attention_kernels.cuh. Decides nothing.
#pragma once

#include "cuda/launch/attention_launch.hpp"

namespace assay::cuda {

// How a prefill kernel decides and what it tells (SPEC CUD-6.6).
enum class PrefillMode { kDense, kSkip, kTrace };

struct PrefillKernel {
  const void* function = nullptr;  // null: there is none
  int threads = 0;
  int shared_bytes = 0;
  int rows_per_work = 0;
  int max_cluster = 2;  // or 1
};
// `function` is an instantiation for Shape, of the real kernel or of a copy of it.
template <class Shape>
PrefillKernel prefill_kernel_with(const void* function) {
  PrefillKernel kernel;
  kernel.function = function;
  kernel.threads = Shape::kThreads;
  kernel.shared_bytes = Shape::kAllocatedBytes;
  kernel.rows_per_work = Shape::kRows;
  return kernel;
}
PrefillMode prefill_mode(const AttentionCall& call);
PrefillKernel find_prefill_kernel(const AttentionCall& call);

// launch_prefill with another kernel than find_prefill_kernel's, of the call's type, size and mode.
Status launch_prefill_kernel(const AttentionCall& call, const PrefillKernel& kernel, Stream stream);

// The files that instantiate them: one a head size for 16-bit types, one for e4m3.
PrefillKernel find_prefill_kernel_64(Dtype dtype, PrefillMode mode);
PrefillKernel find_prefill_kernel_128(Dtype dtype, PrefillMode mode);
PrefillKernel find_prefill_kernel_256(Dtype dtype, PrefillMode mode);
PrefillKernel find_prefill_kernel_fp8(Dtype out_dtype, int head_dim, PrefillMode mode);

}  // namespace assay::cuda
