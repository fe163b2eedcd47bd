// Makes a counterexample small (SPEC MAC-7.9): fewer switches of threads first, then fewer answers
// that are not the default, then fewer steps. Delta debugging (Zeller, Hildebrandt, "Simplifying
// and Isolating Failure-Inducing Input", IEEE TSE 2002) over the parts of the schedule, with a
// replayer that bends what does not fit.
#pragma once

#include <cstdint>

#include "model/machine/explore.hpp"
#include "model/machine/schedule.hpp"

namespace assay::machine {

struct ScheduleSize {
  std::uint64_t switches = 0;     // of threads
  std::uint64_t odd_choices = 0;  // answers that are not 0
  std::uint64_t steps = 0;
  friend auto operator<=>(const ScheduleSize&, const ScheduleSize&) = default;
};
ScheduleSize size_of(const Schedule& schedule);

struct Minimised {
  Schedule schedule;
  Outcome outcome;
  std::uint32_t executions = 0;
};

// `found` is what `schedule` gave. A smaller schedule is taken when its outcome is not ok either
// and begins with the same word. At most `max_executions` are spent. The result has been replayed.
Minimised minimise(const Schedule& schedule, const Outcome& found, const Execute& execute,
                   std::uint32_t max_executions);

// Runs `schedule` as far as it fits: steps of threads that cannot run are skipped, missing answers
// are 0, and behind its end the running thread goes on as long as it can.
std::unique_ptr<Scheduler> bend_schedule(const Schedule* schedule);

}  // namespace assay::machine
