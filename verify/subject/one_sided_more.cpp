// What a round asks for beyond dispatch and combine, and ordered slots: from the C interface's
// words to the kernels', and which of it is refused.
#include <fmt/format.h>

#include <algorithm>

#include "model/core/text.hpp"
#include "verify/subject/one_sided_plan.hpp"

namespace assay::verify {

namespace {

std::uint64_t u64(std::int64_t value) { return static_cast<std::uint64_t>(value); }

}  // namespace

Expected<bool> parse_slots(std::string_view text) {
  if (text == "counter") return false;
  if (text == "ordered") return true;
  return bad_input(
      fmt::format("option slots is {}; allowed are counter and ordered", in_quotes(text)));
}

std::uint32_t GroupPlan::most_local_experts() const {
  return static_cast<std::uint32_t>((config.num_experts + config.ep_size - 1) / config.ep_size);
}

std::uint64_t GroupPlan::list_entries(std::int32_t max_tokens_per_rank) const {
  return u64(config.ep_size) * u64(max_tokens_per_rank) * u64(config.top_k);
}

Status check_more(const GroupPlan& group, const assay_round& round, const RoundPlan& plan) {
  const assay_round_more& more = plan.more;
  if (more.num_statistics < 0 || more.num_statistics > group.config.num_statistics)
    return bad_input(fmt::format("the round has {} statistics; this group allows 0 to {}",
                                 more.num_statistics, group.config.num_statistics));
  if (more.num_statistics > 0 && plan.protocol == one_sided::Protocol::kSentinel)
    return unsupported(
        fmt::format("statistics travel by Fence only (SPEC KER-1.8); this round of {} tokens per "
                    "rank goes by Sentinel",
                    round.max_tokens_per_rank));
  if (more.list_offsets == nullptr) return Done{};
  if (group.config.expert_lists == 0)
    return bad_input("the round wants slot lists; the group was made without expert_lists");
  if (plan.ids_payload < 0) return bad_input("slot lists need a payload that holds expert ids");
  constexpr std::uint64_t kEntriesMax = 0x7FFFFFFF;  // offsets are int32
  if (const std::uint64_t entries = group.list_entries(round.max_tokens_per_rank);
      entries > kEntriesMax)
    return unsupported(
        fmt::format("slot lists of this round may have {} entries; at most {} are "
                    "supported",
                    entries, kEntriesMax));
  return Done{};
}

namespace {

// That `array`, which a round needs because it `needs`, has a pointer for every local rank.
template <class T>
Status check_pointers(const GroupPlan& group, const char* needs, const char* name,
                      T* const* array) {
  if (array == nullptr)
    return bad_input(fmt::format("the round {}; {} may not be null", needs, name));
  for (std::int32_t rank = 0; rank < group.config.num_local_ranks; ++rank)
    if (array[rank] == nullptr)
      return bad_input(fmt::format("the round {}; {}[{}] may not be null", needs, name, rank));
  return Done{};
}

// What round `index` of a run asks for beyond assay_round.
Expected<assay_round_more> ask_more(const GroupPlan& group, std::int32_t index) {
  const assay_group_config& config = group.config;
  const assay_round_more* more =
      config.more == nullptr ? nullptr : config.more(config.more_context, index);
  if (more == nullptr) return assay_round_more{};
  if (more->struct_size < sizeof(assay_round_more))
    return bad_input(fmt::format("assay_round_more has {} bytes; at least {} are needed",
                                 more->struct_size, sizeof(assay_round_more)));
  if (more->num_statistics > 0) {
    constexpr const char* kNeeds = "has statistics";
    ASSAY_CHECK(check_pointers(group, kNeeds, "statistics", more->statistics));
    ASSAY_CHECK(check_pointers(group, kNeeds, "gathered_statistics", more->gathered_statistics));
  }
  if (more->list_offsets != nullptr) {
    constexpr const char* kNeeds = "wants slot lists";
    ASSAY_CHECK(check_pointers(group, kNeeds, "list_offsets", more->list_offsets));
    ASSAY_CHECK(check_pointers(group, kNeeds, "list_entries", more->list_entries));
  }
  return *more;
}

}  // namespace

Expected<std::vector<RoundPlan>> plan_rounds(const GroupPlan& group,
                                             std::span<const assay_round> rounds) {
  std::vector<RoundPlan> plans;
  for (std::size_t i = 0; i < rounds.size(); ++i) {
    ASSAY_TRY(const assay_round_more more, ask_more(group, static_cast<std::int32_t>(i)));
    ASSAY_TRY(RoundPlan plan, plan_round(group, rounds[i], more));
    plans.push_back(std::move(plan));
  }
  return plans;
}

one_sided::OrderSlotsParams order_slots_params(const GroupPlan& group, const RoundPlan& plan,
                                               const assay_round& round, RankId rank,
                                               const RankMemory& memory) {
  return {dispatch_params(group, plan, round, rank, memory),
          static_cast<std::uint32_t>(group.config.top_k)};
}

one_sided::ExpertListParams expert_list_params(const GroupPlan& group, const RoundPlan& plan,
                                               RankId rank, const RankMemory& memory) {
  const one_sided::ExpertSplit split =
      one_sided::split_experts(group.config.num_experts, group.config.ep_size);
  const auto r = static_cast<std::uint32_t>(rank.value());
  one_sided::ExpertListParams params{};
  params.group = plan.group;
  params.group.window = memory.window;
  params.ids_offset = plan.payload_at[static_cast<std::size_t>(plan.ids_payload)];
  params.offsets = memory.list_offsets;
  params.entries = memory.list_entries;
  params.top_k = static_cast<std::uint32_t>(group.config.top_k);
  params.first_expert = r * split.experts_per_rank + std::min(r, split.ranks_with_one_more);
  params.num_local_experts = split.experts_per_rank + (r < split.ranks_with_one_more ? 1 : 0);
  params.rows_lie_apart = plan.protocol == one_sided::Protocol::kSentinel;
  return params;
}

}  // namespace assay::verify
