// Devices, memory and streams of CUDA as values that clean up after themselves, and CUDA's errors
// as sentences. Decides nothing; needs the CUDA runtime, not nvcc.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "cuda/launch/one_sided_launch.hpp"
#include "model/core/expected.hpp"
#include "model/core/ops.hpp"

namespace assay::cuda {

// "cudaMalloc of 4096 bytes: out of memory".
inline Error cuda_error(cudaError_t code, const std::string& what) {
  const ErrorKind kind = code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver
                             ? ErrorKind::kUnsupported
                             : ErrorKind::kBadInput;
  return Error{kind, what + ": " + cudaGetErrorString(code)};
}

#define ASSAY_CUDA(call, what)                                                         \
  do {                                                                                 \
    const cudaError_t assay_code = (call);                                             \
    if (assay_code != cudaSuccess) return ::assay::cuda::cuda_error(assay_code, what); \
  } while (false)

// Makes a device current for a scope.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    cudaGetDevice(&before_);
    cudaSetDevice(device);
  }
  ~DeviceScope() { cudaSetDevice(before_); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = 0;
};

// Device memory of the device that was current when it was made.
class DeviceMemory {
 public:
  static Expected<DeviceMemory> make(std::size_t bytes, const std::string& what) {
    DeviceMemory memory;
    ASSAY_CUDA(cudaMalloc(&memory.data_, bytes),
               "cudaMalloc of " + std::to_string(bytes) + " bytes for " + what);
    return Expected<DeviceMemory>(std::move(memory));
  }
  DeviceMemory() = default;
  DeviceMemory(DeviceMemory&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  ~DeviceMemory() {
    if (data_ != nullptr) cudaFree(data_);
  }
  void* data() const { return data_; }
  Address address() const { return Address{reinterpret_cast<std::uint64_t>(data_)}; }

 private:
  void* data_ = nullptr;
};

}  // namespace assay::cuda
