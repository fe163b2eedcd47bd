// The decode kernels that nvcc compiled, by what tells them apart. Host side of decode_kernels.cuh.
// Decides nothing.
#pragma once

#include "cuda/launch/attention_launch.hpp"

namespace assay::cuda {

struct DecodeKernel {
  const void* function = nullptr;  // null: there is none
  const void* merge = nullptr;
  int threads = 0;
  int shared_bytes = 0;
  int blocks = 0;       // of a multiprocessor
  int rows = 0;         // of a unit that it has room for
  int merge_warps = 0;  // of a block
  // By which device memory is read, as tensor_map() has it. As asked: where copies of 128 bytes
  // made L2 fetch 256, 64 requests of 16k keys took 7 % longer (SPEC CUD-7.1).
  int fetch_bytes = 0;
  // Whether it may begin while the kernel before it still runs: then its blocks take the places
  // that become free, which may be two on one multiprocessor and none on another (SPEC CUD-7.5).
  bool begins_early = false;
};
// `function` and `merge` are instantiations for Shape, of the real kernels or of copies of them.
template <class Shape>
DecodeKernel decode_kernel_with(const void* function, const void* merge, int merge_warps) {
  DecodeKernel kernel;
  kernel.function = function;
  kernel.merge = merge;
  kernel.threads = Shape::kThreads;
  kernel.shared_bytes = Shape::kAllocatedBytes;
  kernel.blocks = Shape::kBlocks;
  kernel.rows = Shape::kRows;
  kernel.merge_warps = merge_warps;
  return kernel;
}
int decode_rows(const AttentionCall& call);  // of its longest unit, which choose the kernel
DecodeKernel find_decode_kernel(const AttentionCall& call);

// What changes no bit of a launch; 0 leaves it to the launcher.
struct DecodeSplit {
  int blocks = 0;            // at most
  int chunks_per_piece = 0;  // of work
};
// launch_decode with another kernel than find_decode_kernel's, of the call's type, size and rows.
Status launch_decode_kernel(const AttentionCall& call, const DecodeKernel& kernel,
                            const DecodeSplit& split, Stream stream);

// The files that instantiate them, one a type. `rows`: of the longest unit.
DecodeKernel find_decode_kernel_bf16(int head_dim, int rows);
DecodeKernel find_decode_kernel_f16(int head_dim, int rows);
DecodeKernel find_decode_kernel_fp8(int head_dim, int rows);

}  // namespace assay::cuda
