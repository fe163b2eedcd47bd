// Who is told what a run does. Decides what can be seen of a run: every operation with an order,
// with values and steps, and the structure around them. An observer changes nothing; without one
// the machine pays nothing (SPEC MAC-4.3). Weak accesses are told only when asked for.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "model/machine/memory_model.hpp"
#include "model/machine/scheduler.hpp"

namespace assay::machine {

struct RunResult;

// One operation that has taken effect.
struct Performed {
  MemoryEvent event;       // of a vector access that a switch has split: one of its words
  Address canonical;       // event.address without the address alias
  std::uint64_t step = 0;  // Scheduler::step()
  // What was read or written, event.bytes bytes; `read` is empty for stores and fences, `written`
  // for loads, awaits, fences and failed compare-and-swaps.
  std::span<const std::byte> read;
  std::span<const std::byte> written;
  // Which readable write was taken and where a store landed, one entry per element, when the memory
  // model has histories.
  std::span<const WriteTaken> taken;
  bool timed_out = false;  // an await that gave up: `read` is what it saw
};

class Observer {
 public:
  virtual ~Observer() = default;
  virtual bool wants_weak_accesses() const { return false; }
  // False: the scheduler's runs have length 1, so every operation with an order passes the engine
  // anyway and weak accesses may keep the short way past it.
  virtual bool closes_short_way() const { return true; }

  virtual void run_began(const Memory&) {}
  virtual void run_ended(const RunResult&) {}
  // A thread's slice or a host node. What happens until the next step_began happens in it.
  virtual void step_began(std::uint64_t /*step*/, RunnableId) {}
  virtual void performed(const Performed&) {}
  // The thread cannot go on until a write satisfies it (or a time-out; then performed says so).
  virtual void wait_began(const MemoryEvent&, const Await&, std::uint64_t /*seen*/) {}
  virtual void barrier_arrived(ThreadSlot, Site) {}
  virtual void barrier_passed(std::span<const ThreadSlot>, Site) {}
  virtual void timeout_fired(ThreadSlot) {}

  // `crowded`: the CTAs that are enqueued for this rank may not all fit resident_ctas, so that ends
  // of CTAs decide who starts. `programmatic`: it may begin before the grid in front of it has
  // ended (GridPlace). Of a grid's place, cta and thread are 0.
  virtual void grid_began(const ThreadPlace&, const std::string& /*name*/, bool /*crowded*/,
                          bool /*programmatic*/) {}
  virtual void grid_ended(const ThreadPlace&) {}
  virtual void cta_began(const ThreadPlace&) {}
  virtual void cta_ended(const ThreadPlace&, bool /*crowded*/) {}
  virtual void thread_began(ThreadSlot, const ThreadPlace&) {}
  virtual void thread_ended(ThreadSlot) {}
  virtual void host_node_ran(RankId, std::uint32_t /*stream*/, const std::string& /*name*/) {}
  virtual void host_wrote(Address, std::uint64_t /*bytes*/) {}
};

}  // namespace assay::machine
