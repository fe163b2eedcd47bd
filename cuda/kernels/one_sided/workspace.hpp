// Where everything of the one-sided protocol lies in a rank's window, and the words that ranks
// exchange. The window is declared once, in workspace_layout.hpp, for the host; this file is what a
// kernel sees of it: offsets, the flag word, the header word, the status word. Decides SPEC
// KER-2.1, KER-2.2, KER-3.2, KER-6.2.
#pragma once

#include <cstdint>

#include "model/core/platform.hpp"

namespace assay::one_sided {

// What Sentinel has of its own. Only slots and inbox are written by peers, and only they are armed.
struct SentinelOffsets {
  std::uint64_t dispatch_phase;   // u32: written by combine, read by dispatch
  std::uint64_t combine_phase;    // u32: written by dispatch, read by combine
  std::uint64_t dispatch_ticket;  // u32: groups of the running dispatch that have sent
  std::uint64_t combine_ticket;   // u32: groups of the running combine that have pushed
  std::uint64_t recv_counters;    // u32 [ep]: rows that came from each source
  std::uint64_t picks;            // u32 [ep, max of the round]: 1 + pick of the row, 0 for none
  std::uint64_t slots;            // [generation, ep, slot, slot_bytes]
  std::uint64_t inbox;            // [combine generation, token, top_k, cell_bytes]
};

// Byte offsets into a rank's window. The regions are fixed for the life of a group: capacities set
// them, not a round's sizes, so no round's dispatch can reach what another's combine still pulls.
struct WorkspaceOffsets {
  std::uint64_t phase;            // u32: two for each dispatch so far, which alone writes it
  std::uint64_t status;           // StatusWord
  std::uint64_t dispatch_ticket;  // u32: groups of the running dispatch that are done
  std::uint64_t combine_ticket;   // u32: groups of the last combine that have started
  std::uint64_t dispatch_flags;   // u64 [ep]: flag word of each source
  std::uint64_t combine_flags;    // u64 [ep]
  std::uint64_t send_counters;    // u32 [ep]: slots taken at each target, zero between rounds
  std::uint64_t recv_counters;    // u32 [ep]: rows that came from each source
  std::uint64_t statistics;       // i32 [ep, words of the round]: what each source told
  std::uint64_t target_rank;      // i32 [t, top_k], -1 where nothing was sent
  std::uint64_t target_slot;      // i32 [t, top_k], -1 where nothing was sent
  SentinelOffsets sentinel;
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

// A word that says "not yet": no sender ever stores it (SPEC KER-6.1).
inline constexpr std::uint32_t kSentinel = 0xFFFFFFFFu;

// The first word of a slot or cell. Bit 31 is 0, so it is never the sentinel; then 5 bits of what
// is there, then 26 bits that two ranks have in common only in the same phase of the same round
// (SPEC KER-6.2).
struct HeaderWord {
  static constexpr std::uint32_t kRoundMask = 0x03FFFFFFu;
  static constexpr std::uint32_t kAbsent = 0;  // no row for this receiver
  // `contents`: kAbsent, or 1 + the pick that the row belongs to.
  ASSAY_HD static constexpr std::uint32_t make(std::uint32_t digest, std::uint32_t phase,
                                               std::uint32_t contents) {
    return ((digest + phase) & kRoundMask) | (contents << 26);
  }
  ASSAY_HD static constexpr std::uint32_t contents(std::uint32_t word) { return word >> 26; }
  ASSAY_HD static constexpr bool same_round(std::uint32_t a, std::uint32_t b) {
    return ((a ^ b) & kRoundMask) == 0;
  }
};

// Why a kernel gave up. Stays until a collective recovery clears it (SPEC KER-3.3).
enum class Failure : std::uint32_t {
  kNone = 0,
  kTimeOut = 1,      // a peer's word did not arrive within the budget
  kOtherLayout = 2,  // a peer's word arrived with another digest: ranks disagree on sizes
};
struct StatusWord {                               // byte offsets within the status region
  static constexpr std::uint64_t kFailure = 0;    // u32 Failure
  static constexpr std::uint64_t kEpoch = 4;      // u32
  static constexpr std::uint64_t kPeer = 8;       // u32
  static constexpr std::uint64_t kSeen = 16;      // u64: the flag or header word
  static constexpr std::uint64_t kExpected = 24;  // u64: the flag or header word
  static constexpr std::uint64_t kBytes = 32;
};

}  // namespace assay::one_sided
