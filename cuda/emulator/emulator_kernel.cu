// The emulator's text on a GPU: a block of threads takes one unit after another and runs
// unit_run.hpp with block_executor.hpp, which host tests run as well (SPEC ATT-5.10). Decides the
// number of threads and what lies in shared memory, no bit.
#include "cuda/emulator/emulator_kernel.hpp"

#include "cuda/ops/thread.hpp"
#include "model/attention/block_executor.hpp"

namespace assay::cuda {
namespace {

using attention::BlockExecutor;
using attention::UnitLayout;
using attention::UnitRun;
using attention::UnitScratch;
using attention::UnitView;

struct DeviceBlock {
  __device__ int index() const { return thread_index(); }
  __device__ int size() const { return kUnitThreads; }
  __device__ void sync() const { block_barrier(); }
};

// Every thread reads these all the time; shared memory has no initialisers, hence the bytes.
template <class T>
struct BlockState {
  UnitJob job;
  UnitScratch<T> scratch;
};

template <class T>
__global__ void __launch_bounds__(kUnitThreads, 1) emulate_units(UnitLaunch launch) {
  extern __shared__ uint4 stage[];
  __shared__ alignas(16) unsigned char state_bytes[sizeof(BlockState<T>)];
  BlockState<T>& state = *reinterpret_cast<BlockState<T>*>(state_bytes);
  const DeviceBlock block;
  const BlockExecutor<DeviceBlock> executor(block,
                                            reinterpret_cast<numerics::BlockOperand*>(stage));
  for (int i = block_index(); i < launch.count; i += launch.blocks) {
    block.sync();
    if (block.index() == 0) {
      state.job = launch.jobs[i];
      const UnitLayout layout(state.job.view);
      state.scratch.place(state.job.view, layout.rows(), layout.segments(),
                          launch.scratch + block_index() * launch.scratch_bytes);
    }
    block.sync();
    const UnitLayout layout(state.job.view);
    UnitRun<T, BlockExecutor<DeviceBlock>>(state.job.view, layout, state.scratch, state.job.output,
                                           executor)
        .run();
  }
}

template <class T>
cudaError_t resident(std::size_t shared_bytes, int* blocks) {
  const cudaError_t allowed =
      cudaFuncSetAttribute(emulate_units<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(shared_bytes));
  if (allowed != cudaSuccess) return allowed;
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, emulate_units<T>, kUnitThreads,
                                                       shared_bytes);
}

}  // namespace

cudaError_t resident_unit_blocks(bool bytes_per_element_1, std::size_t shared_bytes, int* blocks) {
  return bytes_per_element_1 ? resident<std::uint8_t>(shared_bytes, blocks)
                             : resident<std::uint16_t>(shared_bytes, blocks);
}

cudaError_t enqueue_units(const UnitLaunch& launch, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(launch.blocks);
  if (launch.bytes_per_element_1)
    emulate_units<std::uint8_t><<<blocks, kUnitThreads, launch.shared_bytes, stream>>>(launch);
  else
    emulate_units<std::uint16_t><<<blocks, kUnitThreads, launch.shared_bytes, stream>>>(launch);
  return cudaGetLastError();
}

}  // namespace assay::cuda
