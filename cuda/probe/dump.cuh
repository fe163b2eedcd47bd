// What tables are recovered from: all 2^16 results of the 16-bit forms of ex2 and tanh, and the
// positive half of tanh.approx.f32 as the list of inputs where its result changes.
#pragma once

#include "cuda/probe/probe.cuh"

namespace assay::probe {

#define ASSAY_HALF_FUNCTION(function, instruction)                                    \
  __global__ void function(std::uint16_t* out) {                                      \
    const auto x = static_cast<std::uint16_t>(blockIdx.x * blockDim.x + threadIdx.x); \
    std::uint16_t y;                                                                  \
    asm volatile(instruction " %0, %1;" : "=h"(y) : "h"(x));                          \
    out[x] = y;                                                                       \
  }
ASSAY_HALF_FUNCTION(table_ex2_f16, "ex2.approx.f16")
ASSAY_HALF_FUNCTION(table_ex2_bf16, "ex2.approx.ftz.bf16")
ASSAY_HALF_FUNCTION(table_tanh_f16, "tanh.approx.f16")
ASSAY_HALF_FUNCTION(table_tanh_bf16, "tanh.approx.bf16")

__global__ void tanh_range(std::uint32_t first, std::uint32_t count, std::uint32_t step,
                           std::uint32_t* out) {
  const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const std::uint32_t x = first + i * step;
  std::uint32_t y;
  asm volatile("tanh.approx.f32 %0, %1;" : "=r"(y) : "r"(x));
  out[i] = y;
}

inline void write_bytes(const std::string& path, const void* data, std::size_t bytes) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr || std::fwrite(data, 1, bytes, file) != bytes || std::fclose(file) != 0) {
    std::fprintf(stderr, "cannot write %s\n", path.c_str());
    std::exit(2);
  }
}

// half_tables.u16: ex2 f16, ex2 bf16, tanh f16, tanh bf16, 2^16 results each, in input order.
// tanh_samples.u32: every 2^9th input of the binades 2^-20 to 2^5. tanh_<exponent>.u32: all 2^23
// results of a binade.
inline void dump_tables(const std::string& directory) {
  std::uint16_t* half = nullptr;
  ASSAY_CUDA(cudaMalloc(&half, 4 * 65536 * 2));
  table_ex2_f16<<<256, 256>>>(half);
  table_ex2_bf16<<<256, 256>>>(half + 65536);
  table_tanh_f16<<<256, 256>>>(half + 2 * 65536);
  table_tanh_bf16<<<256, 256>>>(half + 3 * 65536);
  std::vector<std::uint16_t> tables(4 * 65536);
  ASSAY_CUDA(cudaMemcpy(tables.data(), half, tables.size() * 2, cudaMemcpyDeviceToHost));
  write_bytes(directory + "/half_tables.u16", tables.data(), tables.size() * 2);
  std::uint32_t* values = nullptr;
  constexpr std::uint32_t binade = 1u << 23;
  ASSAY_CUDA(cudaMalloc(&values, binade * 4));
  std::vector<std::uint32_t> host(binade);
  const auto range = [&](std::uint32_t first, std::uint32_t count, std::uint32_t step,
                         const std::string& name) {
    tanh_range<<<(count + 255) / 256, 256>>>(first, count, step, values);
    ASSAY_CUDA(cudaMemcpy(host.data(), values, std::size_t{count} * 4, cudaMemcpyDeviceToHost));
    write_bytes(directory + "/" + name, host.data(), std::size_t{count} * 4);
  };
  range((127u - 20) << 23, 25u << 14, 1u << 9, "tanh_samples.u32");
  for (int exponent = -13; exponent <= 3; ++exponent)
    range(static_cast<std::uint32_t>(127 + exponent) << 23, binade, 1,
          "tanh_" + std::to_string(exponent) + ".u32");
  cudaFree(half);
  cudaFree(values);
}

}  // namespace assay::probe
