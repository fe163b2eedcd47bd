// Tests of the reduced search: it leaves out nothing, and does nothing twice.
#include <functional>
#include <set>
#include <string>

#include "model/machine/explore.hpp"
#include "model/machine/explore_testing.hpp"
#include "model/machine/machine_testing.hpp"
#include "model/machine/ptx_memory.hpp"

namespace assay::machine {
namespace {

using assay::testing::prop;
using testing::Act;
using testing::execute_program;
using testing::Instruction;
using testing::names;
using testing::outcomes_of;
using testing::Program;
using testing::small_config;

Instruction load(std::uint32_t word) { return {Act::kLoad, word, 0}; }
Instruction store(std::uint32_t word, std::uint32_t value) { return {Act::kStore, word, value}; }
Instruction add(std::uint32_t word) { return {Act::kAdd, word, 1}; }
Instruction wait(std::uint32_t word, std::uint32_t value) { return {Act::kWait, word, value}; }
const Instruction kFence{Act::kFence, 0, 0};

Program program_of(std::vector<std::vector<Instruction>> threads) {
  Program program;
  program.threads = std::move(threads);
  return program;
}
const testing::MakeModel kSequential;
const testing::MakeModel kWeak = ptx_memory(Boundary::kPtx);

// ---- nothing is missed -------------------------------------------------------------------------

void check_equal_outcomes(const Program& program, const testing::MakeModel& make_model) {
  const Execute execute = execute_program(program, make_model);
  const Exploration all = outcomes_of(execute, false);
  RC_PRE(all.exhausted);
  const Exploration reduced = outcomes_of(execute, true);
  RC_ASSERT(reduced.exhausted);
  RC_ASSERT(names(reduced) == names(all));
  RC_ASSERT(reduced.executions + reduced.blocked <= all.executions);
}

TEST_CASE("the reduced search sees every outcome that all interleavings have",
          "[long][MAC-7.5][MAC-7.6][MAC-7.7]") {
  prop("sequential memory", [] {
    check_equal_outcomes(*testing::small_programs({6, false, false}), {});
  });
  prop("sequential memory with vectors", [] {
    check_equal_outcomes(*testing::small_programs({3, false, true}), {});
  });
  prop("weak memory", [] {
    check_equal_outcomes(*testing::small_programs({4, true, false}), kWeak);
  });
  prop("weak memory with vectors", [] {
    check_equal_outcomes(*testing::small_programs({3, true, true}), kWeak);
  });
}

TEST_CASE("a search with a broken reduction misses outcomes", "[MAC-7.5][MAC-7.6]") {
  const auto misses = [](const Program& program, const testing::MakeModel& model,
                         SearchFault fault) {
    const Execute execute = execute_program(program, model);
    const std::set<std::string> all = names(outcomes_of(execute, false));
    CHECK(names(outcomes_of(execute, true)) == all);
    return names(outcomes_of(execute, true, fault)) != all;
  };
  const Program adders = program_of({{add(0)}, {add(0)}});
  const Program stores = program_of({{store(0, 1)}, {store(0, 2)}});
  const Program mixed = program_of({{store(0, 1), load(1)}, {load(0), store(1, 1)}, {load(0)}});
  CHECK(misses(stores, kSequential, SearchFault::kStoresAreReads));
  for (const testing::MakeModel& model : {kSequential, kWeak}) {
    CHECK(misses(adders, model, SearchFault::kAtomicsAreReads));
    CHECK(misses(mixed, model, SearchFault::kKeepAsleep));
  }
  // Only where a later write takes the awaited value away.
  const Execute taken_away = execute_program(program_of({{wait(0, 0)}, {store(0, 1)}}));
  CHECK(outcomes_of(taken_away, true).outcomes.size() == 2);
  CHECK(outcomes_of(taken_away, true, SearchFault::kWaitsAreNotReversed).outcomes.size() == 1);
}

TEST_CASE("who waits for ever polls for ever, and a poll may be a race", "[MAC-5.4]") {
  // The value that ends the wait may be gone before the thread looks; then it looks again.
  const Program program = program_of({{kFence, {Act::kWeakStore, 0, 1}}, {wait(0, 0)}});
  for (const bool reduce : {false, true}) {
    const Exploration found = outcomes_of(execute_program(program, kWeak), reduce);
    CHECK(names(found) == std::set<std::string>{"fault"});
  }
}

// ---- nothing is done twice ---------------------------------------------------------------------

TEST_CASE("one execution per class of equivalent ones", "[MAC-7.6][MAC-7.7]") {
  const auto executions = [](std::vector<std::vector<Instruction>> threads,
                             const testing::MakeModel& model) {
    const Exploration found = outcomes_of(execute_program(program_of(threads), model), true);
    CHECK(found.exhausted);
    CHECK(found.blocked == 0);
    return found.executions;
  };
  for (const testing::MakeModel& model : {kSequential, kWeak}) {
    CHECK(executions({{store(0, 1)}, {store(1, 2)}}, model) == 1);
    CHECK(executions({{store(0, 1)}, {store(0, 2)}, {store(0, 3)}, {store(0, 4)}}, model) == 24);
    CHECK(executions({{add(0)}, {add(0)}, {add(0)}, {add(0)}}, model) == 24);
    CHECK(executions({{load(0)}, {load(0)}, {load(0)}, {load(0)}}, model) == 1);
    // Each reader comes before or after the write.
    CHECK(executions({{store(0, 1)}, {load(0)}, {load(0)}, {load(0)}}, model) == 8);
    // Where three loads fall among three stores: 20 ways.
    CHECK(executions({{store(0, 1), store(0, 2), store(0, 3)}, {load(0), load(0), load(0)}},
                     model) == 20);
    CHECK(executions({{kFence}, {kFence}, {kFence}}, model) == 6);
  }
  // Message passing: the fourth outcome needs weak memory, and a wait leaves two of the four.
  CHECK(executions({{store(0, 1), store(1, 1)}, {load(1), load(0)}}, kSequential) == 3);
  CHECK(executions({{store(0, 1), store(1, 1)}, {load(1), load(0)}}, kWeak) == 4);
  CHECK(executions({{store(0, 1), store(1, 1)}, {wait(1, 1), load(0)}}, kSequential) == 1);
  CHECK(executions({{store(0, 1), store(1, 1)}, {wait(1, 1), load(0)}}, kWeak) == 2);
}

TEST_CASE("threads that begin, meet or end are no reason for another execution", "[MAC-7.6]") {
  for (const std::uint32_t group_size : {2u, 4u}) {
    const Exploration found = explore({}, [&](MachineParts parts) {
      Machine machine(small_config(1, 2, group_size), std::move(parts));
      for (std::int32_t r = 0; r < 2; ++r)
        testing::enqueue(machine, r, "meet", 2, [](SimOps& ops) {
          ops.barrier(Site::kDispatchTokenDone);
          ops.fence(release_sys, Site::kDispatchRelease);
          ops.barrier(Site::kDispatchTokenDone);
        });
      return Outcome{machine.run().ok(), "ends badly"};
    });
    CHECK(found.exhausted);
    CHECK(found.executions == 1);
    CHECK(found.blocked == 0);
  }
}

// ---- structure ---------------------------------------------------------------------------------

// Runs `build` on a machine and names the end: the log and the status.
using Build = std::function<void(Machine&, std::string& log)>;
Execute logged(MachineConfig config, const Build& build) {
  return [config, build](MachineParts parts) {
    parts.make_memory_model = ptx_memory(config.boundary);
    Machine machine(config, std::move(parts));
    std::string log;
    build(machine, log);
    const RunResult result = machine.run();
    // How far the others had come when a fault ended the run is not told apart (SPEC MAC-7.8).
    if (result.status == RunStatus::kFault) return Outcome{false, result.report};
    return Outcome{result.ok(), log + " " + run_status_name(result.status)};
  };
}
void check_structure(const MachineConfig& config, const Build& build, std::size_t num_outcomes) {
  const Execute execute = logged(config, build);
  const Exploration all = outcomes_of(execute, false);
  const Exploration reduced = outcomes_of(execute, true);
  CHECK(all.exhausted);
  CHECK(reduced.exhausted);
  CHECK(names(reduced) == names(all));
  CHECK(names(all).size() == num_outcomes);
  CHECK(reduced.executions + reduced.blocked <= all.executions);
}
// A ticket orders the kernels of different streams, and is what the others see of a CTA.
std::function<void(SimOps&)> ticket(std::string& log, Address word, char name) {
  return [&log, word, name](SimOps& ops) {
    log += name + std::to_string(ops.cta()) + "=" +
           std::to_string(ops.atomic_add(relaxed_gpu, Site::kDispatchTicket, word, 1u)) + " ";
  };
}

TEST_CASE("the search covers streams, host nodes and residency", "[MAC-7.6]") {
  MachineConfig config = small_config(1, 1, 1);
  check_structure(
      config,
      [](Machine& machine, std::string& log) {
        const Address word = machine.allocate(RankId(0), "w", 4, 4, Fill::kZero);
        const StreamId other = machine.add_stream(RankId(0));
        testing::enqueue(machine, 0, "a", 1, ticket(log, word, 'a'));
        machine.enqueue_host(RankId(0), kDefaultStream, "h", [&log] { log += "h "; });
        machine.enqueue(RankId(0), other, Kernel{"b", 1, ticket(log, word, 'b')});
      },
      3);
  config.resident_ctas = 1;
  check_structure(
      config,
      [](Machine& machine, std::string& log) {
        const Address word = machine.allocate(RankId(0), "w", 4, 4, Fill::kZero);
        testing::enqueue(machine, 0, "a", 3, ticket(log, word, 'a'));
      },
      6);
  config.resident_ctas = 2;
  check_structure(
      config,
      [](Machine& machine, std::string& log) {
        const Address word = machine.allocate(RankId(0), "w", 4, 4, Fill::kZero);
        testing::enqueue(machine, 0, "a", 3, ticket(log, word, 'a'));
      },
      6);
}

TEST_CASE("the search covers time-outs and kernels that overlap", "[MAC-7.6]") {
  MachineConfig config = small_config(1, 1, 1);
  config.timeouts_fire = true;
  // Two waits for what never comes: either gives up first, and the second sees what that one did.
  check_structure(
      config,
      [](Machine& machine, std::string& log) {
        const Address word = machine.allocate(RankId(0), "w", 4, 4, Fill::kZero);
        testing::enqueue(machine, 0, "a", 2, [&log, word](SimOps& ops) {
          ops.wait_until(as<std::uint32_t>, relaxed_gpu, Site::kDispatchWait, word, Await{~0u, 7});
          ticket(log, word, 'a')(ops);
        });
      },
      2);
  config.timeouts_fire = false;
  for (const Boundary boundary : {Boundary::kPtx, Boundary::kPdl}) {
    config.boundary = boundary;
    check_structure(
        config,
        [](Machine& machine, std::string& log) {
          const Address word = machine.allocate(RankId(0), "w", 4, 4, Fill::kZero);
          testing::enqueue(machine, 0, "a", 2, [&log, word](SimOps& ops) {
            ops.launch_dependents(Site::kDispatchTicket);
            ticket(log, word, 'a')(ops);
          });
          testing::enqueue(machine, 0, "b", 1, [&log, word](SimOps& ops) {
            ticket(log, word, 'b')(ops);
            ops.wait_for_grid(Site::kDispatchTicket);
            ticket(log, word, 'c')(ops);
          });
        },
        boundary == Boundary::kPdl ? 6 : 2);
  }
}

TEST_CASE("behind a run that ends early the others are explored", "[MAC-7.8]") {
  const MachineConfig config = small_config(1, 1, 1);
  // CTA 0 reads what CTA 1 may not have written yet; CTAs 2 and 3 race for a ticket of their own.
  check_structure(
      config,
      [](Machine& machine, std::string& log) {
        const Address poison = machine.allocate(RankId(0), "p", 4, 4, Fill::kPoison);
        const Address word = machine.allocate(RankId(0), "w", 4, 4, Fill::kZero);
        testing::enqueue(machine, 0, "a", 4, [&log, poison, word](SimOps& ops) {
          if (ops.cta() == 0) {
            ops.load(as<std::uint32_t>, relaxed_gpu, Site::kDispatchReadIds, poison);
          } else if (ops.cta() == 1) {
            ops.store(relaxed_gpu, Site::kDispatchFlag, poison, 1u);
          } else {
            const auto old = ops.atomic_add(relaxed_gpu, Site::kDispatchTicket, word, 1u);
            if (old == 1) log = std::to_string(ops.cta());
          }
        });
      },
      3);  // the fault; or well, with CTA 2 or 3 second
}

}  // namespace
}  // namespace assay::machine
