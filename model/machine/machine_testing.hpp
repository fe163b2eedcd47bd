// For the tests of this folder: a two-line way to run kernels, and all schedules of one. Decides
// nothing about the machine.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "model/core/testing.hpp"
#include "model/machine/explore_tree.hpp"
#include "model/machine/machine.hpp"

namespace assay::machine::testing {

inline MachineConfig small_config(std::uint64_t seed, std::int32_t num_ranks = 2,
                                  std::uint32_t group_size = 1) {
  MachineConfig config;
  config.num_ranks = num_ranks;
  config.group_size = group_size;
  config.seed = seed;
  config.step_budget = 1'000'000;
  return config;
}

inline void enqueue(Machine& machine, std::int32_t rank, const std::string& name,
                    std::uint32_t num_ctas, std::function<void(SimOps&)> body) {
  machine.enqueue(RankId(rank), kDefaultStream, Kernel{name, num_ctas, std::move(body)});
}

// Runs `execute` (which builds a machine around the scheduler, runs it and looks at the result)
// once per schedule, without any reduction, and returns how many there were.
inline std::uint64_t for_every_schedule(
    const std::function<void(std::unique_ptr<Scheduler>)>& execute) {
  TreeSearch search(TreeSearch::kNoBound);
  std::uint64_t executions = 0;
  do {
    execute(search.scheduler());
    ++executions;
    REQUIRE(executions < 2'000'000);
  } while (search.advance());
  return executions;
}

inline std::uint32_t host_u32(Machine& machine, Address from) {
  std::uint32_t value = 0;
  REQUIRE(machine.read(from, std::as_writable_bytes(std::span(&value, 1))));
  return value;
}

// Rank 0 sends kVectors vectors and a flag to rank 1, whose threads wait and read them.
inline constexpr std::uint32_t kVectors = 5;
template <Ops O>
void send(O& ops, Window window, bool flag_first) {
  const Address inbox = window.of(RankId(1));
  if (flag_first && ops.thread() == 0)
    ops.store(relaxed_sys, Site::kDispatchFlag, inbox, std::uint32_t{9});
  for (std::uint32_t v = ops.thread(); v < kVectors; v += ops.group_size())
    ops.store(relaxed_sys, Site::kDispatchStorePayload, inbox.at(16 + v * 16),
              Vec16{{v, v + 1, v + 2, v + 3}});
  ops.barrier(Site::kDispatchTokenDone);
  if (flag_first || ops.thread() != 0) return;
  ops.fence(release_sys, Site::kDispatchRelease);
  ops.store(relaxed_sys, Site::kDispatchFlag, inbox, std::uint32_t{9});
}
template <Ops O>
void receive(O& ops, Window window, std::uint32_t& wrong_words) {
  const Address inbox = window.of(ops.rank());
  const Awaited flag = ops.wait_until(as<std::uint32_t>, relaxed_sys, Site::kDispatchWait, inbox,
                                      Await{0xFF, 9, 1, RankId(0)});
  ops.fence(acquire_sys, Site::kDispatchAcquire);
  wrong_words += flag.seen != 9 || flag.timed_out;
  for (std::uint32_t v = ops.thread(); v < kVectors; v += ops.group_size()) {
    const Vec16 got = ops.load(as<Vec16>, relaxed_sys, Site::kCombinePull, inbox.at(16 + v * 16));
    for (std::uint32_t w = 0; w < 4; ++w) wrong_words += got.word[w] != v + w;
  }
}
inline RunResult pass_message(MachineConfig config, bool flag_first, std::uint32_t& wrong_words) {
  Machine machine(config);
  const Window window = machine.allocate_window("inbox", 16 + kVectors * 16, 16, Fill::kPoison);
  machine.fill(window.of(RankId(1)), 16, std::byte{0});
  enqueue(machine, 0, "send", 1, [&](SimOps& ops) { send(ops, window, flag_first); });
  enqueue(machine, 1, "receive", 1, [&](SimOps& ops) { receive(ops, window, wrong_words); });
  return machine.run();
}

}  // namespace assay::machine::testing
