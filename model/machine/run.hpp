// What a run is given (MachineConfig, Kernel) and what it returns (RunResult). Decides the
// defaults; machine.hpp says how they are used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>

#include "model/core/id.hpp"
#include "model/machine/memory_model.hpp"
#include "model/machine/scheduler.hpp"

namespace assay::machine {

class SimOps;
class Observer;
class StackPool;

// What the end of a kernel orders (SPEC MAC-6). kPtx: only its own stream. kFlush: its threads have
// fenced at system scope, which is what hardware is assumed to do. kPdl: as kPtx, and the next
// kernel of the stream may start as soon as every CTA of this one has ended or has executed
// launch_dependents; only wait_for_grid orders the two.
enum class Boundary : std::uint8_t { kPtx, kFlush, kPdl };

struct MachineConfig {
  std::int32_t num_ranks = 1;
  std::uint32_t group_size = 4;  // threads of a CTA, unless the Kernel says otherwise
  // CTAs of one rank that may be started and not ended at the same time. A protocol must terminate
  // at the smallest number that it declares, in any order of admission (SPEC MAC-5.2).
  std::uint32_t resident_ctas = std::numeric_limits<std::uint32_t>::max();
  std::uint64_t seed = 1;
  // Longest run of ordered operations by one thread between two choices of the scheduler.
  // 1 lets threads switch at every ordered operation.
  std::uint32_t longest_run = 64;
  // Operations that one run() may perform. The default is minutes of work: it ends a livelock, it
  // does not measure.
  std::uint64_t step_budget = 20'000'000'000;
  // When nothing can move: end waits with timed_out, one at a time, instead of reporting a
  // deadlock.
  bool timeouts_fire = false;
  Boundary boundary = Boundary::kPtx;
  // Host stack of one simulated thread; sanitizer builds take four times as much.
  std::size_t stack_bytes = 64 * 1024;
};

// Parts that replace the defaults (a random scheduler, sequential memory).
struct MachineParts {
  std::unique_ptr<Scheduler> scheduler;
  std::function<std::unique_ptr<MemoryModel>(Memory&, Scheduler&)> make_memory_model;
  Observer* observer = nullptr;  // outlives the machine (observer.hpp)
  // Fiber stacks that several machines of one operating system thread use one after another.
  std::shared_ptr<StackPool> stacks;
};

using StreamId = Id<struct StreamTag, std::uint32_t>;  // counted per rank
inline constexpr StreamId kDefaultStream{0};

struct Kernel {
  std::string name;
  std::uint32_t num_ctas = 1;
  std::function<void(SimOps&)> body;  // called once per thread, on a fiber
  std::uint32_t group_size = 0;       // 0: MachineConfig::group_size
  // Launched with the attribute of programmatic stream serialisation: under Boundary::kPdl it may
  // start before a kernel in front of it has ended. Elsewhere it means nothing.
  bool programmatic = true;
};

enum class RunStatus : std::uint8_t {
  kOk,
  kDeadlock,           // nobody can move and not everything has ended
  kBudgetExhausted,    // step_budget operations were performed
  kFault,              // an access that is illegal: bounds, alignment, poison, reach, shared race
  kBarrierDivergence,  // the threads of a group do not meet at one barrier
  kAbandoned,          // the scheduler ended the run; says nothing about the program
};
const char* run_status_name(RunStatus status);  // "ok", "deadlock", ...

struct RunCounters {
  std::uint64_t ordered_operations =
      0;  // atomics, barriers, fences, awaits, accesses with an order
  std::uint64_t weak_accesses = 0;
  std::uint64_t switches = 0;  // choices of the scheduler that put another thread in place
  std::uint64_t timeouts = 0;  // waits that ended with timed_out
};

struct RunResult {
  RunStatus status = RunStatus::kOk;
  // Empty when ok. Else a sentence; for a deadlock one more line per waiting thread.
  std::string report;
  MemoryEvent trouble;  // of a fault: the access that met it
  RunCounters counters;
  // Equal for equal schedules: covers who ran, in which order and for how long.
  std::uint64_t schedule_hash = 0;
  bool ok() const { return status == RunStatus::kOk; }
};

}  // namespace assay::machine
