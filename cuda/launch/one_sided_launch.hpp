// Launching the one-sided kernels: finds the kernels of a request in the instantiation matrix,
// checks what the hardware demands, enqueues one rank's kernel or those of several ranks of one
// device as one launch. Decides grids, blocks and what is refused before a launch; the protocol is
// cuda/kernels/one_sided. No CUDA type appears here, so host code compiled without nvcc can include
// it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "cuda/kernels/one_sided/params.hpp"
#include "cuda/launch/group_threads.hpp"
#include "cuda/launch/residency.hpp"
#include "model/core/expected.hpp"

namespace assay::cuda {

// A CUDA stream (cudaStream_t) on the device that is current for the calling thread.
struct Stream {
  void* handle = nullptr;
};

// Order slots, sanitize and stage belong to Fence; Sentinel has no counter to take slots from, and
// its dispatch and combine do the work of the others. Slot lists are made behind either dispatch.
enum class Step : std::uint8_t {
  kOrderSlots,
  kDispatch,
  kSanitize,
  kExpertLists,
  kStage,
  kCombine,
  kSentinelDispatch,
  kSentinelCombine
};
inline constexpr int kSteps = 8;
const char* step_name(Step step);

// Pointers to __global__ functions: the kernel for launches of one rank, and for those of several.
// Null for what a build does not have.
struct KernelPair {
  const void* single = nullptr;
  const void* several = nullptr;
};
struct KernelRequest;
using FindKernels = KernelPair (*)(Step step, const KernelRequest& request);
KernelPair find_own_kernels(Step step, const KernelRequest& request);

// What a group needs kernels for, and where they are looked for.
struct KernelRequest {
  int top_k = 1;
  one_sided::Sum sum = one_sided::Sum::kF32Ftz;
  one_sided::RowFormat rows = one_sided::RowFormat::kBf16;    // as experts give them back
  one_sided::RowFormat pulled = one_sided::RowFormat::kBf16;  // as combine reads them
  one_sided::RowFormat out = one_sided::RowFormat::kBf16;
  bool sentinel = false;  // some rounds go by Sentinel
  FindKernels find = &find_own_kernels;
};

// One rank's part of a launch.
struct LaunchedRank {
  RankId rank{0};
  std::uint64_t delay_ns = 0;  // its blocks wait so long before they begin (SPEC CUD-4.2)
};

struct LaunchConfig {
  std::uint32_t threads = 0;  // of a group; 0: as the rows and groups of a launch want it (CUD-3.3)
  // 2^parts_log2 groups share each row of combine by Fence (SPEC KER-2.7); else as CUD-3.3 has it.
  std::optional<std::uint32_t> parts_log2;
  std::uint32_t launches_beside = 0;  // of other ranks, as large as this one, on the same device
  // The kernel may be put on the device while the one before it on the stream still runs (CUD-3.4).
  bool overlaps = false;
  std::uint64_t timeout_ns = 10'000'000'000;  // budget of one wait (SPEC KER-3.1)
  Stream stream;
};

// Ranks that one launch may hold: their parameters must fit a kernel's (SPEC CUD-1.3).
inline constexpr int kRanksPerLaunch = 64;

// The kernels of one group: looked up once, loaded on every device before its first launch. A
// lazily loaded module would wait for the kernel that waits for it (SPEC CUD-2.2).
class OneSidedKernels {
 public:
  // Errors: unsupported, for what this build does not instantiate.
  static Expected<OneSidedKernels> find(const KernelRequest& request);
  // On the current device. After this no launch loads code. Errors: more threads than a kernel can
  // have.
  Status load(std::uint32_t threads);

  // Each enqueues one kernel on the stream, on the current device: the blocks of ranks[i] run with
  // params[i]. dispatch and combine wait for all living ranks. dispatch has one block per token,
  // combine one or more, whatever parts_log2 of its params says.
  // Errors, of several ranks: more than kRanksPerLaunch, or blocks that cannot all be resident.
  Status dispatch(std::span<const LaunchedRank>, std::span<const one_sided::DispatchParams>,
                  const LaunchConfig&) const;
  Status sanitize(std::span<const LaunchedRank>, std::span<const one_sided::SanitizeParams>,
                  const LaunchConfig&) const;
  // A block per target rank, and one per local expert.
  Status order_slots(std::span<const LaunchedRank>, std::span<const one_sided::OrderSlotsParams>,
                     const LaunchConfig&) const;
  Status list_experts(std::span<const LaunchedRank>, std::span<const one_sided::ExpertListParams>,
                      const LaunchConfig&) const;
  Status stage(std::span<const LaunchedRank>, std::span<const one_sided::StageParams>,
               const LaunchConfig&) const;
  Status combine(std::span<const LaunchedRank>, std::span<const one_sided::CombineParams>,
                 const LaunchConfig&) const;

  // By Sentinel: sentinel_blocks() of each rank. `waiters`
  // of params, 0 to leave it to the launcher, may be any number of the rank's blocks that is
  // resident (SPEC CUD-1.4). Errors: as above, and bad input for more waiters than that.
  Status dispatch(std::span<const LaunchedRank>, std::span<const one_sided::SentinelDispatchParams>,
                  const LaunchConfig&) const;
  Status combine(std::span<const LaunchedRank>, std::span<const one_sided::SentinelCombineParams>,
                 const LaunchConfig&) const;

  // Blocks of one rank by Sentinel, in a launch of so many ranks; side by side, where blocks must
  // be resident together, no more than it needs (SPEC CUD-3.5).
  std::uint32_t sentinel_blocks(std::size_t ranks, std::uint32_t ep_size,
                                std::uint32_t max_tokens_per_rank, std::uint32_t num_tokens) const;

  // Blocks of dispatch's or combine's kernel, of either protocol, that every device that has loaded
  // it holds at once: of a launch of one rank, or of more. 0 where it cannot have so many threads.
  std::uint32_t resident_blocks(Step step, std::size_t ranks, std::uint32_t threads) const;

 private:
  KernelPair& of(Step step) { return kernels_[static_cast<std::size_t>(step)]; }
  const KernelPair& of(Step step) const { return kernels_[static_cast<std::size_t>(step)]; }
  ResidentBlocks& resident_of(Step step, bool several) {
    return resident_[static_cast<std::size_t>(step)][several ? 1 : 0];
  }
  Status note_resident(Step step, bool several, std::uint32_t most_threads);
  // Threads of a group for a launch of one rank with so many groups on its device, of its own and
  // of launches beside it, each of which moves so many 16-byte vectors; of several ranks, whose
  // blocks must be resident together, kGroupThreads.
  std::uint32_t threads_for(Step step, std::uint64_t vectors, std::uint32_t groups) const;
  template <class Params, class GridOf>
  Status launch(Step step, std::span<const LaunchedRank> ranks, std::span<const Params> params,
                const LaunchConfig& config, const GridOf& grid_of) const;

  std::array<KernelPair, kSteps> kernels_;
  std::array<std::uint32_t, kSteps> most_threads_{};  // of a launch of one rank; 0: not loaded
  // Of steps that wait: of the kernel for one rank, and of that for several.
  std::array<std::array<ResidentBlocks, 2>, kSteps> resident_;
  std::uint64_t pulled_bytes_ = 2;       // of an element that combine reads
  std::uint32_t multiprocessors_ = 132;  // of the last device that loaded them
};

}  // namespace assay::cuda
