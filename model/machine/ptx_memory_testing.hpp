// For the tests of the PTX-ordered memory: two words, bodies over them, and what all schedules of a
// program show. Decides nothing about the memory.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "model/machine/machine_testing.hpp"
#include "model/machine/ptx_memory.hpp"

namespace assay::machine::testing {

inline constexpr Site kSite = Site::kDispatchFlag;
inline constexpr auto u32 = as<std::uint32_t>;
inline constexpr std::uint32_t one = 1;
inline constexpr std::uint32_t two = 2;

// Two zeroed words, each in the window of one rank, and what bodies note.
struct Words {
  Address x, y;
};
using Seen = std::array<std::uint32_t, 2>;
using Body = std::function<void(SimOps&, Words, Seen&)>;

// What happened over all schedules of kernels that `setup` enqueues: values of good runs, and the
// reports of others.
struct Shown {
  std::set<Seen> seen;
  std::set<std::string> faults;
  bool only(const std::set<Seen>& expected) const { return faults.empty() && seen == expected; }
  bool has_fault(const std::string& part) const {
    for (const std::string& fault : faults)
      if (fault.find(part) != std::string::npos) return true;
    for (const std::string& fault : faults) UNSCOPED_INFO(fault);
    return false;
  }
};
using Setup = std::function<void(Machine&, Words, Seen&)>;

inline Shown explore(Boundary boundary, std::uint32_t group_size, const Setup& setup) {
  Shown shown;
  for_every_schedule([&](std::unique_ptr<Scheduler> scheduler) {
    MachineParts parts;
    parts.scheduler = std::move(scheduler);
    parts.make_memory_model = ptx_memory(boundary);
    MachineConfig config = small_config(1, 2, group_size);
    config.boundary = boundary;
    Machine machine(config, std::move(parts));
    const Window window = machine.allocate_window("words", 64, 64, Fill::kZero);
    Seen seen{9, 9};
    setup(machine, Words{window.of(RankId(0)), window.of(RankId(1)).at(16)}, seen);
    const RunResult result = machine.run();
    if (result.ok())
      shown.seen.insert(seen);
    else
      shown.faults.insert(std::string(run_status_name(result.status)) + ": " + result.report);
  });
  return shown;
}

// One thread on each of two ranks.
inline Shown explore(const Body& first, const Body& second) {
  return explore(Boundary::kPtx, 1, [&](Machine& machine, Words w, Seen& seen) {
    enqueue(machine, 0, "first", 1, [&, w](SimOps& ops) { first(ops, w, seen); });
    enqueue(machine, 1, "second", 1, [&, w](SimOps& ops) { second(ops, w, seen); });
  });
}
// Two CTAs of one rank.
inline Shown explore_ctas(const Body& first, const Body& second) {
  return explore(Boundary::kPtx, 1, [&](Machine& machine, Words w, Seen& seen) {
    enqueue(machine, 0, "both", 2, [&, w](SimOps& ops) {
      if (ops.cta() == 0)
        first(ops, w, seen);
      else
        second(ops, w, seen);
    });
  });
}

inline const Body kReceive = [](SimOps& ops, Words w, Seen& seen) {
  seen[0] = ops.load(u32, relaxed_sys, kSite, w.y);
  ops.fence(acquire_sys, kSite);
  seen[1] = ops.load(u32, relaxed_sys, kSite, w.x);
};
inline const std::set<Seen> kOrdered{{0, 0}, {0, 1}, {1, 1}};
inline const std::set<Seen> kAny{{0, 0}, {0, 1}, {1, 0}, {1, 1}};

template <class Release, class Flag>
Body send(Release release, Flag flag) {
  return [=](SimOps& ops, Words w, Seen&) {
    ops.store(relaxed_sys, kSite, w.x, one);
    release(ops);
    ops.store(flag, kSite, w.y, one);
  };
}
inline const auto kNothing = [](SimOps&) {};

}  // namespace assay::machine::testing
