// For the benchmarks of this folder: how a rate of ordered operations is measured. Decides what is
// timed; what runs and what is fast enough is each benchmark's own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <functional>
#include <vector>

#include "model/machine/machine.hpp"

namespace assay::machine {

// Of this process: the wall clock would measure the neighbours of a busy machine as well.
inline double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Median over eight runs of what `enqueue` (told the round, from 1) has enqueued.
inline double ordered_operations_per_second(Machine& machine,
                                            const std::function<void(std::uint64_t)>& enqueue) {
  std::vector<double> rates;
  for (std::uint64_t round = 1; round <= 9; ++round) {
    enqueue(round);
    const double begin = cpu_seconds();
    const RunResult result = machine.run();
    const double took = cpu_seconds() - begin;
    CONTRACT(result.ok(), result.report);
    rates.push_back(static_cast<double>(result.counters.ordered_operations) / took);
  }
  std::sort(rates.begin() + 1, rates.end());  // the first run also creates the pages
  return rates[1 + (rates.size() - 1) / 2];
}

}  // namespace assay::machine
