// Tests of the schedule string: it prints and parses, replays runs in every bit, and says where it
// does not fit.
#include "model/machine/schedule.hpp"

#include <string>
#include <vector>

#include "model/machine/explore_testing.hpp"
#include "model/machine/machine_testing.hpp"
#include "model/machine/ptx_memory.hpp"
#include "model/machine/schedulers.hpp"

namespace assay::machine {
namespace {

using assay::testing::prop;
using testing::Act;
using testing::execute_program;
using testing::Program;
using testing::small_config;

TEST_CASE("printing and parsing a schedule are inverse", "[MAC-7.1]") {
  prop("any schedule", [] {
    const auto answers = rc::gen::container<std::vector<ChoiceAnswer>>(rc::gen::build<ChoiceAnswer>(
        rc::gen::set(&ChoiceAnswer::kind,
                     rc::gen::element(Choice::kAdmitCta, Choice::kWordsFirst, Choice::kTimeout,
                                      Choice::kReadFrom, Choice::kPlaceWrite)),
        rc::gen::set(&ChoiceAnswer::value, rc::gen::inRange(1u, 20u))));
    Schedule schedule;
    schedule.before = *answers;
    for (std::uint32_t i = *rc::gen::inRange(0u, 12u); i > 0; --i) {
      ScheduleStep step;
      step.who = *rc::gen::element(0u, 1u, 12u, kHostNodeBit | 3u);
      step.run_length = *rc::gen::element(1u, 1u, 5u);
      if (*rc::gen::inRange(0, 3) == 0) step.answers = *answers;
      schedule.steps.push_back(step);
    }
    const std::string text = print_schedule(schedule);
    const Expected<Schedule> parsed = parse_schedule(text);
    RC_ASSERT(parsed.has_value());
    RC_ASSERT(*parsed == schedule);
    // Nothing that a shell would touch.
    RC_ASSERT(text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789.") == std::string::npos);
  });
}

TEST_CASE("a schedule is short and spelled in one way", "[MAC-7.1]") {
  Schedule schedule;
  CHECK(print_schedule(schedule) == "none");
  schedule.before = {{Choice::kAdmitCta, 2}};
  schedule.steps = {
      {3, 5, {{Choice::kReadFrom, 0}, {Choice::kReadFrom, 1}, {Choice::kPlaceWrite, 0}}},
      {0, 1, {}},
      {0, 1, {{Choice::kReadFrom, 0}}},
      {kHostNodeBit | 1u, 1, {}}};
  CHECK(print_schedule(schedule) == "c2.t3x5.r0.r1.2t0.h1");
}

TEST_CASE("what is no schedule is refused with the place", "[MAC-7.1]") {
  const auto refusal = [](const char* text) {
    const Expected<Schedule> parsed = parse_schedule(text);
    REQUIRE(!parsed.has_value());
    return parsed.error().sentence;
  };
  CHECK(refusal("t0.q7.t1") ==
        "schedule, token 2 at character 4: 'q7' begins with none of t (thread), h (host node), r, "
        "w, c, v, o (choices)");
  CHECK(refusal("") == "schedule, token 1 at character 1: '' names no thread or choice");
  CHECK(refusal("t0..t1") == "schedule, token 2 at character 4: '' names no thread or choice");
  CHECK(refusal("t") == "schedule, token 1 at character 1: 't' has no number where one is needed");
  CHECK(refusal("t1y") == "schedule, token 1 at character 1: 't1y' goes on with 'y'");
  CHECK(refusal("t1x0") ==
        "schedule, token 1 at character 1: 't1x0' has run length 0; allowed are 1 and more");
  CHECK(refusal("0t1") ==
        "schedule, token 1 at character 1: '0t1' repeats a step 0 times; leave it out");
  CHECK(refusal("t1.2r1") ==
        "schedule, token 2 at character 4: '2r1' repeats a choice; write it as often as it was "
        "asked");
  CHECK(refusal("t99999999999999999999") ==
        "schedule, token 1 at character 1: 't99999999999999999999' has a number above 2147483647");
  CHECK(refusal("100000000t1.t1") ==
        "schedule, token 2 at character 13: 't1' makes more than 100000000 steps");
  CHECK(refusal("T1").find("'T1' begins with none of") != std::string::npos);
}

// ---- replay ------------------------------------------------------------------------------------

struct Ran {
  RunResult result;
  std::string log;
};
// A program of several operations, some of them vectors, with limited residency and time-outs, so
// that every kind of choice is asked.
Ran busy(std::unique_ptr<Scheduler> scheduler, bool weak_memory, std::uint32_t resident = 2) {
  MachineParts parts;
  parts.scheduler = std::move(scheduler);
  if (weak_memory) parts.make_memory_model = ptx_memory(Boundary::kPtx);
  MachineConfig config = small_config(1, 2, 2);
  config.resident_ctas = resident;
  config.timeouts_fire = true;
  Machine machine(config, std::move(parts));
  Ran ran;
  const Window window = machine.allocate_window("window", 256, 16, Fill::kZero);
  for (std::int32_t r = 0; r < 2; ++r) {
    testing::enqueue(machine, r, "busy", 4, [&ran, window](SimOps& ops) {
      const Address theirs = window.of(RankId(1 - ops.rank().value()));
      const auto me =
          static_cast<std::uint32_t>(ops.rank().value()) * 8 + ops.cta() * 2 + ops.thread();
      ops.store(relaxed_sys, Site::kDispatchStorePayload, theirs.at(16), Vec16{{me, me, me, me}});
      ran.log += std::to_string(
          ops.load(as<Vec16>, relaxed_sys, Site::kCombinePull, theirs.at(16)).word[2]);
      ran.log += std::to_string(ops.atomic_add(relaxed_sys, Site::kDispatchTicket, theirs, 1u));
      if (ops.cta() == 3)
        ran.log +=
            std::to_string(ops.wait_until(as<std::uint32_t>, relaxed_sys, Site::kDispatchWait,
                                          theirs, Await{~0u, 100 + ops.thread()})
                               .seen);
      ops.store(relaxed_sys, Site::kDispatchStorePayload, theirs.at(16), Vec16{{me, me, me, me}});
    });
    machine.enqueue_host(RankId(r), kDefaultStream, "host", [&ran] { ran.log += 'h'; });
  }
  ran.result = machine.run();
  return ran;
}

TEST_CASE("a recorded schedule replays the run in every bit", "[MAC-7.1]") {
  std::string letters;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const bool weak_memory = seed % 2 == 0;
    std::unique_ptr<Scheduler> inner;
    if (seed % 3 == 0) {
      inner = std::make_unique<PctScheduler>(seed, 3, 60);
    } else {
      inner = std::make_unique<RandomScheduler>(seed, seed % 3 == 1 ? 1 : 8);
    }
    Schedule schedule;
    const Ran first = busy(record_schedule(std::move(inner), &schedule), weak_memory);
    REQUIRE(first.result.report == "");
    const std::string text = print_schedule(schedule);
    letters += text;
    const Expected<Schedule> parsed = parse_schedule(text);
    REQUIRE(parsed.has_value());
    ReplayReport report;
    const Ran again = busy(replay_schedule(&*parsed, &report), weak_memory);
    REQUIRE(replay_fitted(*parsed, report));
    CHECK(again.result.schedule_hash == first.result.schedule_hash);
    CHECK(again.result.counters.ordered_operations == first.result.counters.ordered_operations);
    CHECK(again.log == first.log);
  }
  for (const char letter : {'t', 'h', 'x', 'r', 'w', 'c', 'v', 'o'})
    CHECK(letters.find(letter) != std::string::npos);
}

TEST_CASE("a schedule that does not fit ends the run and says at which step", "[MAC-7.1]") {
  const auto misfit = [](const std::string& text, std::uint32_t resident = 2) {
    const Expected<Schedule> schedule = parse_schedule(text);
    REQUIRE(schedule.has_value());
    ReplayReport report;
    const Ran ran = busy(replay_schedule(&*schedule, &report), false, resident);
    const Status fitted = replay_fitted(*schedule, report);
    REQUIRE(!fitted);
    if (!report.misfit.empty()) {
      CHECK(ran.result.status == RunStatus::kAbandoned);
      CHECK(ran.result.report == report.misfit);
    }
    return fitted.error().sentence;
  };
  const std::string prefix = "the schedule does not fit the program at step ";
  CHECK(misfit("none") ==
        prefix +
            "1: the schedule has ended, the program has not: what it was recorded on stopped here");
  CHECK(misfit("t0.t9") == prefix + "2: t9 cannot run; t0, t1, t2, t3, t4, t5, t6, t7 can");
  CHECK(misfit("h0") == prefix + "1: h0 cannot run; t0, t1, t2, t3, t4, t5, t6, t7 can");
  CHECK(misfit("t0.r1") == prefix +
                               "1: the program asks which words of a vector move first (v), "
                               "the schedule answers r1");
  CHECK(misfit("t0.v16") ==
        prefix +
            "1: v16 answers which words of a vector move first, and there are 16 alternatives");
  CHECK(misfit("t0.v3.v1.t1") ==
        prefix + "1: the program asks 1 questions, the schedule answers 2");
  CHECK(misfit("c7.t0") == prefix + "0: c7 answers which CTA starts, and there are 4 alternatives");
}

TEST_CASE("a schedule that goes on behind the end of the program does not fit", "[MAC-7.1]") {
  Program program;
  program.threads = {{{Act::kStore, 0, 1}}};
  const Execute execute = execute_program(program);
  CHECK(replay("2t0", execute).has_value());
  const Expected<Outcome> longer = replay("3t0", execute);
  REQUIRE(!longer.has_value());
  CHECK(longer.error().sentence ==
        "the schedule does not fit the program: it has 3 steps, and the program ended after 2");
  const Expected<Outcome> answers = replay("2t0.r1", execute);
  REQUIRE(!answers.has_value());
  CHECK(answers.error().sentence ==
        "the schedule does not fit the program at step 2: the program asks 0 questions, the "
        "schedule answers 1");
}

}  // namespace
}  // namespace assay::machine
