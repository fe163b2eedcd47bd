// How fast is the machine with PTX-ordered memory? Copies rows in 16-byte relaxed.sys accesses to
// the next rank, the way a dispatch moves payload, then every group raises a flag there with
// fence.release and the next kernel waits for all of them with fence.acquire and reads the rows.
// Prints ordered operations per second of one core; the budget of 2 M per second is for the
// defaults. A 16-byte access counts as one operation, although it is four for the memory model.
#include <fmt/format.h>

#include "model/machine/bench.hpp"
#include "model/machine/ptx_memory.hpp"

namespace assay::machine {
namespace {

constexpr std::uint64_t kRowBytes = 2048;  // 1,024 bf16
constexpr std::uint32_t kRows = 64;
constexpr std::int32_t kRanks = 4;

template <Ops O>
void send_row(O& ops, Window source, Window target, Window flags, std::uint64_t round) {
  const std::uint64_t row = ops.cta() * kRowBytes;
  const RankId peer((ops.rank().value() + 1) % kRanks);
  for (std::uint64_t at = ops.thread() * 16; at < kRowBytes; at += ops.group_size() * 16) {
    const Vec16 word = ops.load(as<Vec16>, relaxed_sys, Site::kDispatchReadPayload,
                                source.of(ops.rank()).at(row + at));
    ops.store(relaxed_sys, Site::kDispatchStorePayload, target.of(peer).at(row + at), word);
  }
  ops.barrier(Site::kDispatchTokenDone);
  if (ops.thread() != 0) return;
  ops.fence(release_sys, Site::kDispatchRelease);
  ops.store(relaxed_sys, Site::kDispatchFlag, flags.of(peer).at(ops.cta() * 8), round);
}

template <Ops O>
void receive_row(O& ops, Window target, Window flags, std::uint64_t round) {
  const std::uint64_t row = ops.cta() * kRowBytes;
  const Await flag{~std::uint64_t{0}, round, 0, RankId(0), Until::kEquals};
  ops.wait_until(as<std::uint64_t>, relaxed_sys, Site::kDispatchWait,
                 flags.of(ops.rank()).at(ops.cta() * 8), flag);
  ops.fence(acquire_sys, Site::kDispatchAcquire);
  for (std::uint64_t at = ops.thread() * 16; at < kRowBytes; at += ops.group_size() * 16)
    ops.load(as<Vec16>, weak, Site::kCombinePull, target.of(ops.rank()).at(row + at));
  for (std::uint64_t at = ops.thread() * 16; at < kRowBytes; at += ops.group_size() * 16)
    ops.load(as<Vec16>, relaxed_sys, Site::kCombinePull, target.of(ops.rank()).at(row + at));
}

double operations_per_second(Boundary boundary, std::uint32_t group_size,
                             std::uint32_t longest_run) {
  MachineConfig config;
  config.num_ranks = kRanks;
  config.group_size = group_size;
  config.longest_run = longest_run;
  config.boundary = boundary;
  MachineParts parts;
  parts.make_memory_model = ptx_memory(boundary);
  Machine machine(config, std::move(parts));
  const Window source = machine.allocate_window("source", kRows * kRowBytes, 16, Fill::kPoison);
  const Window target = machine.allocate_window("target", kRows * kRowBytes, 16, Fill::kPoison);
  const Window flags = machine.allocate_window("flags", kRows * 8, 8, Fill::kZero);
  for (std::int32_t r = 0; r < kRanks; ++r)
    machine.fill(source.of(RankId(r)), kRows * kRowBytes, std::byte{1});
  return ordered_operations_per_second(machine, [&](std::uint64_t round) {
    for (std::int32_t r = 0; r < kRanks; ++r) {
      machine.enqueue(RankId(r), kDefaultStream, Kernel{"send", kRows, [&, round](SimOps& ops) {
                                                          send_row(ops, source, target, flags,
                                                                   round);
                                                        }});
      machine.enqueue(RankId(r), kDefaultStream, Kernel{"receive", kRows, [&, round](SimOps& ops) {
                                                          receive_row(ops, target, flags, round);
                                                        }});
    }
  });
}

int run() {
  bool fast_enough = true;
  for (const Boundary boundary : {Boundary::kPtx, Boundary::kFlush})
    for (const std::uint32_t group_size : {1u, 4u, 32u})
      for (const std::uint32_t longest_run : {1u, 64u}) {
        const double rate = operations_per_second(boundary, group_size, longest_run);
        fmt::print("{:5} group {:2} longest_run {:4}: {:5.2f} M ordered operations/s\n",
                   boundary == Boundary::kPtx ? "ptx" : "flush", group_size, longest_run,
                   rate / 1e6);
        if (group_size == MachineConfig{}.group_size && longest_run == MachineConfig{}.longest_run)
          fast_enough = fast_enough && rate >= 2e6;
      }
  fmt::print("{}\n", fast_enough ? "within the budget of 2 M/s" : "BELOW the budget of 2 M/s");
  return fast_enough ? 0 : 1;
}

}  // namespace
}  // namespace assay::machine

int main() { return assay::machine::run(); }
