// Times on one GPU, by events. Decides SPEC VER-25.9: one launch at a time, after two that do not
// count. Internal to the attention benchmark.
#pragma once

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "cuda/launch/device.hpp"

namespace assay::verify::bench {

inline constexpr std::chrono::seconds kMeasurementBudget{20};

// Times of what is enqueued, one by one, after two that do not count.
class AttentionTimer {
 public:
  static Expected<AttentionTimer> make() {
    AttentionTimer t;
    ASSAY_TRY(t.stream_, cuda::OwnStream::make());
    ASSAY_CUDA(cudaEventCreate(&t.begin_), "cudaEventCreate");
    ASSAY_CUDA(cudaEventCreate(&t.end_), "cudaEventCreate");
    return Expected<AttentionTimer>(std::move(t));
  }
  AttentionTimer() = default;
  AttentionTimer(AttentionTimer&& other) noexcept
      : stream_(std::move(other.stream_)),
        begin_(std::exchange(other.begin_, nullptr)),
        end_(std::exchange(other.end_, nullptr)) {}
  AttentionTimer& operator=(AttentionTimer&& other) noexcept {
    std::swap(stream_, other.stream_);
    std::swap(begin_, other.begin_);
    std::swap(end_, other.end_);
    return *this;
  }
  ~AttentionTimer() {
    if (begin_ != nullptr) cudaEventDestroy(begin_);
    if (end_ != nullptr) cudaEventDestroy(end_);
  }
  const cuda::OwnStream& stream() const { return stream_; }

  // Milliseconds, ascending.
  Expected<std::vector<double>> time(const std::function<Status()>& enqueue, int repeats) const {
    std::vector<double> times;
    for (int i = -2; i < repeats; ++i) {
      ASSAY_CUDA(cudaEventRecord(begin_, stream_), "cudaEventRecord");
      ASSAY_CHECK(enqueue());
      ASSAY_CUDA(cudaEventRecord(end_, stream_), "cudaEventRecord");
      ASSAY_CHECK(cuda::wait_for(stream_, kMeasurementBudget, "a measurement"));
      float ms = 0;
      ASSAY_CUDA(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
      if (i >= 0) times.push_back(static_cast<double>(ms));
    }
    std::sort(times.begin(), times.end());
    return times;
  }

 private:
  cuda::OwnStream stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace assay::verify::bench
