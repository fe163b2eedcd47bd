// Where everything of the one-sided protocol lies in a rank's window, and the words that ranks
// exchange. The window is declared once, in workspace_layout.hpp, for the host; this file is what a
// kernel sees of it: offsets, the flag word, the status word. Decides SPEC KER-2.1, KER-2.2,
// KER-3.2.
#pragma once

#include <cstdint>

#include "model/core/platform.hpp"

namespace assay::one_sided {

// Byte offsets into a rank's window. The regions are fixed for the life of a group: capacities set
// them, not a round's sizes, so no round's dispatch can reach what another's combine still pulls.
struct WorkspaceOffsets {
  std::uint64_t phase;                // u32: signals sent so far; dispatch and combine take turns
  std::uint64_t status;               // StatusWord
  std::uint64_t dispatch_ticket;      // u32: groups of the running dispatch that are done
  std::uint64_t combine_head_ticket;  // u32: groups of the running combine that have started
  std::uint64_t combine_tail_ticket;  // u32: groups of the running combine that are done
  std::uint64_t dispatch_flags;       // u64 [ep]: flag word of each source
  std::uint64_t combine_flags;        // u64 [ep]
  std::uint64_t send_counters;        // u32 [ep]: slots taken at each target, zero between rounds
  std::uint64_t recv_counters;        // u32 [ep]: rows that came from each source
  std::uint64_t target_rank;          // i32 [t, top_k], -1 where nothing was sent
  std::uint64_t target_slot;          // i32 [t, top_k], -1 where nothing was sent
};

// A flag: the epoch that is reached, and a digest of everything that must be equal on all ranks
// (sizes, payload set, living ranks). Equality is waited for, so the epoch may wrap.
struct FlagWord {
  static constexpr std::uint64_t kEpochMask = 0xFFFFFFFFu;
  ASSAY_HD static constexpr std::uint64_t make(std::uint32_t digest, std::uint32_t epoch) {
    return (std::uint64_t{digest} << 32) | epoch;
  }
  ASSAY_HD static constexpr std::uint64_t epoch(std::uint64_t flag) { return flag & kEpochMask; }
};

// Why a kernel gave up. Stays until a collective recovery clears it (SPEC KER-3.3).
enum class Failure : std::uint32_t {
  kNone = 0,
  kTimeOut = 1,      // a peer's flag did not arrive within the budget
  kOtherLayout = 2,  // a peer's flag arrived with another digest: ranks disagree on sizes
};
struct StatusWord {                               // byte offsets within the status region
  static constexpr std::uint64_t kFailure = 0;    // u32 Failure
  static constexpr std::uint64_t kEpoch = 4;      // u32
  static constexpr std::uint64_t kPeer = 8;       // u32
  static constexpr std::uint64_t kSeen = 16;      // u64 flag word
  static constexpr std::uint64_t kExpected = 24;  // u64 flag word
  static constexpr std::uint64_t kBytes = 32;
};

}  // namespace assay::one_sided
