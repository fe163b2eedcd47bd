// Time of what several GPUs do together: recorded in one graph per GPU (or enqueued), started on
// all of them at once by a gate that the host opens, measured by events on each. Decides SPEC
// VER-20.2 (what the time of n chained rounds is).
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "cuda/launch/device.hpp"

namespace assay::verify::bench {

class Stopwatch {
 public:
  // One stream per device. Devices may repeat.
  static Expected<Stopwatch> make(std::span<const int> devices);

  std::size_t size() const { return seats_.size(); }
  int device(std::size_t seat) const { return seats_[seat].device; }
  cudaStream_t stream(std::size_t seat) const { return seats_[seat].stream; }

  // Records what `enqueue` puts on all streams, all recording at the same time; runs it once to
  // warm up and then `repeats` times. Returns the microseconds of each repeat: the slowest
  // device's.
  Expected<std::vector<double>> time(const std::function<Status()>& enqueue, int repeats);
  // The same for work that each device can be given on its own.
  Expected<std::vector<double>> time_each(const std::function<Status(std::size_t seat)>& enqueue,
                                          int repeats);
  // The same for what cannot be recorded: enqueued anew for each repeat, behind the closed gate.
  Expected<std::vector<double>> time_enqueued(const std::function<Status()>& enqueue, int repeats);
  // What one device needs alone, for latencies.
  Status wait() const;
  // Nothing runs, and no device is in error.
  bool is_idle() const;

 private:
  struct Seat {
    int device = 0;
    cuda::OwnStream stream;
    cudaEvent_t start = nullptr, end = nullptr;
    cudaGraphExec_t graph = nullptr;
    Seat() = default;
    Seat(Seat&& other) noexcept;
    Seat& operator=(Seat&&) = delete;
    ~Seat();
  };
  Status record(const std::function<Status()>& enqueue);
  Status launch_graphs();
  Expected<double> run_once(const std::function<Status()>& enqueue);

  std::vector<Seat> seats_;
  struct HostFlag {
    std::uint32_t* flag = nullptr;
    ~HostFlag();
  };
  std::shared_ptr<HostFlag> gate_;
  std::uint32_t opened_ = 0;
};

// Of one repeat or more.
double fastest(const std::vector<double>& times);

}  // namespace assay::verify::bench
