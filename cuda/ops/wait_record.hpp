// What a wait in a kernel that took too long leaves, in memory that the host can read after the
// kernel has ended its context: pinned and mapped, because device memory goes with the context.
// Plain data for both sides. Decides nothing.
#pragma once

#include <cstdint>

namespace assay::cuda {

struct WaitRecord {
  std::uint32_t filled;  // 1: the rest is true
  std::uint32_t site;    // which barrier, as the kernel numbers them
  std::uint32_t stage;
  std::uint32_t parity;
  std::uint32_t block;
  std::uint32_t thread;
};

}  // namespace assay::cuda
