// The kernel that emulates attention units, as host code sees it. Decides nothing. No CUDA syntax,
// so that both compilers read it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "model/attention/unit_scratch.hpp"

namespace assay::cuda {

// One unit: what it computes with and where its results go, all in device memory.
struct UnitJob {
  attention::UnitView view;
  attention::UnitOutput output;
};

// A launch: `blocks` blocks take jobs in turn, each with scratch of its own.
struct UnitLaunch {
  const UnitJob* jobs = nullptr;  // [count], in device memory
  std::int32_t count = 0;
  std::int32_t blocks = 1;
  std::byte* scratch = nullptr;  // [blocks, scratch_bytes], aligned to 16
  std::size_t scratch_bytes = 0;
  std::size_t shared_bytes = 0;
  bool bytes_per_element_1 = false;  // fp8; else 2
};

inline constexpr int kUnitThreads = 256;

// How many blocks fit on one multiprocessor with so much shared memory; allows that much.
cudaError_t resident_unit_blocks(bool bytes_per_element_1, std::size_t shared_bytes, int* blocks);
cudaError_t enqueue_units(const UnitLaunch& launch, cudaStream_t stream);

}  // namespace assay::cuda
