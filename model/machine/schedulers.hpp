// PCT, a random scheduler with a guarantee (SPEC MAC-7.3). The uniform one is in scheduler.hpp.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "model/machine/scheduler.hpp"

namespace assay::machine {

// Answers 0 to everything: with PTX-ordered memory the sequentially consistent run in which the
// first that can run does (SPEC MAC-6.1).
class FirstChoices final : public Scheduler {
 public:
  std::uint32_t choose_runnable(std::span<const RunnableId>, const PendingOperations&) override {
    return 0;
  }
  std::uint32_t choose(Choice, std::uint32_t) override { return 0; }
  std::uint32_t run_length() override { return 1; }
};

// Burckhardt, Kothari, Musuvathi, Nagarakatte, "A Randomized Scheduler with Probabilistic
// Guarantees of Finding Bugs", ASPLOS 2010: threads have random priorities, the highest that can
// run runs, and at d - 1 random steps the running thread falls below all others. A bug that needs d
// ordering constraints among n threads and k steps is found with probability at least 1 / (n
// k^(d-1)). Choices within a step are the default in every second case, else uniform.
class PctScheduler final : public Scheduler {
 public:
  // `expected_steps` (k) may be a guess; change points behind the end of the run are lost.
  PctScheduler(std::uint64_t seed, std::uint32_t change_points, std::uint64_t expected_steps);

  std::uint32_t choose_runnable(std::span<const RunnableId> runnable,
                                const PendingOperations& pending) override;
  std::uint32_t choose(Choice kind, std::uint32_t n) override;
  std::uint32_t run_length() override { return 1; }

 private:
  Prng prng_;
  std::vector<std::uint64_t> change_at_;  // steps; the i-th drops a thread to priority i
  struct Priority {
    std::uint64_t value = 0;
    bool new_thread = true;  // has not come to an ordered operation yet
  };
  std::unordered_map<RunnableId, Priority> priorities_;
};

}  // namespace assay::machine
