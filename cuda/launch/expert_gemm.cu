// The grouped GEMM as two plain kernels: products per list entry, then a weighted sum per row.
#include <cuda_bf16.h>

#include "cuda/launch/device.hpp"
#include "cuda/launch/expert_gemm.hpp"
#include "cuda/ops/thread.hpp"

namespace assay::cuda {

using one_sided::ListEntry;

namespace {

constexpr int kEntries = 16, kColumns = 64, kDepth = 32;  // of a tile; kDepth per step
constexpr int kThreads = 256;
constexpr int kPerThread = kEntries * kColumns / kThreads;
constexpr std::uint32_t kTilesAtOnce = 8;  // of an expert's entries, side by side

template <class T>
__device__ T* in(Address address) {
  return reinterpret_cast<T*>(address.raw);
}

__device__ std::uint64_t row_of(std::uint64_t entry) { return ListEntry::row(entry); }

// One tile: the products of kEntries entries of an expert with kColumns rows of its matrix. Each is
// a chain of fused multiply-adds over h in, ascending, from +0 (SPEC CUD-10.1).
__device__ void multiply_tile(const ExpertGemm& g, std::uint32_t expert, std::uint32_t first,
                              std::uint32_t end, std::uint32_t column) {
  __shared__ float x[kEntries][kDepth + 1], w[kColumns][kDepth + 1];  // + 1: other banks
  const auto* entries = in<const std::uint64_t>(g.list_entries);
  const auto* rows = in<const __nv_bfloat16>(g.rows);
  const auto* matrix =
      in<const __nv_bfloat16>(g.weights) + std::uint64_t{expert} * g.hidden_size * g.hidden_size;
  const int my_entry = thread_index() / (kColumns / kPerThread);
  const int my_column = thread_index() % (kColumns / kPerThread);
  float sum[kPerThread] = {};
  for (std::uint32_t depth = 0; depth < g.hidden_size; depth += kDepth) {
    block_barrier();
    for (int i = thread_index(); i < (kEntries + kColumns) * kDepth; i += kThreads) {
      const int line = i / kDepth, d = i % kDepth;
      const bool inside = depth + d < g.hidden_size;
      if (line < kEntries) {
        const std::uint32_t entry = first + line;
        x[line][d] =
            inside && entry < end
                ? __bfloat162float(rows[row_of(entries[entry]) * g.hidden_size + depth + d])
                : 0.0f;
      } else {
        const std::uint32_t c = column + line - kEntries;
        w[line - kEntries][d] =
            inside && c < g.hidden_size
                ? __bfloat162float(matrix[std::uint64_t{c} * g.hidden_size + depth + d])
                : 0.0f;
      }
    }
    block_barrier();
    // Beyond h in there is nothing to add: a product of zeroes could still turn -0 into +0.
    const int deep = static_cast<int>(min(g.hidden_size - depth, std::uint32_t{kDepth}));
    for (int d = 0; d < deep; ++d)
#pragma unroll
      for (int c = 0; c < kPerThread; ++c)
        sum[c] = __fmaf_rn(x[my_entry][d], w[my_column + c * (kColumns / kPerThread)][d], sum[c]);
  }
  const std::uint32_t entry = first + my_entry;
  if (entry >= end) return;
  if (column == 0 && my_column == 0)
    in<std::uint32_t>(
        g.entry_of)[row_of(entries[entry]) * g.top_k + ListEntry::pick(entries[entry])] = entry;
  for (int c = 0; c < kPerThread; ++c) {
    const std::uint32_t at = column + my_column + c * (kColumns / kPerThread);
    if (at < g.hidden_size)
      in<float>(g.products)[std::uint64_t{entry} * g.hidden_size + at] = sum[c];
  }
}

// Tiles of columns of one expert's entries: the blocks of a launch, one after another.
__host__ __device__ std::uint32_t column_tiles(const ExpertGemm& g) {
  return (g.hidden_size + kColumns - 1) / kColumns;
}

__global__ void __launch_bounds__(kThreads) multiply(const __grid_constant__ ExpertGemm g) {
  const auto* offsets = in<const std::uint32_t>(g.list_offsets);
  const auto block = static_cast<std::uint32_t>(block_index());
  const std::uint32_t column = block % column_tiles(g) * kColumns;
  const std::uint32_t expert = block / column_tiles(g) % g.num_local_experts;
  const std::uint32_t turn = block / column_tiles(g) / g.num_local_experts;
  const std::uint32_t end = offsets[expert + 1];
  for (std::uint32_t first = offsets[expert] + turn * kEntries; first < end;
       first += kTilesAtOnce * kEntries)
    multiply_tile(g, expert, first, end, column);
}

// One block per entry at a time; the entry of a row's lowest local pick sums the row: fused
// multiply-adds of router weight and product over its local picks, k ascending, from +0, and one
// rounding to bf16 (SPEC CUD-10.1).
__global__ void __launch_bounds__(kThreads) sum_rows(const __grid_constant__ ExpertGemm g) {
  const auto* ids = in<const std::uint32_t>(g.ids);
  const auto* products = in<const float>(g.products);
  const std::uint32_t count = in<const std::uint32_t>(g.list_offsets)[g.num_local_experts];
  for (std::uint32_t entry = static_cast<std::uint32_t>(block_index()); entry < count;
       entry += static_cast<std::uint32_t>(num_blocks())) {
    const std::uint64_t word = in<const std::uint64_t>(g.list_entries)[entry];
    const std::uint64_t picks = row_of(word) * g.top_k;
    const auto is_local = [&](std::uint32_t k) {
      return ids[picks + k] - g.first_expert < g.num_local_experts;
    };
    bool lowest = true;
    for (std::uint32_t k = 0; k < ListEntry::pick(word); ++k) lowest &= !is_local(k);
    if (!lowest) continue;
    for (std::uint32_t c = static_cast<std::uint32_t>(thread_index()); c < g.hidden_size;
         c += kThreads) {
      float sum = 0.0f;
      for (std::uint32_t k = ListEntry::pick(word); k < g.top_k; ++k) {
        if (!is_local(k)) continue;
        const std::uint64_t of_pick = in<const std::uint32_t>(g.entry_of)[picks + k];
        sum = __fmaf_rn(in<const float>(g.router_weights)[picks + k],
                        products[of_pick * g.hidden_size + c], sum);
      }
      in<__nv_bfloat16>(g.out)[row_of(word) * g.hidden_size + c] = __float2bfloat16_rn(sum);
    }
  }
}

}  // namespace

Status enqueue_expert_gemm(const ExpertGemm& gemm, const Stream& stream) {
  constexpr unsigned kBlocks = 256;  // of sum_rows: some per multiprocessor
  const auto on = static_cast<cudaStream_t>(stream.handle);
  const unsigned tiles = column_tiles(gemm) * gemm.num_local_experts * kTilesAtOnce;
  multiply<<<tiles, kThreads, 0, on>>>(gemm);
  ASSAY_CUDA(cudaGetLastError(), "launching the products of experts");
  sum_rows<<<kBlocks, kThreads, 0, on>>>(gemm);
  ASSAY_CUDA(cudaGetLastError(), "launching the sums of experts");
  return Done{};
}

}  // namespace assay::cuda
