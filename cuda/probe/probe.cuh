// What every part of the numerics probe shares: errors that name the call, counters of a comparison
// that kernels fill and the host prints, and the hash of a sweep.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace assay::probe {

#define ASSAY_CUDA(call)                                                               \
  do {                                                                                 \
    const cudaError_t assay_error = (call);                                            \
    if (assay_error != cudaSuccess) {                                                  \
      std::fprintf(stderr, "%s failed: %s\n", #call, cudaGetErrorString(assay_error)); \
      std::exit(3);                                                                    \
    }                                                                                  \
  } while (false)

inline constexpr int kShownMismatches = 4;
inline constexpr int kMaxRules = 10;

// Filled by kernels. `rules` counts mismatches of up to kMaxRules alternative rules; index 0 is the
// model. `hash` is the sum over all inputs i of mix(i, result): it depends on the order of results.
struct Comparison {
  unsigned long long mismatches[kMaxRules];
  unsigned long long hash;
  unsigned int shown;
  unsigned int input[kShownMismatches], second[kShownMismatches];
  unsigned int hardware[kShownMismatches], model[kShownMismatches];
};

__host__ __device__ inline std::uint64_t mix(std::uint64_t z) {  // splitmix64's finaliser
  z += 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

__device__ inline void show(Comparison* comparison, unsigned int input, unsigned int second,
                            unsigned int hardware, unsigned int model) {
  const unsigned int slot = atomicAdd(&comparison->shown, 1u);
  if (slot >= kShownMismatches) return;
  comparison->input[slot] = input;
  comparison->second[slot] = second;
  comparison->hardware[slot] = hardware;
  comparison->model[slot] = model;
}

// A Comparison in device memory, zeroed on construction.
class DeviceComparison {
 public:
  DeviceComparison() {
    ASSAY_CUDA(cudaMalloc(&device_, sizeof(Comparison)));
    ASSAY_CUDA(cudaMemset(device_, 0, sizeof(Comparison)));
  }
  ~DeviceComparison() { cudaFree(device_); }
  DeviceComparison(const DeviceComparison&) = delete;
  DeviceComparison& operator=(const DeviceComparison&) = delete;
  Comparison* get() { return device_; }
  // Waits for the kernels before it.
  Comparison read() {
    Comparison host;
    ASSAY_CUDA(cudaGetLastError());
    ASSAY_CUDA(cudaMemcpy(&host, device_, sizeof(Comparison), cudaMemcpyDeviceToHost));
    return host;
  }

 private:
  Comparison* device_ = nullptr;
};

// Results of one comparison, for the table and the JSON.
struct SweepResult {
  std::string name;
  std::uint64_t inputs = 0;
  Comparison comparison{};
};

}  // namespace assay::probe
