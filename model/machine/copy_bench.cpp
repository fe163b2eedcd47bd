// How fast is the machine? Copies rows in 16-byte relaxed.sys accesses, the way a dispatch moves
// payload: groups of threads, each row to the next rank, scheduling included. Prints accesses per
// second of one core for several run lengths; the budget of 10 M per second is for the defaults.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <vector>

#include "model/machine/machine.hpp"

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

// Of this process: the wall clock would measure the neighbours of a busy machine as well.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
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
  std::vector<double> rates;
  for (int sample = 0; sample < 9; ++sample) {
    for (std::int32_t r = 0; r < kRanks; ++r)
      machine.enqueue(RankId(r), kDefaultStream,
                      Kernel{"copy", kRows, [&](SimOps& ops) { copy_row(ops, source, target); }});
    const double begin = cpu_seconds();
    const RunResult result = machine.run();
    const double took = cpu_seconds() - begin;
    CONTRACT(result.ok(), result.report);
    rates.push_back(static_cast<double>(result.counters.ordered_operations) / took);
  }
  std::sort(rates.begin() + 1, rates.end());  // the first run also creates the pages
  return rates[1 + (rates.size() - 1) / 2];
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
