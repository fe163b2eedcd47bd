// Everything in a run that is not decided by the bodies is a question to the Scheduler: which
// thread runs next, which CTA is admitted, which of several readable values a load returns. Its
// answers are the whole schedule, so recording them records the run and answering from a record
// replays it (SPEC MAC-4.1). Decides who runs; decides nothing about what an operation does.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "model/machine/prng.hpp"

namespace assay::machine {

// Who can be run next: the slot of a simulated thread (slots are reused after a thread has ended),
// or kHostNodeBit + stream slot for a host node at the head of its stream.
using RunnableId = std::uint32_t;
inline constexpr RunnableId kHostNodeBit = 0x80000000u;

enum class Choice : std::uint8_t {
  kAdmitCta,    // which of n waiting CTAs of a rank becomes resident
  kWordsFirst,  // which of n = 16 subsets of a vector access's words arrive before a switch
  kTimeout,     // which of n waits ends with timed_out, when nothing else can move
  kReadFrom,    // which of n readable writes a load returns (models with weak memory)
  kPlaceWrite,  // at which of n places in coherence order a store lands (models with weak memory)
};

// What each runnable thread is about to do, for schedulers that look ahead.
struct MemoryEvent;
class PendingOperations {
 public:
  // nullptr for a host node, and for a thread that has not come to an ordered operation yet.
  virtual const MemoryEvent* pending(RunnableId who) const = 0;

 protected:
  ~PendingOperations() = default;
};

class Scheduler {
 public:
  virtual ~Scheduler() = default;
  // Returns an index into `runnable`, which is never empty.
  virtual std::uint32_t choose_runnable(std::span<const RunnableId> runnable,
                                        const PendingOperations& pending) = 0;
  // Returns a number in [0, n); n >= 1.
  virtual std::uint32_t choose(Choice kind, std::uint32_t n) = 0;
  // How many ordered operations the thread just chosen performs before the next choose_runnable; at
  // least 1. (It stops earlier when it waits or ends.) 1 asks at every ordered operation.
  virtual std::uint32_t run_length() = 0;
};

// Uniform choices. Run lengths are drawn in two steps, first a power of two up to `longest_run`,
// then a length up to it, so that one run mixes threads that hop with threads that rush ahead.
class RandomScheduler final : public Scheduler {
 public:
  RandomScheduler(std::uint64_t seed, std::uint32_t longest_run)
      : prng_(seed), num_magnitudes_(static_cast<std::uint32_t>(std::bit_width(longest_run))) {}

  std::uint32_t choose_runnable(std::span<const RunnableId> runnable,
                                const PendingOperations&) override {
    return choose_below(static_cast<std::uint32_t>(runnable.size()));
  }
  std::uint32_t choose(Choice, std::uint32_t n) override { return choose_below(n); }
  std::uint32_t run_length() override {
    return 1 + prng_.below(std::uint32_t{1} << prng_.below(num_magnitudes_));
  }

 private:
  std::uint32_t choose_below(std::uint32_t n) { return n == 1 ? 0 : prng_.below(n); }

  Prng prng_;
  std::uint32_t num_magnitudes_;
};

}  // namespace assay::machine
