// For a test only: as much of the CUDA runtime as the subject over somebody's kernels calls, on a
// machine without a GPU. A stream is a thread with a queue, device memory the host's, a graph a
// list of what was enqueued; a "kernel" is a function that cudaLaunchHostFunc runs in its turn.
#include <cuda_runtime_api.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/launch/peer_addresses.hpp"

namespace {

using Work = std::function<void()>;

// What a kernel that traps leaves, in every call from then on.
std::atomic<cudaError_t> device_error{cudaSuccess};

class Queue {
 public:
  Queue() : thread_([this] { run(); }) { thread_.detach(); }  // never destroyed
  void push(Work work) {
    const std::lock_guard lock(mutex_);
    if (recording_) {
      recorded_.push_back(std::move(work));
    } else {
      queue_.push_back(std::move(work));
      changed_.notify_all();
    }
  }
  bool is_idle() {
    const std::lock_guard lock(mutex_);
    return queue_.empty() && !busy_;
  }
  void record() {
    const std::lock_guard lock(mutex_);
    recording_ = true;
  }
  std::vector<Work> end_recording() {
    const std::lock_guard lock(mutex_);
    recording_ = false;
    return std::exchange(recorded_, {});
  }

 private:
  void run() {
    for (;;) {
      std::unique_lock lock(mutex_);
      busy_ = false;
      changed_.wait(lock, [&] { return !queue_.empty(); });
      const Work work = std::move(queue_.front());
      queue_.pop_front();
      busy_ = true;
      lock.unlock();
      if (device_error == cudaSuccess) work();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> queue_;
  std::vector<Work> recorded_;
  bool busy_ = false, recording_ = false;
  std::thread thread_;
};

using Recording = std::vector<Work>;

Queue& queue_of(cudaStream_t stream) { return *reinterpret_cast<Queue*>(stream); }

cudaError_t enqueue(cudaStream_t stream, Work work) {
  if (device_error == cudaSuccess) queue_of(stream).push(std::move(work));
  return device_error;
}

}  // namespace

// Poisons nothing and loads nothing: memory of another process is not reached here.
namespace assay::cuda {
void enqueue_peer_addresses(ncclWindow_t, int, std::uint64_t*) {}
}  // namespace assay::cuda

extern "C" {

// For kernels: the device is in error from now on.
void stand_in_trap() { device_error = cudaErrorLaunchFailure; }

cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, device_error; }
cudaError_t cudaSetDevice(int) { return device_error; }
cudaError_t cudaGetLastError() { return device_error; }
const char* cudaGetErrorString(cudaError_t code) {
  return code == cudaErrorLaunchFailure ? "unspecified launch failure" : "an error of CUDA";
}

// Not zero: nobody promises that.
cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(*memory, 0xCD, bytes);
  return device_error;
}
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
  return cudaMalloc(memory, bytes);
}
cudaError_t cudaFree(void* memory) { return std::free(memory), device_error; }
cudaError_t cudaFreeHost(void* memory) { return std::free(memory), device_error; }

cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  return std::memset(to, value, bytes), device_error;
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  return std::memcpy(to, from, bytes), device_error;
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  return enqueue(stream, [=] { std::memset(to, value, bytes); });
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  return enqueue(stream, [=] { std::memcpy(to, from, bytes); });
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return enqueue(stream, [=] { function(data); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = reinterpret_cast<cudaStream_t>(new Queue);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (device_error != cudaSuccess) return device_error;
  const bool is_default = stream == cudaStreamLegacy || stream == cudaStreamPerThread;
  return is_default || queue_of(stream).is_idle() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  return queue_of(stream).record(), device_error;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = reinterpret_cast<cudaGraph_t>(new Recording(queue_of(stream).end_recording()));
  return device_error;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return delete reinterpret_cast<Recording*>(graph), cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  *made = reinterpret_cast<cudaGraphExec_t>(new Recording(*reinterpret_cast<Recording*>(graph)));
  return device_error;
}
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t made, cudaGraph_t graph,
                                cudaGraphExecUpdateResultInfo*) {
  auto& to = *reinterpret_cast<Recording*>(made);
  const auto& from = *reinterpret_cast<const Recording*>(graph);
  if (to.size() != from.size()) return cudaErrorGraphExecUpdateFailure;
  to = from;
  return device_error;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t made) {
  return delete reinterpret_cast<Recording*>(made), cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t made, cudaStream_t stream) {
  for (const Work& work : *reinterpret_cast<const Recording*>(made)) enqueue(stream, work);
  return device_error;
}

}  // extern "C"
