// How fast is the machine? Copies rows in 16-byte relaxed.sys accesses, the way a dispatch moves
// payload: groups of threads, each row to the next rank, scheduling included. Prints accesses per
// second of one core for several run lengths; the budget of 10 M per second is for the defaults.
#include <fmt/format.h>

#include "model/machine/bench.hpp"

namespace assay::machine {
namespace {

constexpr std::uint64_t kRowBytes = 7168 * 2;  // one bf16 hidden state of DeepSeek-V3
constexpr std::uint32_t kRows = 64;
constexpr std::int32_t kRanks = 4;

template <Ops O>
void copy_row(O& ops, Window source, Window target) {
  const std::uint64_t row = ops.cta() * kRowBytes;
  const RankId peer((ops.rank().value() + 1) % kRanks);
  for (std::uint64_t at = ops.thread() * 16; at < kRowBytes; at += ops.group_size() * 16) {
    const Vec16 word = ops.load(as<Vec16>, relaxed_sys, Site::kDispatchReadPayload,
                                source.of(ops.rank()).at(row + at));
    ops.store(relaxed_sys, Site::kDispatchStorePayload, target.of(peer).at(row + at), word);
  }
}

double accesses_per_second(std::uint32_t group_size, std::uint32_t longest_run) {
  MachineConfig config;
  config.num_ranks = kRanks;
  config.group_size = group_size;
  config.longest_run = longest_run;
  Machine machine(config);
  const Window source = machine.allocate_window("source", kRows * kRowBytes, 16, Fill::kPoison);
  const Window target = machine.allocate_window("target", kRows * kRowBytes, 16, Fill::kPoison);
  for (std::int32_t r = 0; r < kRanks; ++r)
    machine.fill(source.of(RankId(r)), kRows * kRowBytes, std::byte{1});
  return ordered_operations_per_second(machine, [&](std::uint64_t) {
    for (std::int32_t r = 0; r < kRanks; ++r)
      machine.enqueue(RankId(r), kDefaultStream,
                      Kernel{"copy", kRows, [&](SimOps& ops) { copy_row(ops, source, target); }});
  });
}

int run() {
  bool fast_enough = true;
  for (const std::uint32_t group_size : {1u, 4u, 32u})
    for (const std::uint32_t longest_run : {1u, 8u, 64u, 1024u}) {
      const double rate = accesses_per_second(group_size, longest_run);
      fmt::print("group {:2} longest_run {:4}: {:6.1f} M 16-byte accesses/s\n", group_size,
                 longest_run, rate / 1e6);
      if (group_size == MachineConfig{}.group_size && longest_run == MachineConfig{}.longest_run)
        fast_enough = rate >= 10e6;
    }
  fmt::print("{}\n", fast_enough ? "within the budget of 10 M/s" : "BELOW the budget of 10 M/s");
  return fast_enough ? 0 : 1;
}

}  // namespace
}  // namespace assay::machine

int main() { return assay::machine::run(); }
