// What a kernel is told at launch: plain values, copied to the device with the launch. Decides
// nothing; the meaning of each field is the clause beside it. Sizes are per round and equal on all
// ranks; the layout digest in every flag word proves it (SPEC KER-2.2).
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "cuda/kernels/one_sided/workspace.hpp"
#include "model/core/ops.hpp"

namespace assay::one_sided {

enum class RowFormat : std::uint8_t { kBf16, kF16, kF32, kE4m3 };  // kE4m3: rows on the wire

inline constexpr std::uint32_t kMaxPayloads = 6;         // as FlashInfer's kMaxPayloads
inline constexpr std::uint32_t kNoTarget = 0xFFFFFFFFu;  // -1 in the target tables
inline constexpr std::uint32_t kMaxRanks = 256;  // four mask words; TensorRT-LLM's newest limit

// Which ranks take part: bit r of word r / 64.
struct AliveRanks {
  std::uint64_t word[kMaxRanks / 64];
  ASSAY_HD constexpr bool has(std::uint32_t rank) const {
    const std::uint64_t ranks = rank < 64 ? word[0] : word[rank / 64];  // mostly no index is needed
    return (ranks >> (rank % 64)) & 1;
  }
};

// Dividing by a number d that a launch knows, by one multiplication: n / d = n * ceil(2^32 / d) /
// 2^32 as long as n * d < 2^32, because the factor is too large by less than d / 2^32 and n / d is
// at least 1 / d below the next whole number. For d = 1 the factor has no 32 bits and is 0.
struct Reciprocal {
  std::uint32_t factor;
  static constexpr Reciprocal of(std::uint32_t d) {
    return {d <= 1 ? 0 : static_cast<std::uint32_t>(((std::uint64_t{1} << 32) + d - 1) / d)};
  }
  ASSAY_HD constexpr std::uint32_t times(std::uint32_t n) const {
    return factor == 0 ? n : static_cast<std::uint32_t>(std::uint64_t{n} * factor >> 32);
  }
};

inline constexpr std::int32_t kMaxExperts = 65'535;  // so that Reciprocal is exact

// Contiguous placement (SPEC KER-1.1): the first `ranks_with_one_more` ranks own
// `experts_per_rank` + 1 experts, the others experts_per_rank.
struct ExpertSplit {
  std::uint32_t num_experts;
  std::uint32_t experts_per_rank;
  std::uint32_t ranks_with_one_more;
  Reciprocal one_more, even;  // of experts_per_rank + 1 and of experts_per_rank
};

struct GroupParams {
  Window window;
  WorkspaceOffsets at;
  AliveRanks alive;
  std::uint32_t ep_size;
  std::uint32_t layout_digest;        // of everything that must be equal on all ranks this round
  std::uint32_t max_tokens_per_rank;  // of this round
};

struct PayloadParams {
  Address rows;               // [t, bytes_per_token], this rank's own memory
  std::uint64_t recv_offset;  // of [ep, max, bytes_per_token] in every rank's window
  std::uint32_t bytes_per_token;
  std::uint16_t vector_bytes;     // widest of 16 8 4 2 1 that every row's two ends allow
  std::uint16_t vector_log2 = 0;  // of it: describe_token()
};

// A run of the vectors of something that travels as vectors: whole ones, side by side in memory.
struct WholeVectors {
  std::uint32_t first = 0, count = 0;
  ASSAY_HD constexpr bool has(std::uint32_t v) const { return v - first < count; }
};

// The vectors of all payloads of a token, one payload after another, each padded to whole ones. Six
// payloads of 4 GiB have fewer than 2^31. The longest payload of whole vectors, mostly the hidden
// state, is `whole`: its vectors need no search for their payload. Fence moves the other payloads
// in pieces of their vector_bytes.
struct TokenVectors {
  std::uint32_t count = 0;
  WholeVectors whole;
  std::uint32_t whole_payload = 0;      // any, where `whole` has none
  std::uint32_t most_other_pieces = 0;  // of one payload
};

// Words that dispatch by Fence brings to all ranks (SPEC KER-1.8).
struct StatisticsParams {
  Address own;          // int32 [count], this rank's own memory
  std::uint32_t count;  // equal on all ranks; 0: none travel
};

struct DispatchParams {
  GroupParams group;
  ExpertSplit experts;
  std::uint32_t num_tokens;
  std::uint16_t num_payloads;
  bool ordered_slots;    // order_slots has run: slots are read, not taken (SPEC KER-1.7)
  TokenVectors vectors;  // of `payload`: describe_token(), so that no group counts them
  Address topk_ids;      // int32 [t, top_k], this rank's own memory
  PayloadParams payload[kMaxPayloads];
  StatisticsParams statistics;
};

// Whole vectors of a row of so many bytes.
ASSAY_HD constexpr std::uint64_t landing_vectors(std::uint64_t bytes) {
  return (bytes + sizeof(Vec16) - 1) / sizeof(Vec16);
}

ASSAY_HD constexpr std::uint32_t pieces_of(const PayloadParams& payload) {
  return payload.bytes_per_token >> payload.vector_log2;
}

// Fills what follows from the payloads; nothing is dispatched without it.
constexpr void describe_token(DispatchParams& p) {
  p.vectors = {};
  for (std::uint32_t i = 0; i < p.num_payloads; ++i) {
    const auto here = static_cast<std::uint32_t>(landing_vectors(p.payload[i].bytes_per_token));
    if (p.payload[i].vector_bytes == sizeof(Vec16) && here > p.vectors.whole.count) {
      p.vectors.whole = {p.vectors.count, here};
      p.vectors.whole_payload = i;
    }
    p.vectors.count += here;
  }
  for (std::uint32_t i = 0; i < p.num_payloads; ++i) {
    p.payload[i].vector_log2 =
        static_cast<std::uint16_t>(std::countr_zero(p.payload[i].vector_bytes));
    if (i != p.vectors.whole_payload || p.vectors.whole.count == 0)
      p.vectors.most_other_pieces = std::max(p.vectors.most_other_pieces, pieces_of(p.payload[i]));
  }
}

// Neighbouring threads that move a payload other than `whole` together: a warp.
inline constexpr std::uint32_t kPieceTeam = 32;

// Threads with which each whole vector of a token, and each other payload's team, has its own.
constexpr std::uint64_t vectors_and_teams(const DispatchParams& p) {
  const std::uint64_t whole = p.vectors.whole.count;
  return whole + kPieceTeam * (p.num_payloads - (whole != 0 ? 1u : 0u));
}

struct OrderSlotsParams {
  DispatchParams dispatch;  // payloads are not looked at
  std::uint32_t top_k;
};

struct SanitizeParams {
  GroupParams group;
  std::uint64_t ids_offset;  // of int32 [ep, max, top_k] in the window
  std::uint32_t top_k;
  std::int32_t invalid_expert_id;
};

// An entry of a slot list: the row [source * max + slot] in its low half, the pick in its high one.
// The pick's router weight is at [row, pick] of the payload of weights.
struct ListEntry {
  ASSAY_HD static constexpr std::uint64_t make(std::uint64_t row, std::uint32_t pick) {
    return row | std::uint64_t{pick} << 32;
  }
  ASSAY_HD static constexpr std::uint32_t row(std::uint64_t entry) {
    return static_cast<std::uint32_t>(entry);
  }
  ASSAY_HD static constexpr std::uint32_t pick(std::uint64_t entry) {
    return static_cast<std::uint32_t>(entry >> 32);
  }
};

struct ExpertListParams {
  GroupParams group;
  std::uint64_t ids_offset;  // of int32 [ep, max, top_k] in the window
  Address offsets;           // u32 [local experts + 1] into entries, this rank's own memory
  Address entries;           // ListEntry [at most ep * max * top_k], this rank's own memory
  std::uint32_t top_k;
  std::uint32_t first_expert;  // of this rank, as the ids name it
  std::uint32_t num_local_experts;
  bool rows_lie_apart;  // by Sentinel: there are no counts, ids say which rows hold a token
};

struct StageParams {
  GroupParams group;
  std::uint64_t rows_offset;    // of [ep, max, h] in the window
  std::uint64_t staged_offset;  // of e4m3 [ep, max, h] in the window
  std::uint32_t hidden_size;
};

struct CombineParams {
  GroupParams group;
  std::uint32_t num_tokens;
  std::uint32_t hidden_size;
  std::uint32_t parts_log2;    // 2^parts_log2 groups share each token's row (SPEC KER-2.7)
  std::uint32_t vector_bytes;  // widest that rows, staged rows and out allow
  std::uint64_t rows_offset;   // of the rows to pull, [ep, max, h] in every rank's window
  Address out;                 // [t, h], this rank's own memory
};

// Groups of a launch of combine by Fence.
ASSAY_HD constexpr std::uint32_t groups_of(const CombineParams& p) {
  return (p.num_tokens == 0 ? 1 : p.num_tokens) << p.parts_log2;
}

// How many banks of slots and cells there are, how far apart, and who waits (SPEC KER-6.4,
// KER-6.6). All of it but `waiters` follows from the group's capacity alone.
struct SentinelParams {
  std::uint64_t slot_bytes;  // header and landing rows of one slot, a multiple of 16
  std::uint64_t cell_bytes;  // header and landing row of one cell of the inbox, a multiple of 16
  std::uint32_t slots_per_source;  // and tokens of the inbox: capacity, not a round's size
  std::uint32_t dispatch_generations;
  std::uint32_t combine_generations;
  // Groups of this launch that wait for peers, from 1 to all: so many must fit at once.
  std::uint32_t waiters;
};

// The payloads land in the order given, each padded to whole vectors.
struct SentinelDispatchParams {
  DispatchParams dispatch;
  SentinelParams sentinel;
  std::uint32_t ids_payload;  // whose padding rows get the invalid id; kMaxPayloads: none
  std::uint32_t top_k;        // ids in a row of that payload
  std::int32_t invalid_expert_id;
};

struct SentinelCombineParams {
  CombineParams combine;  // rows_offset: of this rank's own rows, as the experts left them
  SentinelParams sentinel;
  RowFormat rows;            // of the experts' rows; they may cross the wire as e4m3
  std::uint32_t pull_bytes;  // widest vector that an expert row allows
  std::uint32_t top_k;
};

// How a token's rows are added. The names say what the instruction sequence does; profiles
// (model/moe) say who does so.
enum class Sum : std::uint8_t {
  kPayload,         // every add in the payload's format
  kPayloadFtz,      // the same, fp32 payloads with flushing adds
  kF32,             // fp32, holes add +0
  kF32Ftz,          // the same with flushing adds
  kF32Compact,      // fp32, rows that exist move up
  kF32CompactFtz,   // the same with flushing adds
  kF32ThroughE4m3,  // kF32 after a round trip of each row through e4m3 at the reader
  kF32FtzThroughE4m3,
};

}  // namespace assay::one_sided
