// Everything in a run that is not decided by the bodies is a question to the Scheduler: which
// thread runs next, which CTA is admitted, which of several readable values a load returns. Its
// answers are the whole schedule, so recording them records the run and answering from a record
// replays it (SPEC MAC-4.1). Decides who runs; decides nothing about what an operation does.
//
// Read next: schedulers.hpp (PCT), schedule.hpp (a run as a string), explore.hpp (searches).
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/core/ops.hpp"
#include "model/core/prng.hpp"

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
  // The one address of a place that has several (Memory::canonical).
  virtual Address canonical(Address address) const = 0;

 protected:
  ~PendingOperations() = default;
};

// What choose_runnable returns to end the run (RunStatus::kAbandoned).
inline constexpr std::uint32_t kAbandonRun = ~std::uint32_t{0};

// A question about the history of one location, asked by models with weak memory for every element
// of every operation with an order, also when there is only one alternative: a search prunes by it.
struct WriteChoice {
  Choice kind = Choice::kReadFrom;  // or kPlaceWrite
  Address address;                  // of the element
  std::uint32_t bytes = 0;
  // One entry per alternative, newest in coherence order first: the Scheduler::step() at which that
  // write was performed; 0 for what was there before the run and for host writes. kReadFrom:
  // alternative i returns that write. kPlaceWrite: the store lands directly after that write.
  std::span<const std::uint64_t> written_at;
};

// An answer to a WriteChoice, for observers.
struct WriteTaken {
  Choice kind = Choice::kReadFrom;
  Address address;
  std::uint32_t bytes = 0;
  std::uint64_t written_at = 0;
  std::uint32_t index = 0;  // 0: the newest
  std::uint32_t num_alternatives = 1;
};

class Scheduler {
 public:
  virtual ~Scheduler() = default;
  // Returns an index into `runnable`, which is never empty, or kAbandonRun.
  virtual std::uint32_t choose_runnable(std::span<const RunnableId> runnable,
                                        const PendingOperations& pending) = 0;
  // Returns a number in [0, n); n >= 1.
  virtual std::uint32_t choose(Choice kind, std::uint32_t n) = 0;
  // How many ordered operations the thread just chosen performs before the next choose_runnable; at
  // least 1. (It stops earlier when it waits or ends.) 1 asks at every ordered operation.
  virtual std::uint32_t run_length() = 0;
  // Why choose_runnable returned kAbandonRun: a sentence without a full stop.
  virtual std::string why_abandoned() const { return {}; }

  // For memory models. Returns an index into which.written_at, which is not empty.
  std::uint32_t choose_write(const WriteChoice& which) {
    const auto n = static_cast<std::uint32_t>(which.written_at.size());
    const std::uint32_t index = choose_among_writes(which);
    if (log_ != nullptr)
      log_->push_back({which.kind, which.address, which.bytes, which.written_at[index], index, n});
    return index;
  }

  // How many times choose_runnable has been asked: the number of the step that is being performed,
  // counted from 1 over all runs of a machine. Kept by the engine.
  std::uint64_t step() const { return step_; }
  void begin_step() { ++step_; }
  // Where choose_write writes its answers down for an observer; nullptr for nowhere.
  void log_writes(std::vector<WriteTaken>* log) { log_ = log; }

 protected:
  virtual std::uint32_t choose_among_writes(const WriteChoice& which) {
    const auto n = static_cast<std::uint32_t>(which.written_at.size());
    return n == 1 ? 0 : choose(which.kind, n);
  }

 private:
  std::uint64_t step_ = 0;
  std::vector<WriteTaken>* log_ = nullptr;
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
