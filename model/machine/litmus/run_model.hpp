// Runs a litmus test on the simulated machine under every schedule: each thread of the test is a
// simulated thread whose body performs its instructions through SimOps, and what all executions
// leave behind is gathered (SPEC MAC-8.3). Decides how instructions become operations of the
// machine; what an operation may do is ptx_memory.hpp, which schedules are run is explore.hpp.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>

#include "model/machine/litmus/litmus.hpp"
#include "model/machine/memory_model.hpp"

namespace assay::machine::litmus {

// Makes the memory under test; for mutants (model_faults.hpp).
using MakeMemory =
    std::function<std::unique_ptr<MemoryModel>(Memory&, Scheduler&, Boundary boundary)>;

struct ModelConfig {
  Boundary boundary = Boundary::kPtx;
  bool reduce = true;  // false: every interleaving
  std::uint64_t max_executions = 2'000'000;
  MakeMemory make_memory;  // empty: PtxMemory
};

struct ModelResult {
  std::set<Outcome> outcomes;
  std::string race;     // the sentence of some execution with a data race, or empty
  std::string trouble;  // of an execution that ended in anything else but well
  std::uint64_t executions = 0;
  std::uint64_t blocked = 0;
  bool exhausted = false;
};

ModelResult explore_model(const Test& test, const ModelConfig& config);

// What the machine says about the condition of a test: race before anything else.
Verdict model_verdict(const Test& test, const ModelResult& result);

// What the machine must say where a verdict is expected: it never shows what is unexplored.
constexpr Verdict expected_of_model(Verdict expected) {
  return expected == Verdict::kUnexplored ? Verdict::kForbidden : expected;
}

// The machine has no fence.proxy.alias: tests with one are for the axioms and the GPU (SPEC
// MAC-8.4).
bool model_can_run(const Test& test);

}  // namespace assay::machine::litmus
