// The checks that a round goes through, one file each, in the order in which they speak: what makes
// later findings meaningless comes first. This file decides what a check sees and what it returns;
// the table is checks.cpp, each check decides its clause and its diagnoses (SPEC VER-2).
//
// A check reports the first wrong place of the round and how much is wrong, in one Mismatch. It
// reads whole rows with memcmp and looks closer only where they differ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/moe/moe.hpp"
#include "verify/compare/mismatch.hpp"
#include "verify/subject/buffers.hpp"
#include "verify/subject/round.hpp"

namespace assay::verify {

// A received row that is not the row that belongs there.
struct WrongRow {
  std::size_t payload = 0;
  RankId dst, src;
  SlotId slot;
  TokenId token;       // whose row belongs there
  bool stale = false;  // it is, all or part of it, a row of the round before (SPEC VER-2.5)
};

// A combined row with another bit than the legal one.
struct WrongOut {
  RankId src;
  TokenId token;
  bool stale = false;  // it is, or contains, a row of the round before
};

struct LostRow {  // no row of the block is this token's
  RankId dst, src;
  TokenId token;
  friend bool operator==(const LostRow&, const LostRow&) = default;
};

// Everything about one round after the subject ran it. Indices are [payload], [src], [dst].
struct RoundView {
  const GroupSetup* setup = nullptr;
  const moe::Placement* placement = nullptr;
  const moe::Combine* combine = nullptr;
  const Round* round = nullptr;         // null once the checks are done: the caller may refill it
  std::int64_t number = 0;              // counted since the group was created
  const RoundView* previous = nullptr;  // its buffers are as the subject left them

  std::vector<moe::Payload> payloads;
  moe::RankMask alive = moe::RankMask::all();
  std::optional<moe::Routing> routing;
  std::optional<moe::DispatchPlan> legal;  // with canonical slots where any are legal

  std::vector<std::vector<OutputBuffer>> recv;  // [payload][dst]
  std::vector<OutputBuffer> recv_counters;      // [dst] -> int32 [ep]
  std::vector<OutputBuffer> target_rank;        // [src] -> int32 [t, k]
  std::vector<OutputBuffer> target_slot;        // [src] -> int32 [t, k]
  std::vector<OutputBuffer> statistics;         // [dst] -> int32 [ep, n]; empty: none travel
  std::vector<OutputBuffer> list_offsets;    // [dst] -> int32 [local experts + 1]; empty: no lists
  std::vector<OutputBuffer> list_entries;    // [dst] -> int32 [ep * max * k, 2]
  std::vector<OutputBuffer> expert_out;      // [dst] -> [ep, max, h]
  std::vector<OutputBuffer> out;             // [src] -> [t, h]
  std::vector<std::int32_t> expert_calls;    // [rank]
  std::vector<std::uint64_t> expert_digest;  // [rank]: of expert_out when the experts returned
  std::vector<std::uint64_t> input_digest;   // [rank]: of topk_ids and payload rows before run

  // Filled by examine() once the subject has returned.
  std::optional<moe::TargetViolation> violation;  // of target_rank and target_slot
  // The plan with the slots in which the rows really lie: the recorded ones, or, where those are
  // illegal, found by content.
  std::optional<moe::DispatchPlan> joined;
  bool joined_by_content = false;
  std::vector<LostRow> lost;
  std::vector<WrongRow> wrong_rows;  // the first kWrongMax
  std::int64_t num_wrong_rows = 0;
  std::int64_t num_rows = 0;  // compared, over all payloads
  std::vector<WrongOut> wrong_out;
  std::int64_t num_wrong_out = 0;
  std::int64_t num_out = 0;  // combined rows compared

  std::int32_t ep_size() const { return setup->ep_size; }
  std::int32_t max_tokens() const { return legal->max_tokens_per_rank(); }
  std::int32_t num_tokens(RankId src) const { return routing->num_tokens(src); }
  bool is_alive(RankId rank) const { return alive.alive(rank); }
  std::int64_t out_row_bytes() const;
  std::int64_t expert_row_bytes() const;

  const std::byte* source_rows(std::size_t payload, RankId src) const;  // [t, bytes_per_token]
  const std::byte* source_row(std::size_t payload, RankId src, TokenId token) const;
  const std::byte* recv_row(std::size_t payload, RankId dst, RankId src, SlotId slot) const;
  const std::byte* expert_row(RankId dst, RankId src, SlotId slot) const;
  const std::byte* out_row(RankId src, TokenId token) const;
  std::span<const std::int32_t> counters_of(RankId dst) const;
  std::span<const std::int32_t> statistics_of(RankId dst) const;
  std::span<const std::int32_t> list_offsets_of(RankId dst) const;
  std::span<const std::int32_t> list_entries_of(RankId dst) const;
  std::span<const std::int32_t> target_ranks_of(RankId src) const;
  std::span<const std::int32_t> target_slots_of(RankId src) const;
  // The rows of one token's picks as combine reads them, nullptr for a hole.
  std::vector<const std::byte*> terms_of(RankId src, TokenId token) const;
};

// More wrong rows than this are counted and not looked at one by one.
inline constexpr std::size_t kWrongMax = 256;

// Joins rows with tokens and compares all of them: fills the second half of the view. `combined`:
// whether combine ran to its end; if not, combined rows are not looked at.
void examine(RoundView& view, bool combined);

// Adds at most one Mismatch to `found`.
using CheckFunction = void (*)(const RoundView&, std::vector<Mismatch>& found);
struct Check {
  std::string_view name;    // "dispatch.rows"
  std::string_view clause;  // what a subject owes: "MOE-2.6"
  std::string_view title;   // one sentence for lists
  CheckFunction run;        // null for "progress", which is the driver's own
};

// progress, memory.bounds, memory.inputs, dispatch.targets, dispatch.counters, round.isolation,
// dispatch.rows, dispatch.padding, dispatch.statistics, dispatch.lists, combine.bits.
std::span<const Check> checks();
// CONTRACT: there is one.
const Check& find_check(std::string_view name);

// A mismatch of a check, with its name and clause filled in.
Mismatch mismatch_of(std::string_view check, std::string sentence, std::vector<Coordinate> where);

// The checks. Each file says what it decides.
void check_memory_bounds(const RoundView&, std::vector<Mismatch>&);
void check_memory_inputs(const RoundView&, std::vector<Mismatch>&);
void check_dispatch_targets(const RoundView&, std::vector<Mismatch>&);
void check_dispatch_counters(const RoundView&, std::vector<Mismatch>&);
void check_round_isolation(const RoundView&, std::vector<Mismatch>&);
void check_dispatch_rows(const RoundView&, std::vector<Mismatch>&);
void check_dispatch_padding(const RoundView&, std::vector<Mismatch>&);
void check_dispatch_statistics(const RoundView&, std::vector<Mismatch>&);
void check_dispatch_lists(const RoundView&, std::vector<Mismatch>&);
void check_combine_bits(const RoundView&, std::vector<Mismatch>&);

}  // namespace assay::verify
