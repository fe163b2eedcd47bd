// From the C interface's words to the kernels': which arithmetic a profile means, which requests
// are refused, and the parameters of every kernel of a round. Shared by the simulated and the CUDA
// subject, so that both launch the same thing. Runs nothing.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "cuda/kernels/one_sided/workspace_layout.hpp"
#include "model/core/expected.hpp"
#include "verify/subject/subject.h"

namespace assay::verify {

// Everything about a group that its configuration fixes.
struct GroupPlan {
  assay_group_config config;  // `profile` and `options` are not kept
  one_sided::Workspace workspace;
  one_sided::Sum sum;
  one_sided::RowFormat rows;    // of expert_out
  one_sided::RowFormat pulled;  // of what combine pulls
  one_sided::RowFormat out;
  bool ordered_slots = false;  // of rounds by Fence (SPEC KER-1.7); an option of our subjects

  // What a round's slots promise: ASSAY_SLOTS_*.
  int slot_rule(std::int32_t max_tokens_per_rank) const;
  std::uint32_t most_local_experts() const;                            // of any rank
  std::uint64_t list_entries(std::int32_t max_tokens_per_rank) const;  // at most, of a rank
  std::uint64_t row_bytes() const;                                     // of one expert_out row
  std::uint64_t out_row_bytes() const;
  std::uint64_t payload_bytes() const;  // of one rank's payload rows at capacity, with alignment
};

// Rounds of up to `sentinel_max_tokens` per rank go by Sentinel, the others by Fence. Errors: an
// unknown profile, an arithmetic that our kernels have not, sizes that do not fit.
Expected<GroupPlan> plan_group(const assay_group_config& config,
                               std::int32_t sentinel_max_tokens = 0);

// How a subject's options spell that number.
struct ProtocolOption {
  enum class Choice : std::uint8_t { kFence, kSentinel, kAuto } choice = Choice::kFence;
  std::int32_t sentinel_max_tokens = 0;  // for kAuto (SPEC KER-6.8)
  // For a group of this capacity.
  std::int32_t sentinel_max_tokens_of(std::int32_t max_tokens_per_rank) const;
};
Expected<ProtocolOption::Choice> parse_protocol_choice(std::string_view text);
// Option slots: whether they are ordered (SPEC KER-1.7).
Expected<bool> parse_slots(std::string_view text);

// Everything about a round that is equal on all ranks.
struct RoundPlan {
  one_sided::GroupParams group;  // without the window
  one_sided::Protocol protocol = one_sided::Protocol::kFence;
  std::uint64_t recv_counters_at = 0;          // u32 [ep] in the window
  std::vector<std::uint64_t> payload_at;       // offset of each payload's rows in the window
  std::vector<std::uint64_t> payload_from_at;  // offset of each payload's rows in a rank's inputs
  std::int32_t ids_payload = -1;               // index of the payload that holds expert ids
  assay_round_more more{};                     // what it asks for beyond assay_round
};

// Errors: what a caller of dispatch must not ask for; the kernels do not check it again. What the
// pointers of `more` lead to is not looked at, nor whether they are null: who explores has none.
Expected<RoundPlan> plan_round(const GroupPlan& group, const assay_round& round,
                               const assay_round_more& more = {});
// What of plan.more this round cannot have.
Status check_more(const GroupPlan& group, const assay_round& round, const RoundPlan& plan);
// All rounds of a run. What the caller asks for beyond them is asked for here, once a round
// (subject.h). Errors: as above, and of that a struct that is too small or a pointer that is null
// where the round needs it (SPEC VER-1.7).
Expected<std::vector<RoundPlan>> plan_rounds(const GroupPlan& group,
                                             std::span<const assay_round> rounds);

// Where one rank's kernels find their inputs and put their output.
struct RankMemory {
  Window window;
  Address topk_ids;
  Address payload_rows;
  Address out;
  Address statistics{};                    // int32 [words of the round]
  Address list_offsets{}, list_entries{};  // u32 [local experts + 1], ListEntry
};

// What a round says of one rank.
std::uint32_t tokens_of(const assay_round& round, RankId rank);
bool is_alive(const assay_round& round, RankId rank);
one_sided::DispatchParams dispatch_params(const GroupPlan& group, const RoundPlan& plan,
                                          const assay_round& round, RankId rank,
                                          const RankMemory& memory);
one_sided::OrderSlotsParams order_slots_params(const GroupPlan& group, const RoundPlan& plan,
                                               const assay_round& round, RankId rank,
                                               const RankMemory& memory);
one_sided::ExpertListParams expert_list_params(const GroupPlan& group, const RoundPlan& plan,
                                               RankId rank, const RankMemory& memory);
one_sided::SanitizeParams sanitize_params(const GroupPlan& group, const RoundPlan& plan,
                                          const RankMemory& memory);
one_sided::StageParams stage_params(const GroupPlan& group, const RoundPlan& plan,
                                    const RankMemory& memory);
one_sided::CombineParams combine_params(const GroupPlan& group, const RoundPlan& plan,
                                        const assay_round& round, RankId rank,
                                        const RankMemory& memory);

// The same round by Sentinel, which has neither a sanitize nor a stage kernel. `waiters` is how
// many of a launch's groups wait for peers, at most as many as are resident; 0 leaves it to the
// CUDA launcher (SPEC CUD-1.4), and no kernel runs with it.
one_sided::SentinelDispatchParams sentinel_dispatch_params(const GroupPlan& group,
                                                           const RoundPlan& plan,
                                                           const assay_round& round, RankId rank,
                                                           const RankMemory& memory,
                                                           std::uint32_t waiters = 0);
one_sided::SentinelCombineParams sentinel_combine_params(const GroupPlan& group,
                                                         const RoundPlan& plan,
                                                         const assay_round& round, RankId rank,
                                                         const RankMemory& memory,
                                                         std::uint32_t waiters = 0);
// Groups that keep every source's first slot and every token apart; any other number works too.
std::uint32_t sentinel_groups(const GroupPlan& group, std::uint32_t num_tokens);

// The sentence of a status region (StatusWord::kBytes) that is not zero; Done if it is.
Status status_of(RankId rank, const std::byte* status);

// An error in the C interface's words: fills `message` (may be null) and returns ASSAY_UNSUPPORTED
// or, for a caller's mistake, `mistake`.
int tell(const Error& error, assay_message* message, int mistake = ASSAY_FAILED);

}  // namespace assay::verify
