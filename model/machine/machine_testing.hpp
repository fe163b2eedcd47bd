// For the tests of this folder: a two-line way to run kernels, and an exhaustive scheduler, which
// also shows that the Scheduler interface carries one. Decides nothing about the machine.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "model/core/testing.hpp"
#include "model/machine/machine.hpp"

namespace assay::machine::testing {

inline MachineConfig small_config(std::uint64_t seed, std::int32_t num_ranks = 2,
                                  std::uint32_t group_size = 1) {
  MachineConfig config;
  config.num_ranks = num_ranks;
  config.group_size = group_size;
  config.seed = seed;
  config.step_budget = 1'000'000;
  return config;
}

inline void enqueue(Machine& machine, std::int32_t rank, const std::string& name,
                    std::uint32_t num_ctas, std::function<void(SimOps&)> body) {
  machine.enqueue(RankId(rank), kDefaultStream, Kernel{name, num_ctas, std::move(body)});
}

// Enumerates all schedules by depth-first search: replays a prefix of choices, then takes 0. Each
// execution is a run of a new machine, built by the caller, with a scheduler from here.
class ChoiceTree {
 public:
  std::unique_ptr<Scheduler> scheduler() {
    depth_ = 0;
    return std::make_unique<Walker>(*this);
  }
  // Moves to the next schedule; false when all have been run.
  bool advance() {
    while (!path_.empty() && path_.back().first + 1 >= path_.back().second) path_.pop_back();
    if (path_.empty()) return false;
    ++path_.back().first;
    return true;
  }

 private:
  class Walker final : public Scheduler {
   public:
    explicit Walker(ChoiceTree& tree) : tree_(tree) {}
    std::uint32_t choose_runnable(std::span<const RunnableId> runnable) override {
      return tree_.next(static_cast<std::uint32_t>(runnable.size()));
    }
    std::uint32_t choose(Choice, std::uint32_t n) override { return tree_.next(n); }
    std::uint32_t run_length() override { return 1; }

   private:
    ChoiceTree& tree_;
  };

  std::uint32_t next(std::uint32_t n) {
    if (depth_ == path_.size()) path_.emplace_back(0, n);
    REQUIRE(path_[depth_].second == n);  // the machine is deterministic given the choices
    return path_[depth_++].first;
  }

  std::vector<std::pair<std::uint32_t, std::uint32_t>> path_;  // choice, number of alternatives
  std::size_t depth_ = 0;
};

// Runs `execute` (which builds a machine around the scheduler, runs it and looks at the result)
// once per schedule and returns how many there were.
inline std::uint64_t for_every_schedule(
    const std::function<void(std::unique_ptr<Scheduler>)>& execute) {
  ChoiceTree tree;
  std::uint64_t executions = 0;
  do {
    execute(tree.scheduler());
    ++executions;
    REQUIRE(executions < 2'000'000);
  } while (tree.advance());
  return executions;
}

}  // namespace assay::machine::testing
