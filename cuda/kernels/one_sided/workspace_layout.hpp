// The workspace of a one-sided group, for the host: the one declaration from which its size, a
// kernel's offsets, the byte map that `assay size` prints and the digest in every flag word come.
// Decides which regions a rank's window has (SPEC KER-2.1) and where a round's payloads lie in it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cuda/kernels/one_sided/params.hpp"
#include "model/core/layout.hpp"

namespace assay::one_sided {

// What a group is made for. Rounds may be smaller in every respect but ep_size and top_k.
struct GroupCapacity {
  std::int32_t ep_size = 1;
  std::int32_t top_k = 1;
  std::int32_t max_tokens_per_rank = 1;
  std::int64_t payload_bytes_total = 1;  // of one token, all payloads of a round together
  std::int64_t row_bytes = 2;            // of one row that the experts give back
  std::int64_t staged_row_bytes = 0;     // of the same row as e4m3; 0 without low-precision combine
  // Rounds of up to so many tokens per rank go by Sentinel, larger ones by Fence (SPEC KER-6.8).
  std::int32_t sentinel_max_tokens = 0;
  // Banks that Sentinel takes turns with: powers of two (SPEC KER-6.4). Fewer slots than the
  // constants say are for those who want to see it fail.
  std::int32_t dispatch_generations = kDispatchGenerations;
  std::int32_t combine_generations = kCombineGenerations;
  std::int32_t num_statistics = 0;  // words that a rank may tell all others in a dispatch

  // A slot is used again two rounds later, because a sender hears only in the round between that
  // the receiver has armed it; a cell in the next round, because a dispatch lies between.
  static constexpr std::int32_t kDispatchGenerations = 2;
  static constexpr std::int32_t kCombineGenerations = 1;
};

enum class Protocol : std::uint8_t { kFence, kSentinel };

// What must be equal on all ranks in a round.
struct RoundShape {
  std::int32_t num_experts = 1;
  std::int32_t max_tokens_per_rank = 1;
  std::vector<std::uint64_t> payload_bytes;  // per token, in wire order
  AliveRanks alive{};
  std::int32_t num_statistics = 0;  // words of each rank
};

struct WindowRange {
  std::uint64_t offset_bytes;
  std::uint64_t bytes;
};

class Workspace {
 public:
  // Errors: an ep_size outside 1..kMaxRanks, a capacity below 1, sizes that do not fit 64 bits.
  static Expected<Workspace> make(const GroupCapacity& capacity);

  const Layout& layout() const { return layout_; }
  std::uint64_t window_bytes() const { return layout_.total_bytes(); }
  WorkspaceOffsets offsets() const;
  std::uint64_t rows_offset() const { return layout_.offset_bytes("expert_rows"); }
  std::uint64_t staged_offset() const { return layout_.offset_bytes("staged_rows"); }
  // The protocol of a round of so many tokens: the same on all ranks of the group.
  Protocol protocol_of(std::int32_t max_tokens_per_rank) const {
    return max_tokens_per_rank <= capacity_.sentinel_max_tokens ? Protocol::kSentinel
                                                                : Protocol::kFence;
  }
  // Of each payload's [ep, max, bytes_per_token] in the window, each 16-byte aligned. Each protocol
  // has receive buffers of its own.
  std::vector<std::uint64_t> payload_offsets(const RoundShape& round) const;
  // Where a rank finds how many rows came from each source, after a dispatch by this protocol.
  std::uint64_t recv_counters_offset(Protocol protocol) const;
  // All but the number of waiters, which is the launch's.
  SentinelParams sentinel_params() const;
  // What a collective initialisation or recovery sets to zero, and to bytes of 0xFF (SPEC KER-6.7).
  // It ends in a barrier of all ranks.
  std::span<const WindowRange> zeroed_ranges() const { return zeroed_; }
  std::span<const WindowRange> armed_ranges() const { return armed_; }
  // The flag words that a group would have left behind after `phase` phases, for tests that start
  // late: with zeroes an epoch that wraps to 0 would seem to have arrived already.
  struct FlagCell {
    std::uint64_t offset_bytes;
    std::uint64_t flag;
  };
  std::vector<FlagCell> flags_after(std::uint32_t phase) const;
  // SPEC KER-2.2.
  std::uint32_t round_digest(const RoundShape& round) const;

 private:
  explicit Workspace(Layout layout) : layout_(std::move(layout)) {}
  GroupCapacity capacity_;
  Layout layout_;
  std::vector<WindowRange> zeroed_, armed_;
};

// Contiguous placement as a kernel is told it (SPEC KER-1.1): of 1 to kMaxExperts experts.
constexpr ExpertSplit split_experts(std::int32_t num_experts, std::int32_t ep_size) {
  CONTRACT(num_experts >= 1 && num_experts <= kMaxExperts && ep_size >= 1, num_experts, ep_size);
  const auto experts = static_cast<std::uint32_t>(num_experts);
  const auto ranks = static_cast<std::uint32_t>(ep_size);
  return ExpertSplit{experts, experts / ranks, experts % ranks, Reciprocal::of(experts / ranks + 1),
                     Reciprocal::of(experts / ranks)};
}

}  // namespace assay::one_sided
