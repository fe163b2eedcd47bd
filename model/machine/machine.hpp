// The simulated machine: ranks with streams, kernels whose CTAs and threads are fibers, symmetric
// memory that knows what was written, and a scheduler that decides every interleaving from a seed.
// It runs the text of a kernel body (a template over Ops) without a GPU and says what went wrong in
// a sentence. It decides execution (SPEC MAC); what a protocol must compute is model/moe and
// cuda/kernels.
//
//   MachineConfig config;
//   config.num_ranks = 2;
//   config.seed = 7;
//   Machine machine(config);
//   const Window flags = machine.allocate_window("flags", 64, 16, Fill::kZero);
//   for (std::int32_t r = 0; r < 2; ++r)
//     machine.enqueue(RankId(r), kDefaultStream, {.name = "greet", .num_ctas = 1,
//                     .body = [=](SimOps& ops) { greet(ops, flags); }});
//   const RunResult result = machine.run();   // result.status, result.report
//
// Read next: run.hpp (configuration and result), sim_ops.hpp (what an operation does), memory.hpp
// (addresses and poison), memory_model.hpp and scheduler.hpp (the two parts that can be exchanged),
// engine.hpp (the loop).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "model/core/core.hpp"
#include "model/core/ops.hpp"
#include "model/machine/memory.hpp"
#include "model/machine/run.hpp"
#include "model/machine/sim_ops.hpp"

namespace assay::machine {

class Engine;

// Not thread-safe, but different machines may run in different threads at the same time: there is
// no state outside the object. Set-up mistakes (unknown rank, bytes outside an allocation) are
// broken contracts.
class Machine {
 public:
  explicit Machine(const MachineConfig& config, MachineParts parts = {});
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  // Memory of one rank, which other ranks cannot reach. Aligned exactly as asked: the address is an
  // odd multiple of `alignment`.
  Address allocate(RankId rank, const std::string& name, std::uint64_t bytes,
                   std::uint64_t alignment, Fill fill);
  // The same bytes on every rank, reachable by all, at a constant stride.
  Window allocate_window(const std::string& name, std::uint64_t bytes_per_rank,
                         std::uint64_t alignment, Fill fill);
  // A second address for the same bytes, as a second mapping gives. Under the PTX memory model,
  // accesses through different addresses are ordered by nothing but the end of a kernel (SPEC
  // MAC-6.15).
  Address alias(Address allocation);
  Window alias(Window window);
  // Later accesses are faults that name the released allocation. Not while kernels use it.
  void release(Address allocation);
  void release(Window window);

  // Host access, before run, after it and in host nodes; each within one allocation.
  void write(Address to, std::span<const std::byte> bytes);
  void fill(Address to, std::uint64_t bytes, std::byte value);
  // Says which byte was never written, if any.
  [[nodiscard]] Status read(Address from, std::span<std::byte> bytes);
  // Returns poison (kPoisonByte) where nobody wrote, and whether every byte was written.
  bool peek(Address from, std::span<std::byte> bytes);
  // How many of the bytes somebody wrote (zero-filled memory counts as written).
  std::uint64_t count_written(Address from, std::uint64_t bytes);
  // Makes bytes poison again, as if never written: a buffer that is about to be used anew.
  void forget(Address from, std::uint64_t bytes);

  // Names for reports: parts of allocations, which must outlive the machine.
  void name_parts(const std::vector<NamedPart>* parts);

  // Streams run their nodes in order; different streams are unordered. Both may be called from host
  // nodes while the machine runs. A host node runs at once, between two operations of threads.
  StreamId add_stream(RankId rank);
  void enqueue(RankId rank, StreamId stream, Kernel kernel);
  void enqueue_host(RankId rank, StreamId stream, std::string name, std::function<void()> node);

  // Runs until all streams are empty or something is wrong. After `ok` more may be enqueued and
  // run; after anything else the memory can be read, but every further run returns the same result.
  RunResult run();

 private:
  std::unique_ptr<Engine> engine_;
};

}  // namespace assay::machine
