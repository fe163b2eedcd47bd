// What is remembered of occupancy, and what is refused for it.
#include "cuda/launch/residency.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "model/core/contract.hpp"

namespace assay::cuda {

void ResidentBlocks::note(std::uint32_t warps, std::uint32_t blocks) {
  CONTRACT(warps <= kWarpsMax, warps);
  std::optional<std::uint32_t>& known = by_warps_[warps];
  known = std::min(known.value_or(blocks), blocks);
}

std::uint32_t ResidentBlocks::of(std::uint32_t threads) const {
  const std::uint32_t warps = threads / kWarp + (threads % kWarp != 0 ? 1 : 0);
  return warps > kWarpsMax ? 0 : by_warps_[warps].value_or(0);
}

Status check_all_resident(const Residency& launch, std::size_t ranks) {
  if (launch.blocks <= launch.resident) return Done{};
  return unsupported(fmt::format(
      "{} of {} ranks on one device has {} blocks of {} threads that wait for each other; the "
      "device holds {} at once",
      launch.step, ranks, launch.blocks, launch.threads, launch.resident));
}

Expected<std::uint32_t> waiters_of(const Residency& launch, std::uint32_t asked, bool alone,
                                   std::uint32_t multiprocessors) {
  const std::uint32_t unasked = alone ? std::min(launch.blocks, multiprocessors) : launch.blocks;
  const std::uint32_t waiters = asked != 0 ? asked : unasked;
  if (waiters > launch.blocks)
    return bad_input(fmt::format("{} is to wait in {} blocks; its launch has {} for the rank",
                                 launch.step, waiters, launch.blocks));
  if (alone && waiters > launch.resident)
    return bad_input(
        fmt::format("{} is to wait in {} blocks of {} threads; the device holds {} at once",
                    launch.step, waiters, launch.threads, launch.resident));
  return waiters;
}

}  // namespace assay::cuda
