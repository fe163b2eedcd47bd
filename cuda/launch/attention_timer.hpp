// Times on one GPU, by events. Decides SPEC VER-25.9: one launch at a time, after two that do not
// count; or launches behind each other, once the GPU has settled.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>
#include <vector>

#include "cuda/launch/device.hpp"

namespace assay::cuda {

inline constexpr std::chrono::seconds kMeasurementBudget{20};
// A clock that follows the power drawn takes some 100 ms to settle (H200, driver 580.159.04).
inline constexpr double kSettleMs = 200, kWindowMs = 60;

class AttentionTimer {
 public:
  static Expected<AttentionTimer> make() {
    AttentionTimer t;
    ASSAY_TRY(t.stream_, OwnStream::make());
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
  const OwnStream& stream() const { return stream_; }

  // Milliseconds, ascending.
  Expected<std::vector<double>> time(const std::function<Status()>& enqueue, int repeats) const {
    std::vector<double> times;
    for (int i = -2; i < repeats; ++i) {
      ASSAY_TRY(const double ms, mean(enqueue, 1));
      if (i >= 0) times.push_back(ms);
    }
    std::sort(times.begin(), times.end());
    return times;
  }
  // Likewise of launches behind each other: means over windows of them, after what settles.
  Expected<std::vector<double>> steady(const std::function<Status()>& enqueue, int windows) const {
    ASSAY_TRY(const std::vector<double> one, time(enqueue, 1));
    const auto filling = [&](double ms) { return static_cast<int>(ms / one[0]) + 1; };
    ASSAY_CHECK(mean(enqueue, filling(kSettleMs)));
    std::vector<double> times;
    for (int i = 0; i < windows; ++i) {
      ASSAY_TRY(const double ms, mean(enqueue, filling(kWindowMs)));
      times.push_back(ms);
    }
    std::sort(times.begin(), times.end());
    return times;
  }

 private:
  Expected<double> mean(const std::function<Status()>& enqueue, int launches) const {
    ASSAY_CUDA(cudaEventRecord(begin_, stream_), "cudaEventRecord");
    for (int i = 0; i < launches; ++i) ASSAY_CHECK(enqueue());
    ASSAY_CUDA(cudaEventRecord(end_, stream_), "cudaEventRecord");
    ASSAY_CHECK(wait_for(stream_, kMeasurementBudget, "a measurement"));
    float ms = 0;
    ASSAY_CUDA(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
    return static_cast<double>(ms) / launches;
  }

  OwnStream stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace assay::cuda
