// Devices, memory, streams and graphs of CUDA as values that clean up after themselves, waits with
// an end, and CUDA's errors as sentences. Decides nothing; needs the CUDA runtime, not nvcc.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>
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

// Copies to device memory, and returns when every stream may read it: from memory that is not
// pinned, cudaMemcpy may return while the last bytes are still on their way, and a stream that does
// not wait for the default one overtakes them.
inline Status copy_to_device(void* to, const void* from, std::size_t bytes,
                             const std::string& what) {
  ASSAY_CUDA(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), what);
  ASSAY_CUDA(cudaStreamSynchronize(cudaStreamLegacy), what);
  return Done{};
}

// Device memory of the device that was current when it was made.
class DeviceMemory {
 public:
  static Expected<DeviceMemory> make(std::size_t bytes, const std::string& what) {
    DeviceMemory memory;
    ASSAY_CUDA(cudaMalloc(&memory.data_, bytes),
               "cudaMalloc of " + std::to_string(bytes) + " bytes for " + what);
    memory.bytes_ = bytes;
    return Expected<DeviceMemory>(std::move(memory));
  }
  DeviceMemory() = default;
  DeviceMemory(DeviceMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceMemory() {
    if (data_ != nullptr) cudaFree(data_);
  }
  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Address address() const { return Address{reinterpret_cast<std::uint64_t>(data_)}; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

inline void* pointer(Address address) { return reinterpret_cast<void*>(address.raw); }

// A stream of the device that was current when it was made; it does not wait for the default one.
class OwnStream {
 public:
  static Expected<OwnStream> make() {
    OwnStream stream;
    ASSAY_CUDA(cudaStreamCreateWithFlags(&stream.stream_, cudaStreamNonBlocking),
               "cudaStreamCreate");
    return Expected<OwnStream>(std::move(stream));
  }
  OwnStream() = default;
  OwnStream(OwnStream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  OwnStream& operator=(OwnStream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~OwnStream() {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  operator cudaStream_t() const { return stream_; }
  Stream stream() const { return {stream_}; }

 private:
  cudaStream_t stream_ = nullptr;
};

// Waits for everything on a stream, with an end: kernels here end by themselves, but what they wait
// for may be other people's (SPEC CUD-4.1).
inline Status wait_for(cudaStream_t stream, std::chrono::nanoseconds budget,
                       const std::string& what) {
  const auto start = std::chrono::steady_clock::now();
  constexpr std::chrono::milliseconds kBusy{2};  // most waits are short; then leave the core
  for (;;) {
    const cudaError_t state = cudaStreamQuery(stream);
    if (state == cudaSuccess) return Done{};
    if (state != cudaErrorNotReady) return cuda_error(state, what);
    const auto waited = std::chrono::steady_clock::now() - start;
    if (waited > budget)
      return bad_input(
          what + " has not ended within " +
          std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(budget).count()) +
          " ms");
    if (waited > kBusy) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

// What was enqueued on a stream once, to be launched any number of times (SPEC CUD-3.1).
class Graph {
 public:
  // Records what `enqueue` puts on the stream. The first recording instantiates; a later one of the
  // same shape (the same kernels in the same order, any sizes and addresses) updates the executable
  // graph, another shape instantiates again (SPEC CUD-3.2).
  Status record(cudaStream_t stream, const std::function<Status()>& enqueue) {
    ASSAY_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
               "beginning to record a graph");
    const Status enqueued = enqueue();
    cudaGraph_t recorded = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(stream, &recorded);
    const std::unique_ptr<CUgraph_st, void (*)(cudaGraph_t)> owner(
        recorded, [](cudaGraph_t graph) { cudaGraphDestroy(graph); });
    ASSAY_CHECK(enqueued);
    ASSAY_CUDA(ended, "recording a graph");
    if (executable_ != nullptr) {
      cudaGraphExecUpdateResultInfo info{};
      if (cudaGraphExecUpdate(executable_, recorded, &info) == cudaSuccess) return Done{};
      cudaGetLastError();  // the refusal is the answer, not an error of ours
      cudaGraphExecDestroy(std::exchange(executable_, nullptr));
    }
    ASSAY_CUDA(cudaGraphInstantiate(&executable_, recorded, 0), "instantiating a graph");
    ++instantiations_;
    return Done{};
  }
  Status launch(cudaStream_t stream) const {
    ASSAY_CUDA(cudaGraphLaunch(executable_, stream), "launching a graph");
    return Done{};
  }
  int instantiations() const { return instantiations_; }

  Graph() = default;
  Graph(Graph&& other) noexcept
      : executable_(std::exchange(other.executable_, nullptr)),
        instantiations_(other.instantiations_) {}
  Graph& operator=(Graph&& other) noexcept {
    std::swap(executable_, other.executable_);
    std::swap(instantiations_, other.instantiations_);
    return *this;
  }
  ~Graph() {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
  }

 private:
  cudaGraphExec_t executable_ = nullptr;
  int instantiations_ = 0;
};

}  // namespace assay::cuda
