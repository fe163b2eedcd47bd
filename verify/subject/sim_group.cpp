#include "verify/subject/sim_group.hpp"

#include <cstring>
#include <numeric>

#include <fmt/format.h>

namespace assay::verify {

using one_sided::RowFormat;
using one_sided::Sum;

namespace {

std::uint64_t element_bytes(std::int32_t dtype) { return dtype == ASSAY_DTYPE_F32 ? 4 : 2; }

RowFormat row_format(std::int32_t dtype) {
  return dtype == ASSAY_DTYPE_BF16  ? RowFormat::kBf16
         : dtype == ASSAY_DTYPE_F16 ? RowFormat::kF16
                                    : RowFormat::kF32;
}

// Which of the kernel's sums computes a profile's arithmetic; an error if none does.
Expected<Sum> sum_of(const moe::CombineArithmetic& a, bool low_precision) {
  using A = moe::CombineArithmetic;
  const bool ftz = a.flush_subnormals;
  if (a.accumulate == A::Accumulate::kPayload && a.holes == A::Holes::kAddZero && !low_precision)
    return ftz ? Sum::kPayloadFtz : Sum::kPayload;
  if (a.accumulate == A::Accumulate::kF32 && a.holes == A::Holes::kCompact && !ftz)
    return Sum::kF32Compact;
  if (a.accumulate == A::Accumulate::kF32 && a.holes == A::Holes::kAddZero) {
    if (low_precision && a.low_precision == A::LowPrecision::kReaderE4m3)
      return ftz ? Sum::kF32FtzThroughE4m3 : Sum::kF32ThroughE4m3;
    return ftz ? Sum::kF32Ftz : Sum::kF32;
  }
  return unsupported("our kernels have no combine for this profile's arithmetic");
}

std::uint64_t round_up(std::uint64_t bytes, std::uint64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

// The widest of 16, 8, 4, 2, 1 that divides every number given (SPEC KER-1.4).
std::uint32_t widest_vector(std::initializer_list<std::uint64_t> numbers) {
  std::uint64_t divisor = 16;
  for (const std::uint64_t number : numbers) divisor = std::gcd(divisor, number);
  return static_cast<std::uint32_t>(divisor);
}

template <class T>
std::span<const std::byte> bytes_of(const T* first, std::uint64_t count) {
  return {reinterpret_cast<const std::byte*>(first), count * sizeof(T)};
}

}  // namespace

struct SimGroup::RoundPlan {
  one_sided::GroupParams group;
  std::vector<std::uint64_t> payload_at;       // offset of each payload's rows in the window
  std::vector<std::uint64_t> payload_from_at;  // offset of each payload's rows in RankMemory
  std::int32_t ids_payload = -1;               // index of the payload that holds expert ids
};

Expected<std::unique_ptr<SimGroup>> SimGroup::make(const SimKernels& kernels,
                                                   const assay_group_config& config,
                                                   const SimOptions& options) {
  if (config.first_rank != 0 || config.num_local_ranks != config.ep_size)
    return unsupported(fmt::format("the simulated subject holds all {} ranks of a group in one "
                                   "process; {} were asked for from rank {}",
                                   config.ep_size, config.num_local_ranks, config.first_rank));
  ASSAY_TRY(const moe::CombineProfile* profile, moe::find_combine_profile(config.profile));
  ASSAY_TRY(const Sum sum, sum_of(profile->arithmetic, config.low_precision_combine != 0));
  one_sided::GroupCapacity capacity;
  capacity.ep_size = config.ep_size;
  capacity.top_k = config.top_k;
  capacity.max_tokens_per_rank = config.max_tokens_per_rank;
  capacity.payload_bytes_total = config.max_payload_bytes_total;
  capacity.row_bytes = static_cast<std::int64_t>(element_bytes(config.combine_dtype)) *
                       config.hidden_size;
  capacity.staged_row_bytes = config.low_precision_combine != 0 ? config.hidden_size : 0;
  ASSAY_TRY(const one_sided::Workspace workspace, one_sided::Workspace::make(capacity));
  std::unique_ptr<SimGroup> group(
      new SimGroup(kernels, config, options, workspace, profile->arithmetic));
  group->sum_ = sum;
  if (kernels.dispatch(config.top_k) == nullptr)
    return unsupported(fmt::format("this build has no dispatch kernel for top_k {}", config.top_k));
  if (kernels.combine(sum, group->pulled_, config.top_k) == nullptr)
    return unsupported(fmt::format("this build has no combine kernel for top_k {} with profile {}",
                                   config.top_k, config.profile));
  return group;
}

SimGroup::SimGroup(const SimKernels& kernels, const assay_group_config& config,
                   const SimOptions& options, const one_sided::Workspace& workspace,
                   const moe::CombineArithmetic& arithmetic)
    : kernels_(kernels),
      config_(config),
      options_(options),
      workspace_(workspace),
      sum_(Sum::kF32),
      rows_(row_format(config.combine_dtype)),
      pulled_(config.low_precision_combine != 0 &&
                      arithmetic.low_precision == moe::CombineArithmetic::LowPrecision::kSenderE4m3
                  ? RowFormat::kE4m3
                  : rows_),
      machine_([&] {
        machine::MachineConfig machine;
        machine.num_ranks = config.ep_size;
        machine.group_size = options.group_size;
        machine.resident_ctas = options.resident_ctas;
        machine.seed = config.seed;
        machine.longest_run = options.longest_run;
        machine.timeouts_fire = options.timeouts_fire;
        return machine;
      }()) {
  window_ = machine_.allocate_window("workspace", workspace_.window_bytes(),
                                     workspace_.layout().alignment_bytes(), machine::Fill::kPoison);
  const std::uint64_t tokens = static_cast<std::uint64_t>(config.max_tokens_per_rank);
  const std::uint64_t payload_bytes =
      tokens * static_cast<std::uint64_t>(config.max_payload_bytes_total) +
      16 * one_sided::kMaxPayloads;
  for (RankId rank{0}; rank.value() < config.ep_size; rank = rank.next()) {
    RankMemory memory;
    memory.topk_ids = machine_.allocate(
        rank, "topk_ids", tokens * static_cast<std::uint64_t>(config.top_k) * 4, 4,
        machine::Fill::kPoison);
    memory.payload_rows =
        machine_.allocate(rank, "payload rows", payload_bytes, 16, machine::Fill::kPoison);
    memory.out = machine_.allocate(rank, "combined rows",
                                   tokens * static_cast<std::uint64_t>(config.hidden_size) * 4, 16,
                                   machine::Fill::kPoison);
    memory_.push_back(memory);
    // What a collective initialisation does once: control words start at zero, and the phase at the
    // first epoch asked for.
    for (const one_sided::ZeroedRange& range : workspace_.zeroed_ranges())
      machine_.fill(window_.of(rank).at(range.offset_bytes), range.bytes, std::byte{0});
    machine_.write(window_.of(rank).at(workspace_.offsets().phase),
                   bytes_of(&options_.first_epoch, 1));
  }
}

Status SimGroup::run(std::span<const assay_round> rounds, assay_experts experts, void* context) {
  late_error_ = Done{};
  std::vector<RoundPlan> plans;
  for (const assay_round& round : rounds) {
    ASSAY_CHECK(check_round(round));
    plans.push_back(plan_round(round));
  }
  for (std::size_t i = 0; i < rounds.size(); ++i)
    for (RankId rank{0}; rank.value() < config_.ep_size; rank = rank.next())
      if (plans[i].group.alive.has(static_cast<std::uint32_t>(rank.value())))
        enqueue_rank(rounds[i], plans[i], static_cast<std::int32_t>(i), rank, experts, context);
  const machine::RunResult result = machine_.run();
  if (!result.ok())
    return bad_input(fmt::format("{}: {}", machine::run_status_name(result.status), result.report));
  ASSAY_CHECK(late_error_);
  return check_status_words();
}

// The rules a caller of dispatch keeps; the kernels do not check them again.
Status SimGroup::check_round(const assay_round& round) const {
  if (round.struct_size < sizeof(assay_round))
    return bad_input(fmt::format("assay_round has {} bytes; at least {} are needed",
                                 round.struct_size, sizeof(assay_round)));
  if (round.max_tokens_per_rank < 1 || round.max_tokens_per_rank > config_.max_tokens_per_rank)
    return bad_input(fmt::format("max_tokens_per_rank of the round is {}; allowed are 1 to the "
                                 "group's capacity {}",
                                 round.max_tokens_per_rank, config_.max_tokens_per_rank));
  if (round.num_payloads < 1 ||
      round.num_payloads > static_cast<std::int32_t>(one_sided::kMaxPayloads))
    return bad_input(fmt::format("the round has {} payloads; allowed are 1 to {}",
                                 round.num_payloads, one_sided::kMaxPayloads));
  std::int64_t total = 0;
  for (std::int32_t i = 0; i < round.num_payloads; ++i) {
    if (round.payloads[i].bytes_per_token < 1)
      return bad_input(fmt::format("payload {} has 0 bytes per token; at least 1 is needed",
                                   round.payloads[i].name));
    total += round.payloads[i].bytes_per_token;
  }
  if (total > config_.max_payload_bytes_total)
    return bad_input(fmt::format("the round's payloads have {} bytes per token; the group's "
                                 "capacity is {}",
                                 total, config_.max_payload_bytes_total));
  for (std::int32_t rank = 0; rank < config_.ep_size; ++rank)
    if (round.num_tokens[rank] < 0 || round.num_tokens[rank] > round.max_tokens_per_rank)
      return bad_input(fmt::format("rank {} has {} tokens; allowed are 0 to max_tokens_per_rank {}",
                                   rank, round.num_tokens[rank], round.max_tokens_per_rank));
  return Done{};
}

SimGroup::RoundPlan SimGroup::plan_round(const assay_round& round) const {
  RoundPlan plan{};
  one_sided::RoundShape shape;
  shape.num_experts = config_.num_experts;
  shape.max_tokens_per_rank = round.max_tokens_per_rank;
  for (std::uint32_t rank = 0; rank < static_cast<std::uint32_t>(config_.ep_size); ++rank)
    if (round.rank_mask == nullptr || ((round.rank_mask[rank / 64] >> (rank % 64)) & 1) != 0)
      shape.alive.word[rank / 64] |= std::uint64_t{1} << (rank % 64);
  std::uint64_t from = 0;
  for (std::int32_t i = 0; i < round.num_payloads; ++i) {
    const assay_payload& payload = round.payloads[i];
    shape.payload_bytes.push_back(payload.bytes_per_token);
    if (payload.holds_expert_ids != 0) plan.ids_payload = i;
    plan.payload_from_at.push_back(from);
    from = round_up(from + std::uint64_t{payload.bytes_per_token} *
                               static_cast<std::uint64_t>(config_.max_tokens_per_rank),
                    16);
  }
  plan.payload_at = workspace_.payload_offsets(shape);
  plan.group.window = window_;
  plan.group.at = workspace_.offsets();
  plan.group.alive = shape.alive;
  plan.group.ep_size = static_cast<std::uint32_t>(config_.ep_size);
  plan.group.layout_digest = workspace_.round_digest(shape);
  plan.group.max_tokens_per_rank = static_cast<std::uint32_t>(round.max_tokens_per_rank);
  return plan;
}

// One round of one rank as stream operations: inputs, dispatch, sanitize, experts, stage, combine,
// outputs. `round` must live until run ends; the plan is captured by value where a kernel needs it.
void SimGroup::enqueue_rank(const assay_round& round, const RoundPlan& plan, std::int32_t index,
                            RankId rank, assay_experts experts, void* context) {
  using machine::Kernel;
  using machine::kDefaultStream;
  using machine::SimOps;
  const auto r = static_cast<std::size_t>(rank.value());
  const RankMemory& memory = memory_[r];
  const auto num_tokens = static_cast<std::uint32_t>(round.num_tokens[rank.value()]);
  const std::uint32_t token_groups = num_tokens == 0 ? 1 : num_tokens;

  machine_.enqueue_host(rank, kDefaultStream, "inputs",
                        [this, &round, &plan, rank] { write_inputs(round, plan, rank); });

  one_sided::DispatchParams dispatch{};
  dispatch.group = plan.group;
  dispatch.experts = one_sided::split_experts(config_.num_experts, config_.ep_size);
  dispatch.num_tokens = num_tokens;
  dispatch.num_payloads = static_cast<std::uint32_t>(round.num_payloads);
  dispatch.topk_ids = memory.topk_ids;
  for (std::size_t i = 0; i < plan.payload_at.size(); ++i) {
    one_sided::PayloadParams& payload = dispatch.payload[i];
    payload.rows = memory.payload_rows.at(plan.payload_from_at[i]);
    payload.recv_offset = plan.payload_at[i];
    payload.bytes_per_token = round.payloads[i].bytes_per_token;
    payload.vector_bytes = widest_vector(
        {payload.bytes_per_token, payload.rows.raw, window_.first.raw + payload.recv_offset});
  }
  machine_.enqueue(rank, kDefaultStream,
                   Kernel{"dispatch", token_groups,
                          [body = kernels_.dispatch(config_.top_k), dispatch](SimOps& ops) {
                            body(ops, dispatch);
                          }});
  if (plan.ids_payload >= 0) {
    const one_sided::SanitizeParams sanitize{
        plan.group, plan.payload_at[static_cast<std::size_t>(plan.ids_payload)],
        static_cast<std::uint32_t>(config_.top_k), config_.invalid_expert_id};
    machine_.enqueue(rank, kDefaultStream,
                     Kernel{"sanitize", 1, [body = kernels_.sanitize, sanitize](SimOps& ops) {
                              body(ops, sanitize);
                            }});
  }
  machine_.enqueue_host(rank, kDefaultStream, "experts",
                        [this, &round, &plan, index, rank, experts, context] {
                          read_received(round, plan, rank);
                          experts(context, index, rank.value());
                          write_expert_rows(round, rank);
                        });
  if (pulled_ == RowFormat::kE4m3) {
    const one_sided::StageParams stage{plan.group, workspace_.rows_offset(),
                                       workspace_.staged_offset(),
                                       static_cast<std::uint32_t>(config_.hidden_size)};
    machine_.enqueue(rank, kDefaultStream,
                     Kernel{"stage", 2, [body = kernels_.stage(rows_), stage](SimOps& ops) {
                              body(ops, stage);
                            }});
  }

  one_sided::CombineParams combine{};
  combine.group = plan.group;
  combine.num_tokens = num_tokens;
  combine.hidden_size = static_cast<std::uint32_t>(config_.hidden_size);
  combine.rows_offset =
      pulled_ == RowFormat::kE4m3 ? workspace_.staged_offset() : workspace_.rows_offset();
  combine.out = memory.out;
  const std::uint64_t hidden = static_cast<std::uint64_t>(config_.hidden_size);
  const std::uint64_t in_bytes = pulled_ == RowFormat::kE4m3 ? 1 : element_bytes(config_.combine_dtype);
  const std::uint64_t out_bytes = config_.low_precision_combine != 0 ? 2 : in_bytes;
  combine.vector_bytes = widest_vector({hidden * in_bytes, hidden * out_bytes, combine.out.raw,
                                        window_.first.raw + combine.rows_offset});
  machine_.enqueue(
      rank, kDefaultStream,
      Kernel{"combine", token_groups,
             [body = kernels_.combine(sum_, pulled_, config_.top_k), combine](SimOps& ops) {
               body(ops, combine);
             }});
  machine_.enqueue_host(
      rank, kDefaultStream, "outputs", [this, &round, rank, num_tokens, hidden, out_bytes] {
        const auto local = static_cast<std::size_t>(rank.value());
        const Status read =
            machine_.read(memory_[local].out, {static_cast<std::byte*>(round.out[local]),
                                               num_tokens * hidden * out_bytes});
        if (!read && late_error_) late_error_ = read.error().within("combine's output");
      });
}

void SimGroup::write_inputs(const assay_round& round, const RoundPlan& plan, RankId rank) {
  const auto r = static_cast<std::size_t>(rank.value());
  const auto tokens = static_cast<std::uint64_t>(round.num_tokens[r]);
  // What the round before left in tables and outputs must not pass for this round's.
  const std::uint64_t table_bytes = static_cast<std::uint64_t>(config_.max_tokens_per_rank) *
                                    static_cast<std::uint64_t>(config_.top_k) * 4;
  machine_.forget(window_.of(rank).at(workspace_.offsets().target_rank), table_bytes);
  machine_.forget(window_.of(rank).at(workspace_.offsets().target_slot), table_bytes);
  machine_.forget(memory_[r].out, static_cast<std::uint64_t>(config_.max_tokens_per_rank) *
                                      static_cast<std::uint64_t>(config_.hidden_size) * 4);
  if (tokens == 0) return;
  machine_.write(memory_[r].topk_ids,
                 bytes_of(round.topk_ids[r], tokens * static_cast<std::uint64_t>(config_.top_k)));
  for (std::size_t i = 0; i < plan.payload_from_at.size(); ++i)
    machine_.write(memory_[r].payload_rows.at(plan.payload_from_at[i]),
                   bytes_of(static_cast<const std::byte*>(round.payload_rows[i][r]),
                            tokens * round.payloads[i].bytes_per_token));
}

// Copies what arrived, then poisons it: between this rank's dispatch and its combine no peer may
// write here (SPEC KER-2.5), and a row of an older round must not look like one of the next. Rows
// that nobody wrote since then stay as the caller poisoned them.
void SimGroup::read_received(const assay_round& round, const RoundPlan& plan, RankId rank) {
  const auto r = static_cast<std::size_t>(rank.value());
  const Address own = window_.of(rank);
  const auto ep = static_cast<std::uint64_t>(config_.ep_size);
  const auto top_k = static_cast<std::uint64_t>(config_.top_k);
  const auto tokens = static_cast<std::uint64_t>(round.num_tokens[r]);
  const auto read_words = [&](std::uint64_t offset, std::int32_t* to, std::uint64_t count,
                              const char* what) {
    const Status read = machine_.read(
        own.at(offset), {reinterpret_cast<std::byte*>(to), count * sizeof(std::int32_t)});
    if (!read && late_error_) late_error_ = read.error().within(what);
  };
  for (std::uint64_t source = 0; source < ep; ++source)
    if (plan.group.alive.has(static_cast<std::uint32_t>(source)))
      read_words(workspace_.offsets().recv_counters + source * 4, round.recv_counters[r] + source,
                 1, "recv_counters");
    else
      round.recv_counters[r][source] = 0;
  read_words(workspace_.offsets().target_rank, round.target_rank[r], tokens * top_k, "target_rank");
  read_words(workspace_.offsets().target_slot, round.target_slot[r], tokens * top_k, "target_slot");

  const std::uint64_t rows = ep * static_cast<std::uint64_t>(round.max_tokens_per_rank);
  for (std::size_t i = 0; i < plan.payload_at.size(); ++i) {
    const std::uint64_t row_bytes = round.payloads[i].bytes_per_token;
    auto* to = static_cast<std::byte*>(round.recv[i][r]);
    for (std::uint64_t row = 0; row < rows; ++row) {
      const Address from = own.at(plan.payload_at[i] + row * row_bytes);
      if (machine_.count_written(from, row_bytes) == 0) continue;
      machine_.peek(from, {to + row * row_bytes, row_bytes});
      machine_.forget(from, row_bytes);
    }
  }
}

// Rows that hold a token; the others are not for anybody to read and stay poison.
void SimGroup::write_expert_rows(const assay_round& round, RankId rank) {
  const auto r = static_cast<std::size_t>(rank.value());
  const auto max = static_cast<std::uint64_t>(round.max_tokens_per_rank);
  const std::uint64_t row_bytes = element_bytes(config_.combine_dtype) *
                                  static_cast<std::uint64_t>(config_.hidden_size);
  const auto* rows = static_cast<const std::byte*>(round.expert_out[r]);
  const Address own = window_.of(rank).at(workspace_.rows_offset());
  machine_.forget(own, static_cast<std::uint64_t>(config_.ep_size) * max * row_bytes);
  for (std::uint64_t source = 0; source < static_cast<std::uint64_t>(config_.ep_size); ++source) {
    const auto count = static_cast<std::uint64_t>(round.recv_counters[r][source]);
    if (count == 0 || count > max) continue;  // a wrong counter is the checks' business
    const std::uint64_t offset = source * max * row_bytes;
    machine_.write(own.at(offset), {rows + offset, count * row_bytes});
  }
}

Status SimGroup::check_status_words() {
  for (RankId rank{0}; rank.value() < config_.ep_size; rank = rank.next()) {
    struct {
      std::uint32_t failure, epoch, peer, unused;
      std::uint64_t seen, expected;
    } status{};
    static_assert(sizeof(status) == one_sided::StatusWord::kBytes);
    machine_.peek(window_.of(rank).at(workspace_.offsets().status),
                  {reinterpret_cast<std::byte*>(&status), sizeof(status)});
    if (status.failure == 0) continue;
    return bad_input(fmt::format(
        "rank {} gave up: {} in epoch {}, waiting for peer {}: flag {:#018x}, expected {:#018x}",
        rank.value(),
        status.failure == static_cast<std::uint32_t>(one_sided::Failure::kTimeOut)
            ? "time-out"
            : "the peer runs other sizes or another payload set",
        status.epoch, status.peer, status.seen, status.expected));
  }
  return Done{};
}

}  // namespace assay::verify
