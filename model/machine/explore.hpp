// The search over schedules: runs a program again and again, each time with another scheduler,
// until something is wrong, the space is exhausted or a budget ends. Decides which schedules are
// worth running (SPEC MAC-7); what is wrong with an execution is the caller's verdict.
//
//   ExploreConfig config;                       // exhaustive, reduced
//   config.max_seconds = 60;
//   const Exploration result = explore(config, [&](MachineParts parts) {
//     parts.make_memory_model = ...;            // optional
//     Machine machine(machine_config, std::move(parts));
//     ... allocate, enqueue ...
//     const RunResult run = machine.run();
//     if (!run.ok()) return Outcome{false, run.report};
//     return Outcome{result_is_right, "what is wrong"};
//   });
//   if (result.counterexample) print(result.counterexample->schedule);
//
// `execute` builds exactly one machine around the parts that it is handed, and is deterministic but
// for them. It may run the machine several times. When the search itself ends an execution early,
// run() returns RunStatus::kAbandoned and the outcome is not looked at.
//
// Read next: schedule.hpp (the schedule string), timeline.hpp (a counterexample for people).
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>

#include "model/core/core.hpp"
#include "model/machine/run.hpp"

namespace assay::machine {

enum class Search : std::uint8_t {
  kRandom,      // RandomScheduler, one seed per execution (SPEC MAC-4.2)
  kPct,         // PctScheduler (SPEC MAC-7.3)
  kBounded,     // all schedules with at most max_preemptions preemptions (SPEC MAC-7.4)
  kExhaustive,  // all schedules, one per class of equivalent ones (SPEC MAC-7.5)
};

// Faults put into the reduced search itself: the tests of the reduction must notice them.
enum class SearchFault : std::uint8_t {
  kNone,
  kAtomicsAreReads,      // two atomics on one word do not depend on each other
  kStoresAreReads,       // nor two stores
  kWaitsAreNotReversed,  // a wait that never ends could not have ended earlier
  kKeepAsleep,           // a sleeping thread does not wake for what it depends on
};

// What the caller thinks of one execution. With ExploreConfig::collect_outcomes the sentence is the
// name of the final state, for instance "r0=1 r1=0", also when ok.
struct Outcome {
  bool ok = true;
  std::string sentence;
};
using Execute = std::function<Outcome(MachineParts)>;

struct ExploreConfig {
  Search search = Search::kExhaustive;
  std::uint64_t seed = 1;  // kRandom, kPct: execution i uses a seed derived from it and i
  std::uint64_t max_executions = std::numeric_limits<std::uint64_t>::max();
  double max_seconds = std::numeric_limits<double>::infinity();  // of wall clock
  std::uint32_t longest_run = 8;      // kRandom: as MachineConfig::longest_run
  std::uint32_t change_points = 3;    // kPct: d - 1 for bugs of depth d
  std::uint32_t max_preemptions = 2;  // kBounded
  // Do not stop at the first outcome that is not ok, but gather them all.
  bool collect_outcomes = false;
  // kExhaustive: false runs every interleaving; for tests of the reduction.
  bool reduce = true;
  SearchFault search_fault = SearchFault::kNone;
  // Executions that may be spent on making a counterexample smaller; 0 leaves it as found.
  std::uint32_t minimise_executions = 2000;
};

struct Counterexample {
  Outcome outcome;       // of `schedule`, which is the minimised one when minimisation is on
  std::string schedule;  // replays it (SPEC MAC-7.1)
  std::string found_schedule;
  std::uint64_t found_after = 0;  // executions, this one included
  std::uint64_t steps = 0;        // of `schedule`
  std::uint64_t switches = 0;     // of threads, in `schedule`
  std::uint64_t odd_choices = 0;  // answers of `schedule` that are not the default
};

struct SeenOutcome {
  bool ok = true;
  std::uint64_t executions = 0;
  std::string schedule;  // of the first execution that had it
};

struct Exploration {
  std::uint64_t executions = 0;  // complete ones
  // Executions that the reduced search ended because everything that could follow is equivalent to
  // something it runs elsewhere.
  std::uint64_t blocked = 0;
  std::uint64_t max_depth = 0;  // steps of the longest execution
  // kExhaustive, kBounded: there is nothing left to run (within the bound on preemptions).
  bool exhausted = false;
  double seconds = 0;
  std::optional<Counterexample> counterexample;  // the first one; never with collect_outcomes
  std::map<std::string, SeenOutcome> outcomes;   // with collect_outcomes
};

Exploration explore(const ExploreConfig& config, const Execute& execute);

// Runs one schedule. An error when it is no schedule, or does not fit the program.
Expected<Outcome> replay(const std::string& schedule, const Execute& execute,
                         Observer* observer = nullptr);

// "exhausted: 1234 executions (56 blocked), at most 78 steps, 0.9 s", for reports.
std::string summary(const Exploration& exploration);

}  // namespace assay::machine
