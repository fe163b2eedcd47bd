// See attention_ceilings.hpp.
#include "cuda/launch/attention_ceilings.hpp"
#include "cuda/ops/mbarrier.hpp"
#include "cuda/ops/thread.hpp"
#include "cuda/ops/tma.hpp"
#include "cuda/ops/wgmma.hpp"

namespace assay::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kLoads = 8;  // of 16 bytes in flight for each thread

__global__ void __launch_bounds__(kThreads)
    read_kernel(const uint4* __restrict__ from, std::size_t count, std::uint32_t* sink) {
  const std::size_t step = static_cast<std::size_t>(num_blocks()) * kThreads * kLoads;
  std::uint32_t seen = 0;
  for (std::size_t at = static_cast<std::size_t>(block_index()) * kThreads * kLoads +
                        static_cast<std::size_t>(thread_index());
       at < count; at += step) {
    uint4 x[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const std::size_t place = at + static_cast<std::size_t>(i) * kThreads;
      x[i] = place < count ? __ldcs(&from[place]) : uint4{};
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) seen |= x[i].x & x[i].y & x[i].z & x[i].w;
  }
  if (seen == 0x5EED5EEDu) *sink = seen;
}

__global__ void __launch_bounds__(kThreads)
    copy_kernel(const uint4* __restrict__ from, uint4* __restrict__ to, std::size_t count) {
  const std::size_t step = static_cast<std::size_t>(num_blocks()) * kThreads * kLoads;
  for (std::size_t at = static_cast<std::size_t>(block_index()) * kThreads * kLoads +
                        static_cast<std::size_t>(thread_index());
       at < count; at += step) {
    uint4 x[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const std::size_t place = at + static_cast<std::size_t>(i) * kThreads;
      if (place < count) x[i] = __ldcs(&from[place]);
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const std::size_t place = at + static_cast<std::size_t>(i) * kThreads;
      if (place < count) __stcs(&to[place], x[i]);
    }
  }
}

// Two warpgroups, each m 64, n 256, over one chunk of 128 bytes of k again and again.
constexpr int kMatrixThreads = 256;
constexpr int kChunkA = 64 * 128, kChunkB = 256 * 128;

template <class T>
__global__ void __launch_bounds__(kMatrixThreads, 1)
    matrix_kernel(const uint4* __restrict__ operands, int rounds, float* sink) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char allocated[];
  const SharedAddress raw = shared_address(allocated);
  const SharedAddress base = (raw + 1023) / 1024 * 1024;
  auto* const to = reinterpret_cast<uint4*>(allocated + (base - raw));
  for (int i = thread_index(); i < (2 * kChunkA + kChunkB) / 16; i += kMatrixThreads)
    to[i] = operands[i];
  async_proxy_fence();
  block_barrier();
  const int group = warp_index() / 4;
  const MatrixDescriptor a = k_major(base + group * kChunkA), b = k_major(base + 2 * kChunkA);
  float d[128];
#pragma unroll
  for (int i = 0; i < 128; ++i) d[i] = 0.0f;
#pragma unroll 1
  for (int round = 0; round < rounds; ++round) {
#pragma unroll 1
    for (int tile = 0; tile < kMatrixTiles; ++tile) {
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step)
        wgmma_shared<T, 256>(d, a.at(step * 32), b.at(step * 32), tile + step == 0 ? 0 : 1);
      wgmma_commit();
      wgmma_wait<1>();
    }
  }
  wgmma_wait<0>();
  pin(d);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 128; ++i) sum += d[i];
  if (sum == 12345.678f) *sink = sum;
#endif
}

template <class T>
void launch_matrix(const void* operands, int rounds, float* sink, int blocks, cudaStream_t on) {
  constexpr int kShared = 2 * kChunkA + kChunkB + 1024;
  cudaFuncSetAttribute(matrix_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  matrix_kernel<T>
      <<<blocks, kMatrixThreads, kShared, on>>>(static_cast<const uint4*>(operands), rounds, sink);
}

}  // namespace

void read_ceiling(const void* from, std::size_t bytes, std::uint32_t* sink, int multiprocessors,
                  Stream stream) {
  read_kernel<<<multiprocessors * 4, kThreads, 0, static_cast<cudaStream_t>(stream.handle)>>>(
      static_cast<const uint4*>(from), bytes / 16, sink);
}

void copy_ceiling(const void* from, void* to, std::size_t bytes, int multiprocessors,
                  Stream stream) {
  copy_kernel<<<multiprocessors * 4, kThreads, 0, static_cast<cudaStream_t>(stream.handle)>>>(
      static_cast<const uint4*>(from), static_cast<uint4*>(to), bytes / 16);
}

void matrix_ceiling(Dtype dtype, const void* operands, int rounds, float* sink, int multiprocessors,
                    Stream stream) {
  const auto on = static_cast<cudaStream_t>(stream.handle);
  if (dtype == Dtype::kF8E4m3)
    launch_matrix<E4m3>(operands, rounds, sink, multiprocessors, on);
  else if (dtype == Dtype::kF16)
    launch_matrix<F16>(operands, rounds, sink, multiprocessors, on);
  else
    launch_matrix<Bf16>(operands, rounds, sink, multiprocessors, on);
}

}  // namespace assay::cuda
