// Every schedule, or every one with few preemptions, by depth-first search without any reduction
// (SPEC MAC-7.4). A preemption is a switch away from a thread that could go on (Musuvathi, Qadeer,
// "Iterative Context Bounding for Systematic Testing of Multithreaded Programs", PLDI 2007).
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "model/machine/explore_strategy.hpp"

namespace assay::machine {

class TreeSearch final : public Strategy {
 public:
  static constexpr std::uint32_t kNoBound = std::numeric_limits<std::uint32_t>::max();
  // Runs the schedules with at most 0, 1, ..., `max_preemptions` preemptions, one bound after the
  // other, so that the first counterexample has the fewest; with kNoBound all at once.
  explicit TreeSearch(std::uint32_t max_preemptions);

  std::unique_ptr<Scheduler> scheduler() override;
  Schedule schedule() const override;
  std::uint64_t num_steps() const override { return num_steps_; }
  bool advance() override;

 private:
  class Asker;
  struct Entry {
    std::vector<RunnableId> threads;  // empty for a choice within a step
    Choice kind = Choice::kReadFrom;
    std::uint32_t n = 0;
    std::uint32_t chosen = 0;
  };
  std::uint32_t choose_runnable(std::span<const RunnableId> runnable);
  std::uint32_t choose(Choice kind, std::uint32_t n);

  std::uint32_t max_preemptions_;
  std::uint32_t bound_;
  std::vector<Entry> path_;
  std::size_t depth_ = 0;
  std::uint32_t preemptions_ = 0;
  std::uint64_t num_steps_ = 0;
  RunnableId last_ = 0;
};

}  // namespace assay::machine
