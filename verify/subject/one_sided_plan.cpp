// Turns the C interface's configuration and rounds into kernel parameters, and refuses what kernels
// do not check.
#include "verify/subject/one_sided_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <numeric>

#include "cuda/launch/group_threads.hpp"
#include "model/core/text.hpp"
#include "model/moe/profile.hpp"

namespace assay::verify {

using one_sided::RowFormat;
using one_sided::Sum;
using A = moe::CombineArithmetic;

namespace {

std::uint64_t u64(std::int64_t value) { return static_cast<std::uint64_t>(value); }

std::uint64_t format_bytes(RowFormat format) {
  return format == RowFormat::kE4m3 ? 1 : format == RowFormat::kF32 ? 4 : 2;
}

RowFormat row_format(std::int32_t dtype) {
  return dtype == ASSAY_DTYPE_BF16  ? RowFormat::kBf16
         : dtype == ASSAY_DTYPE_F16 ? RowFormat::kF16
                                    : RowFormat::kF32;
}

// Which of the kernels' sums computes a profile's arithmetic; an error if none does.
Expected<Sum> sum_of(const A& a, bool low_precision) {
  const bool ftz = a.flush_subnormals;
  const bool at_reader = low_precision && a.low_precision == A::LowPrecision::kReaderE4m3;
  if (a.accumulate == A::Accumulate::kPayload && a.holes == A::Holes::kAddZero && !low_precision)
    return ftz ? Sum::kPayloadFtz : Sum::kPayload;
  if (a.accumulate == A::Accumulate::kF32 && a.holes == A::Holes::kCompact && !at_reader)
    return ftz ? Sum::kF32CompactFtz : Sum::kF32Compact;
  if (a.accumulate == A::Accumulate::kF32 && a.holes == A::Holes::kAddZero) {
    if (at_reader) return ftz ? Sum::kF32FtzThroughE4m3 : Sum::kF32ThroughE4m3;
    return ftz ? Sum::kF32Ftz : Sum::kF32;
  }
  return unsupported("our kernels have no combine for this profile's arithmetic");
}

// The start of the next payload in a rank's inputs: a widest vector's alignment.
constexpr std::uint64_t kInputAlignment = 16;

std::uint64_t round_up(std::uint64_t bytes) {
  return (bytes + kInputAlignment - 1) / kInputAlignment * kInputAlignment;
}

// The widest of 16, 8, 4, 2, 1 that divides every number given (SPEC KER-1.4).
std::uint32_t widest_vector(std::initializer_list<std::uint64_t> numbers) {
  std::uint64_t divisor = 16;
  for (const std::uint64_t number : numbers) divisor = std::gcd(divisor, number);
  return static_cast<std::uint32_t>(divisor);
}

}  // namespace

std::uint64_t GroupPlan::row_bytes() const { return format_bytes(rows) * u64(config.hidden_size); }
std::uint64_t GroupPlan::out_row_bytes() const {
  return format_bytes(out) * u64(config.hidden_size);
}
std::uint64_t GroupPlan::payload_bytes() const {
  return u64(config.max_tokens_per_rank) * u64(config.max_payload_bytes_total) +
         kInputAlignment * one_sided::kMaxPayloads;
}

int GroupPlan::slot_rule(std::int32_t max_tokens_per_rank) const {
  if (workspace.protocol_of(max_tokens_per_rank) == one_sided::Protocol::kSentinel)
    return ASSAY_SLOTS_TOKEN_INDEX;
  return ordered_slots ? ASSAY_SLOTS_PREFIX : ASSAY_SLOTS_COUNTER;
}

std::int32_t ProtocolOption::sentinel_max_tokens_of(std::int32_t max_tokens_per_rank) const {
  switch (choice) {
    case Choice::kFence:
      return 0;
    case Choice::kSentinel:
      return max_tokens_per_rank;
    case Choice::kAuto:
      return std::min(sentinel_max_tokens, max_tokens_per_rank);
  }
  return 0;
}

Expected<ProtocolOption::Choice> parse_protocol_choice(std::string_view text) {
  if (text == "fence") return ProtocolOption::Choice::kFence;
  if (text == "sentinel") return ProtocolOption::Choice::kSentinel;
  if (text == "auto") return ProtocolOption::Choice::kAuto;
  return bad_input(
      fmt::format("option protocol is {}; allowed are fence, sentinel and auto", in_quotes(text)));
}

Expected<GroupPlan> plan_group(const assay_group_config& config, std::int32_t sentinel_max_tokens) {
  ASSAY_TRY(const moe::CombineProfile* profile, moe::find_combine_profile(config.profile));
  if (config.num_experts > one_sided::kMaxExperts)
    return unsupported(fmt::format("{} experts; our kernels have at most {}", config.num_experts,
                                   one_sided::kMaxExperts));
  const A& arithmetic = profile->arithmetic;
  const bool low_precision = config.low_precision_combine != 0;
  ASSAY_TRY(const Sum sum, sum_of(arithmetic, low_precision));
  const RowFormat rows = row_format(config.combine_dtype);
  const bool staged = low_precision && arithmetic.low_precision == A::LowPrecision::kSenderE4m3;
  one_sided::GroupCapacity capacity;
  capacity.ep_size = config.ep_size;
  capacity.top_k = config.top_k;
  capacity.max_tokens_per_rank = config.max_tokens_per_rank;
  capacity.payload_bytes_total = config.max_payload_bytes_total;
  capacity.row_bytes = static_cast<std::int64_t>(format_bytes(rows)) * config.hidden_size;
  capacity.staged_row_bytes = staged ? config.hidden_size : 0;
  capacity.num_statistics = config.num_statistics;
  capacity.sentinel_max_tokens = sentinel_max_tokens;
  ASSAY_TRY(const one_sided::Workspace workspace, one_sided::Workspace::make(capacity));
  GroupPlan plan{config,
                 workspace,
                 sum,
                 rows,
                 staged ? RowFormat::kE4m3 : rows,
                 arithmetic.out_is_bf16(low_precision) ? RowFormat::kBf16 : rows};
  plan.config.profile = plan.config.options = nullptr;
  return plan;
}

Expected<RoundPlan> plan_round(const GroupPlan& group, const assay_round& round,
                               const assay_round_more& more) {
  const assay_group_config& config = group.config;
  if (round.struct_size < sizeof(assay_round))
    return bad_input(fmt::format("assay_round has {} bytes; at least {} are needed",
                                 round.struct_size, sizeof(assay_round)));
  if (round.max_tokens_per_rank < 1 || round.max_tokens_per_rank > config.max_tokens_per_rank)
    return bad_input(
        fmt::format("max_tokens_per_rank of the round is {}; allowed are 1 to the "
                    "group's capacity {}",
                    round.max_tokens_per_rank, config.max_tokens_per_rank));
  if (round.num_payloads < 1 ||
      round.num_payloads > static_cast<std::int32_t>(one_sided::kMaxPayloads))
    return bad_input(fmt::format("the round has {} payloads; allowed are 1 to {}",
                                 round.num_payloads, one_sided::kMaxPayloads));
  for (std::int32_t rank = 0; rank < config.num_local_ranks; ++rank)
    if (round.num_tokens[rank] < 0 || round.num_tokens[rank] > round.max_tokens_per_rank)
      return bad_input(fmt::format("rank {} has {} tokens; allowed are 0 to max_tokens_per_rank {}",
                                   rank, round.num_tokens[rank], round.max_tokens_per_rank));

  RoundPlan plan{};
  one_sided::RoundShape shape;
  shape.num_experts = config.num_experts;
  shape.max_tokens_per_rank = round.max_tokens_per_rank;
  for (std::int32_t rank = 0; rank < config.ep_size; ++rank)
    if (is_alive(round, RankId(rank)))
      shape.alive.word[rank / 64] |= std::uint64_t{1} << (rank % 64);
  std::uint64_t from = 0;
  std::int64_t total = 0;
  for (std::int32_t i = 0; i < round.num_payloads; ++i) {
    const assay_payload& payload = round.payloads[i];
    if (payload.bytes_per_token < 1)
      return bad_input(
          fmt::format("payload {} has 0 bytes per token; at least 1 is needed", payload.name));
    total += payload.bytes_per_token;
    shape.payload_bytes.push_back(payload.bytes_per_token);
    if (payload.holds_expert_ids != 0) {
      if (payload.bytes_per_token != 4u * static_cast<std::uint32_t>(config.top_k))
        return bad_input(
            fmt::format("payload {} holds expert ids and has {} bytes per token; top_k "
                        "{} needs {}",
                        payload.name, payload.bytes_per_token, config.top_k, 4 * config.top_k));
      plan.ids_payload = i;
    }
    plan.payload_from_at.push_back(from);
    from =
        round_up(from + std::uint64_t{payload.bytes_per_token} * u64(config.max_tokens_per_rank));
  }
  if (total > config.max_payload_bytes_total)
    return bad_input(
        fmt::format("the round's payloads have {} bytes per token; the group's "
                    "capacity is {}",
                    total, config.max_payload_bytes_total));
  shape.num_statistics = more.num_statistics;
  plan.more = more;
  plan.protocol = group.workspace.protocol_of(round.max_tokens_per_rank);
  ASSAY_CHECK(check_more(group, round, plan));
  plan.payload_at = group.workspace.payload_offsets(shape);
  plan.recv_counters_at = group.workspace.recv_counters_offset(plan.protocol);
  plan.group.at = group.workspace.offsets();
  plan.group.alive = shape.alive;
  plan.group.ep_size = static_cast<std::uint32_t>(config.ep_size);
  plan.group.layout_digest = group.workspace.round_digest(shape);
  plan.group.max_tokens_per_rank = static_cast<std::uint32_t>(round.max_tokens_per_rank);
  return plan;
}

std::uint32_t tokens_of(const assay_round& round, RankId rank) {
  return static_cast<std::uint32_t>(round.num_tokens[rank.value()]);
}

bool is_alive(const assay_round& round, RankId rank) {
  const std::int32_t r = rank.value();
  return round.rank_mask == nullptr || (round.rank_mask[r / 64] >> (r % 64) & 1) != 0;
}

namespace {

one_sided::GroupParams with_window(const RoundPlan& plan, const RankMemory& memory) {
  one_sided::GroupParams group = plan.group;
  group.window = memory.window;
  return group;
}

}  // namespace

one_sided::DispatchParams dispatch_params(const GroupPlan& group, const RoundPlan& plan,
                                          const assay_round& round, RankId rank,
                                          const RankMemory& memory) {
  one_sided::DispatchParams params{};
  params.group = with_window(plan, memory);
  params.experts = one_sided::split_experts(group.config.num_experts, group.config.ep_size);
  params.num_tokens = tokens_of(round, rank);
  params.num_payloads = static_cast<std::uint16_t>(round.num_payloads);
  params.topk_ids = memory.topk_ids;
  params.ordered_slots = group.ordered_slots && plan.protocol == one_sided::Protocol::kFence;
  params.statistics = {memory.statistics, static_cast<std::uint32_t>(plan.more.num_statistics)};
  for (std::size_t i = 0; i < plan.payload_at.size(); ++i) {
    one_sided::PayloadParams& payload = params.payload[i];
    payload.rows = memory.payload_rows.at(plan.payload_from_at[i]);
    payload.recv_offset = plan.payload_at[i];
    payload.bytes_per_token = round.payloads[i].bytes_per_token;
    payload.vector_bytes = static_cast<std::uint16_t>(
        widest_vector({payload.bytes_per_token, payload.rows.raw,
                       memory.window.first.raw + payload.recv_offset, memory.window.stride_bytes}));
  }
  one_sided::describe_token(params);
  return params;
}

one_sided::SanitizeParams sanitize_params(const GroupPlan& group, const RoundPlan& plan,
                                          const RankMemory& memory) {
  CONTRACT(plan.ids_payload >= 0);
  return {with_window(plan, memory), plan.payload_at[static_cast<std::size_t>(plan.ids_payload)],
          static_cast<std::uint32_t>(group.config.top_k), group.config.invalid_expert_id};
}

one_sided::StageParams stage_params(const GroupPlan& group, const RoundPlan& plan,
                                    const RankMemory& memory) {
  return {with_window(plan, memory), group.workspace.rows_offset(), group.workspace.staged_offset(),
          static_cast<std::uint32_t>(group.config.hidden_size)};
}

one_sided::CombineParams combine_params(const GroupPlan& group, const RoundPlan& plan,
                                        const assay_round& round, RankId rank,
                                        const RankMemory& memory) {
  one_sided::CombineParams params{};
  params.group = with_window(plan, memory);
  params.num_tokens = tokens_of(round, rank);
  params.hidden_size = static_cast<std::uint32_t>(group.config.hidden_size);
  params.rows_offset = group.pulled == RowFormat::kE4m3 ? group.workspace.staged_offset()
                                                        : group.workspace.rows_offset();
  params.out = memory.out;
  params.vector_bytes = widest_vector(
      {format_bytes(group.pulled) * u64(group.config.hidden_size), group.out_row_bytes(),
       memory.out.raw, memory.window.first.raw + params.rows_offset, memory.window.stride_bytes});
  return params;
}

one_sided::SentinelDispatchParams sentinel_dispatch_params(const GroupPlan& group,
                                                           const RoundPlan& plan,
                                                           const assay_round& round, RankId rank,
                                                           const RankMemory& memory,
                                                           std::uint32_t waiters) {
  one_sided::SentinelDispatchParams params{};
  params.dispatch = dispatch_params(group, plan, round, rank, memory);
  params.sentinel = group.workspace.sentinel_params();
  params.sentinel.waiters = waiters;
  params.ids_payload =
      plan.ids_payload < 0 ? one_sided::kMaxPayloads : static_cast<std::uint32_t>(plan.ids_payload);
  params.top_k = static_cast<std::uint32_t>(group.config.top_k);
  params.invalid_expert_id = group.config.invalid_expert_id;
  return params;
}

one_sided::SentinelCombineParams sentinel_combine_params(const GroupPlan& group,
                                                         const RoundPlan& plan,
                                                         const assay_round& round, RankId rank,
                                                         const RankMemory& memory,
                                                         std::uint32_t waiters) {
  const std::uint64_t wire_bytes = format_bytes(group.pulled) * u64(group.config.hidden_size);
  const std::uint64_t rows_at = group.workspace.rows_offset();
  one_sided::SentinelCombineParams params{};
  params.combine = combine_params(group, plan, round, rank, memory);
  params.combine.rows_offset = rows_at;
  params.combine.vector_bytes = widest_vector({wire_bytes, group.out_row_bytes(), memory.out.raw});
  params.sentinel = group.workspace.sentinel_params();
  params.sentinel.waiters = waiters;
  params.rows = group.rows;
  params.pull_bytes = widest_vector(
      {group.row_bytes(), memory.window.first.raw + rows_at, memory.window.stride_bytes});
  params.top_k = static_cast<std::uint32_t>(group.config.top_k);
  return params;
}

std::uint32_t sentinel_groups(const GroupPlan& group, std::uint32_t num_tokens) {
  constexpr std::uint32_t kNoMorePlaces = 0;
  return cuda::sentinel_groups_of(static_cast<std::uint32_t>(group.config.ep_size),
                                  static_cast<std::uint32_t>(group.config.max_tokens_per_rank),
                                  num_tokens, kNoMorePlaces);
}

Status status_of(RankId rank, const std::byte* bytes) {
  struct {
    std::uint32_t failure, epoch, peer, unused;
    std::uint64_t seen, expected;
  } status{};
  static_assert(sizeof(status) == one_sided::StatusWord::kBytes);
  std::memcpy(&status, bytes, sizeof status);
  if (status.failure == 0) return Done{};
  const bool timed_out = status.failure == static_cast<std::uint32_t>(one_sided::Failure::kTimeOut);
  return bad_input(fmt::format(
      "rank {} gave up: {} in epoch {}, waiting for peer {}: word {:#018x}, expected {:#018x}",
      rank.value(),
      timed_out ? "time-out" : "the peer runs other sizes, payloads, statistics or living ranks",
      status.epoch, status.peer, status.seen, status.expected));
}

int tell(const Error& error, assay_message* message, int mistake) {
  if (message != nullptr)
    std::snprintf(message->text, sizeof message->text, "%s", error.sentence.c_str());
  return error.kind == ErrorKind::kUnsupported ? ASSAY_UNSUPPORTED : mistake;
}

}  // namespace assay::verify
