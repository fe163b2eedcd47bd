// For the tests of this folder: a two-line way to run kernels, and an exhaustive scheduler, which
// also shows that the Scheduler interface carries one. Decides nothing about the machine.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "model/core/testing.hpp"
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

// Enumerates all schedules by depth-first search: replays a prefix of choices, then takes 0. Each
// execution is a run of a new machine, built by the caller, with a scheduler from here.
class ChoiceTree {
 public:
  std::unique_ptr<Scheduler> scheduler() {
    depth_ = 0;
    return std::make_unique<Walker>(*this);
  }
  // Moves to the next schedule; false when all have been run.
  bool advance() {
    while (!path_.empty() && path_.back().first + 1 >= path_.back().second) path_.pop_back();
    if (path_.empty()) return false;
    ++path_.back().first;
    return true;
  }

 private:
  class Walker final : public Scheduler {
   public:
    explicit Walker(ChoiceTree& tree) : tree_(tree) {}
    std::uint32_t choose_runnable(std::span<const RunnableId> runnable,
                                  const PendingOperations&) override {
      return tree_.next(static_cast<std::uint32_t>(runnable.size()));
    }
    std::uint32_t choose(Choice, std::uint32_t n) override { return tree_.next(n); }
    std::uint32_t run_length() override { return 1; }

   private:
    ChoiceTree& tree_;
  };

  std::uint32_t next(std::uint32_t n) {
    if (depth_ == path_.size()) path_.emplace_back(0, n);
    REQUIRE(path_[depth_].second == n);  // the machine is deterministic given the choices
    return path_[depth_++].first;
  }

  std::vector<std::pair<std::uint32_t, std::uint32_t>> path_;  // choice, number of alternatives
  std::size_t depth_ = 0;
};

// Runs `execute` (which builds a machine around the scheduler, runs it and looks at the result)
// once per schedule and returns how many there were.
inline std::uint64_t for_every_schedule(
    const std::function<void(std::unique_ptr<Scheduler>)>& execute) {
  ChoiceTree tree;
  std::uint64_t executions = 0;
  do {
    execute(tree.scheduler());
    ++executions;
    REQUIRE(executions < 2'000'000);
  } while (tree.advance());
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
