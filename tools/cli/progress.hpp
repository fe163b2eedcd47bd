// The line that moves while work is long: on standard error, only if that is a terminal, erased at
// the end. Decides nothing.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace assay::tools {

class Progress {
 public:
  // `total` things of a kind are coming: Progress("rounds", 1344).
  Progress(std::string things, std::int64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // From any thread. Redraws ten times a second at most.
  void advance(std::int64_t count = 1);

 private:
  void draw(std::int64_t done);

  const std::string things_;
  const std::int64_t total_;
  const bool visible_;
  const std::chrono::steady_clock::time_point start_;
  std::atomic<std::int64_t> done_{0};
  std::mutex drawing_;
  std::chrono::steady_clock::time_point drawn_{};
};

}  // namespace assay::tools
