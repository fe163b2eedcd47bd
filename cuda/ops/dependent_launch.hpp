// What two kernels on a stream say to each other where the second may begin before the first has
// ended. One instruction per function. Decides nothing. Elsewhere than on sm_90 and later there is
// no such launch, and they are nothing.
#pragma once

namespace assay::cuda {

// From here on the dependent kernel may be put on multiprocessors that have room.
__device__ inline void let_dependents_launch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Waits until the kernel before has ended and everything it wrote can be read.
__device__ inline void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace assay::cuda
