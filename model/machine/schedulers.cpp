// Priorities and change points. Decides who runs under PCT.
#include "model/machine/schedulers.hpp"

#include <algorithm>

namespace assay::machine {

PctScheduler::PctScheduler(std::uint64_t seed, std::uint32_t change_points,
                           std::uint64_t expected_steps)
    : prng_(seed) {
  const std::uint64_t steps = std::clamp<std::uint64_t>(expected_steps, 1, 0xFFFFFFFFu);
  for (std::uint32_t i = 0; i < change_points; ++i)
    change_at_.push_back(1 + prng_.below(static_cast<std::uint32_t>(steps)));
}

std::uint32_t PctScheduler::choose_runnable(std::span<const RunnableId> runnable,
                                            const PendingOperations& pending) {
  std::uint32_t best = 0;
  for (std::uint32_t i = 0; i < runnable.size(); ++i) {
    Priority& priority = priorities_[runnable[i]];
    // A slot is reused: a thread at its very beginning gets a priority of its own.
    const bool begins = pending.pending(runnable[i]) == nullptr;
    if (priority.value == 0 || (begins && !priority.new_thread))
      priority.value = change_at_.size() + 1 + (prng_.next() >> 1);
    priority.new_thread = begins;
    if (priority.value > priorities_[runnable[best]].value) best = i;
  }
  for (std::size_t i = 0; i < change_at_.size(); ++i) {
    if (change_at_[i] != step()) continue;
    priorities_[runnable[best]].value = i + 1;
    for (std::uint32_t other = 0; other < runnable.size(); ++other)
      if (priorities_[runnable[other]].value > priorities_[runnable[best]].value) best = other;
  }
  return best;
}

std::uint32_t PctScheduler::choose(Choice, std::uint32_t n) {
  if (n == 1 || (prng_.next() >> 63) != 0) return 0;
  return prng_.below(n);
}

}  // namespace assay::machine
