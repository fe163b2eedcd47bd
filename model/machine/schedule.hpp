// A run as a string: every answer that the scheduler gave, so that answering from the string
// repeats the run in every bit (SPEC MAC-7.1). Decides the spelling, what is recorded and how a
// string that does not fit a program is refused.
//
//   t3          one step of thread slot 3: run length 1
//   t3x5        one step of thread slot 3 with run length 5
//   4t3         four such steps in a row
//   h1          the host node at the head of stream 1
//   r2 w1       while that step runs: a load takes the third newest readable write (kReadFrom); a
//               store lands after the second newest (kPlaceWrite)
//   c1 v6 o0    the CTA that starts (kAdmitCta), the words of a vector that move first
//               (kWordsFirst), the wait that times out (kTimeout)
//
// Joined by dots: "t0.r1.3t2.t0x4". Answers of 0 at the end of a step are left out. Answers before
// the first step stand before it. An empty schedule is "none".
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/core/core.hpp"
#include "model/machine/scheduler.hpp"

namespace assay::machine {

struct ChoiceAnswer {
  Choice kind = Choice::kReadFrom;
  std::uint32_t value = 0;
  friend bool operator==(const ChoiceAnswer&, const ChoiceAnswer&) = default;
};

struct ScheduleStep {
  RunnableId who = 0;
  std::uint32_t run_length = 1;
  std::vector<ChoiceAnswer> answers;  // asked after `who` was chosen, before the next step
  friend bool operator==(const ScheduleStep&, const ScheduleStep&) = default;
};

struct Schedule {
  std::vector<ChoiceAnswer> before;  // asked before the first step
  std::vector<ScheduleStep> steps;
  friend bool operator==(const Schedule&, const Schedule&) = default;
};

std::string print_schedule(const Schedule& schedule);
// Errors name the place: "schedule, token 3 at character 6: 'q7' ...".
Expected<Schedule> parse_schedule(std::string_view text);

// Asks `inner` and writes its answers down in `into`, which outlives the scheduler.
std::unique_ptr<Scheduler> record_schedule(std::unique_ptr<Scheduler> inner, Schedule* into);

// What became of a replay.
struct ReplayReport {
  // Empty when the schedule fitted the program and was used up. Else the first place where not:
  // "step 7: thread slot 3 cannot run; t0 or t2 can".
  std::string misfit;
  std::uint64_t steps = 0;         // taken so far
  std::uint64_t answers_used = 0;  // of the last of them
};
// Answers from `schedule`; abandons the run where it does not fit. Both outlive the scheduler.
std::unique_ptr<Scheduler> replay_schedule(const Schedule* schedule, ReplayReport* report);
// After the machine has run: misfit, or that steps are left over.
Status replay_fitted(const Schedule& schedule, const ReplayReport& report);

}  // namespace assay::machine
