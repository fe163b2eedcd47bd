// Tests of the searches that are not exhaustive, of budgets, and of counterexamples. The exhaustive
// one is explore_reduced_test.cpp.
#include "model/machine/explore.hpp"

#include <set>
#include <string>

#include "model/machine/explore_testing.hpp"
#include "model/machine/machine_testing.hpp"
#include "model/machine/ptx_memory.hpp"
#include "model/machine/schedulers.hpp"

namespace assay::machine {
namespace {

using testing::Act;
using testing::execute_program;
using testing::Instruction;
using testing::Program;
using testing::small_config;

// ---- the other searches ------------------------------------------------------------------------

Execute message(bool flag_first, bool weak_memory) {
  return [=](MachineParts parts) {
    if (weak_memory) parts.make_memory_model = ptx_memory(Boundary::kPtx);
    Machine machine(small_config(1, 2, 1), std::move(parts));
    std::uint32_t wrong_words = 0;
    const Window window =
        machine.allocate_window("inbox", 16 + testing::kVectors * 16, 16, Fill::kZero);
    testing::enqueue(machine, 0, "send", 1,
                     [&](SimOps& ops) { testing::send(ops, window, flag_first); });
    testing::enqueue(machine, 1, "receive", 1,
                     [&](SimOps& ops) { testing::receive(ops, window, wrong_words); });
    const RunResult result = machine.run();
    if (!result.ok()) return Outcome{false, result.report};
    return wrong_words == 0 ? Outcome{true, "right"} : Outcome{false, "wrong words"};
  };
}

TEST_CASE("a bug that needs k preemptions is found with k and not with fewer", "[MAC-7.4]") {
  // Only if both other threads add between the first thread's two loads of each pair.
  const auto lost = [](std::uint32_t num_pairs) {
    std::vector<Instruction> reads;
    std::vector<std::vector<Instruction>> threads;
    for (std::uint32_t i = 0; i < num_pairs; ++i) {
      reads.push_back(Instruction{Act::kLoad, 0, 0});
      threads.push_back({Instruction{Act::kAdd, 0, 1}});
    }
    reads.push_back(Instruction{Act::kLoad, 0, 0});
    threads.insert(threads.begin(), reads);
    Program program;
    program.threads = threads;
    const Execute inner = execute_program(program);
    const std::string bad = num_pairs == 1 ? "01|" : "012|";
    return [inner, bad](MachineParts parts) {
      Outcome outcome = inner(std::move(parts));
      outcome.ok = outcome.sentence.compare(0, bad.size(), bad) != 0;
      return outcome;
    };
  };
  for (const std::uint32_t needed : {1u, 2u}) {
    ExploreConfig config;
    config.search = Search::kBounded;
    config.max_preemptions = needed - 1;
    const Exploration fewer = explore(config, lost(needed));
    CHECK(fewer.exhausted);
    CHECK(!fewer.counterexample);
    config.max_preemptions = needed;
    CHECK(explore(config, lost(needed)).counterexample.has_value());
  }
}

TEST_CASE("PCT finds an ordering bug as often as its bound promises", "[MAC-7.3]") {
  ExploreConfig config;
  config.search = Search::kPct;
  config.collect_outcomes = true;
  config.max_executions = 2000;
  config.change_points = 1;
  const Exploration found = explore(config, message(true, false));
  REQUIRE(found.executions == 2000);
  std::uint64_t bad = 0;
  for (const auto& [name, seen] : found.outcomes) bad += seen.ok ? 0 : seen.executions;
  // Depth 1 (the receiver before the rest of the sender): at least one run in n = 2.
  CHECK(bad >= 2000 / 2 / 2);
  CHECK(bad < 2000);
}

TEST_CASE("a thread keeps its priority until a change point takes it away", "[MAC-7.3]") {
  struct Nothing final : PendingOperations {
    MemoryEvent event;
    const MemoryEvent* pending(RunnableId) const override { return &event; }
    Address canonical(Address address) const override { return address; }
  } nothing;
  const RunnableId all[] = {0, 1, 2, 3};
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    PctScheduler scheduler(seed, 2, 100);
    std::uint32_t switches = 0;
    std::uint32_t last = 4;
    std::set<std::uint32_t> ran;
    for (int step = 0; step < 100; ++step) {
      scheduler.begin_step();
      const std::uint32_t chosen = scheduler.choose_runnable(all, nothing);
      switches += last != 4 && chosen != last;
      last = chosen;
      ran.insert(chosen);
    }
    CHECK(switches <= 2);
    CHECK(ran.size() == switches + 1);
  }
}

TEST_CASE("every search is the same again with the same seed", "[MAC-7.2]") {
  for (const Search search :
       {Search::kRandom, Search::kPct, Search::kBounded, Search::kExhaustive}) {
    ExploreConfig config;
    config.search = search;
    config.seed = 5;
    const Exploration first = explore(config, message(true, true));
    const Exploration second = explore(config, message(true, true));
    REQUIRE(first.counterexample.has_value());
    REQUIRE(second.counterexample.has_value());
    CHECK(first.executions == second.executions);
    CHECK(first.counterexample->schedule == second.counterexample->schedule);
    CHECK(first.counterexample->found_schedule == second.counterexample->found_schedule);
    CHECK(first.counterexample->found_after == first.executions);
  }
}

TEST_CASE("a search ends with its budget and says so", "[MAC-7.2]") {
  ExploreConfig config;
  config.max_executions = 10;
  const Exploration few = explore(config, message(false, false));
  CHECK(few.executions == 10);
  CHECK(!few.exhausted);
  CHECK(summary(few).find("budget ended: 10 executions (0 blocked), at most 17 steps") == 0);
  config.max_executions = 1'000'000'000;
  config.max_seconds = 0.05;
  const Exploration brief = explore(config, message(false, false));
  CHECK(!brief.exhausted);
  CHECK(brief.seconds < 2);
  CHECK(summary(explore({}, message(false, true))).find("exhausted: 1 executions") == 0);
}

// ---- counterexamples ---------------------------------------------------------------------------

TEST_CASE("a counterexample is minimised and replays", "[MAC-7.9]") {
  for (const bool weak_memory : {false, true})
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      ExploreConfig config;
      config.search = Search::kRandom;
      config.seed = seed;
      const Execute execute = message(true, weak_memory);
      const Exploration found = explore(config, execute);
      REQUIRE(found.counterexample.has_value());
      const Counterexample& example = *found.counterexample;
      CHECK(example.outcome.sentence == "wrong words");
      // Sender, receiver, sender; or one switch and one old value.
      CHECK(example.switches + example.odd_choices <= 2);
      for (const std::string& schedule : {example.schedule, example.found_schedule}) {
        const Expected<Outcome> again = replay(schedule, execute);
        REQUIRE(again.has_value());
        CHECK(!again->ok);
      }
    }
}

TEST_CASE("without a budget for it a counterexample stays as found", "[MAC-7.9]") {
  ExploreConfig config;
  config.search = Search::kRandom;
  config.minimise_executions = 0;
  const Exploration found = explore(config, message(true, true));
  REQUIRE(found.counterexample.has_value());
  CHECK(found.counterexample->schedule == found.counterexample->found_schedule);
}

}  // namespace
}  // namespace assay::machine
