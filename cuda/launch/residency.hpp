// Which launches could only time out: those whose blocks wait for blocks that the device does not
// hold at once. Decides SPEC CUD-1.3 and CUD-1.4; how many blocks of a kernel a device holds is
// CUDA's answer, remembered here so that no launch asks for it again. Needs no CUDA.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "model/core/expected.hpp"

namespace assay::cuda {

// Blocks of one kernel that a device holds at once, by the threads of a block; of several devices
// the fewest. 0 where nothing was noted: the kernel has no such blocks.
class ResidentBlocks {
 public:
  static constexpr std::uint32_t kWarp = 32, kWarpsMax = 32;  // of a block

  void note(std::uint32_t warps, std::uint32_t blocks);
  std::uint32_t of(std::uint32_t threads) const;

 private:
  std::array<std::optional<std::uint32_t>, kWarpsMax + 1> by_warps_{};
};

// The blocks of a launch, and what the device holds of them.
struct Residency {
  std::string_view step;  // for sentences
  std::uint32_t blocks = 0, threads = 0;
  std::uint32_t resident = 0;  // of the kernel, with so many threads, on the device
};

// Of a launch of several ranks whose blocks wait for each other. Errors: unsupported, where they
// cannot all be resident.
Status check_all_resident(const Residency& launch, std::size_t ranks);

// How many blocks of a rank's own wait for peers by Sentinel, those that `asked` says if it is not
// 0. alone: the rank has the launch to itself, and waits unasked in one block for each
// multiprocessor at most; else all blocks are resident, and all wait. Errors: bad input, for more
// than the launch has or than can be resident.
Expected<std::uint32_t> waiters_of(const Residency& launch, std::uint32_t asked, bool alone,
                                   std::uint32_t multiprocessors);

}  // namespace assay::cuda
