// How many threads each group of a one-sided launch has where nobody asked for a number, and how
// many groups one by Sentinel has. Decides SPEC CUD-3.3 and CUD-3.5; which vectors a launch has is
// one_sided_launch.cpp's.
#pragma once

#include <algorithm>
#include <cstdint>

namespace assay::cuda {

// Where a launch has many groups, or several ranks'.
inline constexpr std::uint32_t kGroupThreads = 256;

// Where it has few: a warp for each of a multiprocessor's schedulers.
inline constexpr std::uint64_t kLeastThreads = 128;

// vectors: of 16 bytes, that a group moves. groups: of the launch, all of one rank, and of those
// beside it on the device. most: threads that the kernel's registers allow, at least a warp. With a
// group to each multiprocessor or fewer, what counts is how long one group takes: a thread for each
// vector, in equal passes where there are not so many. Else groups share a multiprocessor.
constexpr std::uint32_t group_threads(std::uint64_t vectors, std::uint32_t groups,
                                      std::uint32_t most, std::uint32_t multiprocessors) {
  constexpr std::uint64_t kWarp = 32;
  if (groups > multiprocessors) return kGroupThreads;
  const std::uint64_t whole_warps = most / kWarp * kWarp;
  const std::uint64_t passes =
      std::max<std::uint64_t>(1, (vectors + whole_warps - 1) / whole_warps);
  const std::uint64_t each = ((vectors + passes - 1) / passes + kWarp - 1) / kWarp * kWarp;
  return static_cast<std::uint32_t>(
      std::clamp(each, std::min(kLeastThreads, whole_warps), whole_warps));
}

// Groups that share a row of so many vectors in combine by Fence, as a power of two, where a launch
// has so many rows: as many as multiprocessors have room for, each with a block's least threads.
constexpr std::uint32_t parts_log2_of(std::uint64_t vectors, std::uint32_t rows,
                                      std::uint32_t multiprocessors) {
  std::uint32_t log2 = 0;
  while (std::uint64_t{rows} << (log2 + 1) <= multiprocessors &&
         vectors >> (log2 + 1) >= kLeastThreads)
    ++log2;
  return log2;
}

// Of a row of so many vectors, the most that one of 2^parts_log2 groups has.
constexpr std::uint64_t vectors_of_part(std::uint64_t vectors, std::uint32_t parts_log2) {
  return (vectors + (std::uint64_t{1} << parts_log2) - 1) >> parts_log2;
}

// Threads that have no vector of a row: they store headers, behind a fence.
inline constexpr std::uint32_t kPeerThreads = 32;

// Groups of one rank's launch by Sentinel: one for every slot of the round, whichever source's, as
// far as there are `places` for more than those that keep every source's first slot and every token
// apart.
constexpr std::uint32_t sentinel_groups_of(std::uint32_t ep_size, std::uint32_t max_tokens_per_rank,
                                           std::uint32_t num_tokens, std::uint32_t places) {
  const std::uint64_t slots = std::uint64_t{ep_size} * max_tokens_per_rank;
  return static_cast<std::uint32_t>(
      std::max<std::uint64_t>({num_tokens, ep_size, std::min<std::uint64_t>(slots, places)}));
}

}  // namespace assay::cuda
