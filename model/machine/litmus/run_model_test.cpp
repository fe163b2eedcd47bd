// The simulated machine against the verdicts of the litmus files and against the axioms, with the
// search reduced and not, and with faults put into the memory model.
#include "model/machine/litmus/run_model.hpp"

#include <algorithm>

#include "model/machine/litmus/axioms.hpp"
#include "model/machine/litmus/litmus_testing.hpp"
#include "model/machine/litmus/model_faults.hpp"
#include "model/machine/ptx_memory.hpp"

namespace assay::machine::litmus {
namespace {

using testing::all_tests;
using testing::boundaries_of;

std::string list(const Test& test, const std::set<Outcome>& outcomes) {
  std::string out;
  for (const Outcome o : outcomes) out += "  " + outcome_text(test, o) + "\n";
  return out;
}

TEST_CASE("the machine agrees with every verdict of the litmus files", "[MAC-8.3][MAC-8.4]") {
  std::string wrong;
  std::uint64_t executions = 0, run = 0;
  for (const Test& test : all_tests()) {
    if (!model_can_run(test)) continue;
    for (const Boundary boundary : boundaries_of(test)) {
      ModelConfig config;
      config.boundary = boundary;
      const ModelResult result = explore_model(test, config);
      executions += result.executions;
      ++run;
      if (!result.exhausted || !result.trouble.empty())
        wrong += test.name + ": " + (result.exhausted ? result.trouble : "not exhausted") + "\n";
      const Verdict got = model_verdict(test, result);
      const Verdict wanted = expected_of_model(test.verdict(boundary));
      if (got != wanted) wrong += testing::wrong_verdict(test, boundary, got, wanted);
    }
  }
  INFO(executions << " executions of " << run << "\n" << wrong);
  CHECK(run >= 200);
  CHECK(wrong.empty());
}

// Where there is a race, the machine ends the execution and the sets cannot be compared.
TEST_CASE("the machine shows exactly the outcomes that the axioms allow", "[MAC-8.3]") {
  std::string wrong;
  for (const Test& test : all_tests()) {
    if (!model_can_run(test)) continue;
    for (const Boundary boundary : boundaries_of(test)) {
      const AxiomaticResult axioms = evaluate_axioms(test, boundary);
      if (axioms.race) continue;
      ModelConfig config;
      config.boundary = boundary;
      const ModelResult model = explore_model(test, config);
      const bool subset = std::includes(axioms.outcomes.begin(), axioms.outcomes.end(),
                                        model.outcomes.begin(), model.outcomes.end());
      const bool limited = test.verdict(boundary) == Verdict::kUnexplored;
      if (subset && (limited || model.outcomes == axioms.outcomes)) continue;
      wrong += test.name + " (" + boundary_name(boundary) + "): the machine shows\n" +
               list(test, model.outcomes) + " the axioms allow\n" + list(test, axioms.outcomes);
    }
  }
  INFO(wrong);
  CHECK(wrong.empty());
}

TEST_CASE("the reduced search shows the outcomes of the whole one", "[MAC-8.3]") {
  constexpr std::uint64_t kMaxExecutions = 20'000;  // unreduced, per test: seconds in all
  std::string wrong;
  std::uint64_t compared = 0;
  for (const Test& test : all_tests()) {
    if (!model_can_run(test)) continue;
    for (const Boundary boundary : boundaries_of(test)) {
      ModelConfig config;
      config.boundary = boundary;
      config.reduce = false;
      config.max_executions = kMaxExecutions;
      const ModelResult whole = explore_model(test, config);
      if (!whole.exhausted) continue;
      config.reduce = true;
      const ModelResult reduced = explore_model(test, config);
      ++compared;
      if (whole.outcomes != reduced.outcomes || whole.race.empty() != reduced.race.empty())
        wrong += test.name + ": all schedules show\n" + list(test, whole.outcomes) +
                 " the reduced search\n" + list(test, reduced.outcomes);
    }
  }
  INFO(compared << " compared\n" << wrong);
  CHECK(compared >= 150);
  CHECK(wrong.empty());
}

// What a flag to a peer costs when other CTAs have stored the data: their release at gpu scope, one
// acquire, one release at system scope. None of it can be left out.
TEST_CASE("one fence of system scope carries the data of other CTAs, and every fence is needed",
          "[MAC-8.6]") {
  const auto found = std::find_if(all_tests().begin(), all_tests().end(), [](const Test& test) {
    return test.name == "HANDOFF.fences.relaxed";
  });
  REQUIRE(found != all_tests().end());
  CHECK(model_verdict(*found, explore_model(*found, {})) == Verdict::kForbidden);
  int fences = 0;
  for (std::size_t t = 0; t < found->threads.size(); ++t)
    for (std::size_t i = 0; i < found->threads[t].code.size(); ++i) {
      if (found->threads[t].code[i].op != Op::kFence) continue;
      ++fences;
      Test without = *found;
      without.threads[t].code.erase(without.threads[t].code.begin() +
                                    static_cast<std::ptrdiff_t>(i));
      INFO("without " << found->threads[t].code[i].text << " of " << found->threads[t].name);
      CHECK(model_verdict(without, explore_model(without, {})) == Verdict::kAllowed);
      CHECK(axiomatic_verdict(without, evaluate_axioms(without, Boundary::kPtx)) ==
            Verdict::kAllowed);
    }
  CHECK(fences == 4);
}

// Each fault of the memory model changes the verdicts of the tests that are there for it.
TEST_CASE("a fault in the memory model fails the tests that are named for it", "[MAC-8.3]") {
  for (const NamedFault& named : kFaults) {
    std::vector<std::string> failed;
    for (const Test& test : all_tests()) {
      if (!model_can_run(test)) continue;
      for (const Boundary boundary : boundaries_of(test)) {
        ModelConfig config;
        config.boundary = boundary;
        // The reduction knows what atomics do, so it may not see that they are split.
        config.reduce = named.fault != ModelFault::kAtomicsSplit;
        config.make_memory = [&](Memory& memory, Scheduler& scheduler, Boundary b) {
          return faulty_memory(named.fault, std::make_unique<PtxMemory>(memory, scheduler, b));
        };
        if (std::find(std::begin(named.noticed_by), std::end(named.noticed_by), test.name) ==
            std::end(named.noticed_by))
          continue;
        const ModelResult result = explore_model(test, config);
        if (model_verdict(test, result) != expected_of_model(test.verdict(boundary)))
          failed.push_back(test.name);
      }
    }
    for (const char* name : named.noticed_by) {
      INFO(named.name << " is not noticed by " << name);
      CHECK(std::find(failed.begin(), failed.end(), name) != failed.end());
    }
  }
}

}  // namespace
}  // namespace assay::machine::litmus
