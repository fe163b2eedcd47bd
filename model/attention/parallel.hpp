// A loop over independent pieces on several threads. Which thread takes which piece is left to
// chance and decides nothing: pieces write to places of their own (SPEC ATT-5.7).
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace assay::attention {

// piece(index, worker) for every index below count, once; worker is below `threads` and never runs
// twice at a time, so it may own scratch memory. threads below 1 count as 1.
template <class Piece>
void parallel_for(std::int64_t count, int threads, const Piece& piece) {
  if (threads <= 1 || count <= 1) {
    for (std::int64_t i = 0; i < count; ++i) piece(i, 0);
    return;
  }
  std::atomic<std::int64_t> next{0};
  const auto work = [&](int worker) {
    for (std::int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) piece(i, worker);
  };
  std::vector<std::thread> pool;
  for (int worker = 1; worker < threads && worker < count; ++worker)
    pool.emplace_back(work, worker);
  work(0);
  for (std::thread& thread : pool) thread.join();
}

}  // namespace assay::attention
