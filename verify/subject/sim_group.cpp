// A round in the simulated machine, rank by rank: which stream operations it is and how bytes get
// in and out. Decides nothing about the kernels it enqueues.
#include "verify/subject/sim_group.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace assay::verify {

namespace {

// Arming touches every page of the slots: what a machine for tests can spare.
constexpr std::uint64_t kArmedBytesMax = std::uint64_t{1} << 30;
// Of kernels that share their work out between any number of groups.
constexpr std::uint32_t kGroupsThatShare = 2;

std::uint64_t u64(std::int64_t value) { return static_cast<std::uint64_t>(value); }

template <class T>
std::span<const std::byte> bytes_of(const T* first, std::uint64_t count) {
  return {reinterpret_cast<const std::byte*>(first), count * sizeof(T)};
}

}  // namespace

Expected<std::unique_ptr<SimGroup>> SimGroup::make(const SimKernels& kernels,
                                                   const assay_group_config& config,
                                                   const SimOptions& options) {
  if (config.first_rank != 0 || config.num_local_ranks != config.ep_size)
    return unsupported(
        fmt::format("the simulated subject holds all {} ranks of a group in one "
                    "process; {} were asked for from rank {}",
                    config.ep_size, config.num_local_ranks, config.first_rank));
  ASSAY_TRY(
      GroupPlan plan,
      plan_group(config, options.protocol.sentinel_max_tokens_of(config.max_tokens_per_rank)));
  plan.ordered_slots = options.ordered_slots;
  std::uint64_t armed_bytes = 0;
  for (const one_sided::WindowRange& range : plan.workspace.armed_ranges())
    armed_bytes += range.bytes;
  if (armed_bytes > kArmedBytesMax)
    return unsupported(
        fmt::format("Sentinel would arm {} bytes per rank; the simulated subject arms "
                    "at most {}",
                    armed_bytes, kArmedBytesMax));
  if (kernels.dispatch(config.top_k) == nullptr ||
      kernels.sentinel_dispatch(config.top_k) == nullptr)
    return unsupported(fmt::format("this build has no dispatch kernel for top_k {}", config.top_k));
  if (kernels.combine(plan.sum, plan.pulled, plan.out, config.top_k) == nullptr ||
      kernels.sentinel_combine(plan.sum, plan.pulled, plan.out, config.top_k) == nullptr)
    return unsupported(fmt::format("this build has no combine kernel for top_k {} with profile {}",
                                   config.top_k, config.profile));
  return std::unique_ptr<SimGroup>(new SimGroup(kernels, std::move(plan), options));
}

SimGroup::SimGroup(const SimKernels& kernels, GroupPlan plan, const SimOptions& options)
    : kernels_(kernels), plan_(std::move(plan)), options_(options), machine_([&] {
        machine::MachineConfig machine;
        machine.num_ranks = plan_.config.ep_size;
        machine.group_size = options.group_size;
        machine.resident_ctas = options.resident_ctas;
        machine.seed = plan_.config.seed;
        machine.longest_run = options.longest_run;
        machine.timeouts_fire = options.timeouts_fire;
        return machine;
      }()) {
  const one_sided::Workspace& workspace = plan_.workspace;
  const Window window =
      machine_.allocate_window("workspace", workspace.window_bytes(),
                               workspace.layout().alignment_bytes(), machine::Fill::kPoison);
  const std::uint64_t tokens = u64(plan_.config.max_tokens_per_rank);
  for (RankId rank{0}; rank.value() < plan_.config.ep_size; rank = rank.next()) {
    const auto own = [&](const char* name, std::uint64_t bytes, std::uint64_t alignment) {
      return machine_.allocate(rank, name, bytes, alignment, machine::Fill::kPoison);
    };
    memory_.push_back({window, own("topk_ids", tokens * u64(plan_.config.top_k) * 4, 4),
                       own("payload rows", plan_.payload_bytes(), 16),
                       own("combined rows", tokens * plan_.out_row_bytes(), 16)});
    RankMemory& memory = memory_.back();
    if (plan_.config.num_statistics > 0)
      memory.statistics = own("statistics", u64(plan_.config.num_statistics) * 4, 4);
    if (plan_.config.expert_lists == 0) continue;
    memory.list_offsets = own("offsets of lists", (plan_.most_local_experts() + 1) * 4, 4);
    memory.list_entries =
        own("slot lists", plan_.list_entries(plan_.config.max_tokens_per_rank) * 8, 8);
  }
  initialise();
}

// Phases start at the first epoch asked for. The machine does not run meanwhile, which is the
// barrier.
void SimGroup::initialise() {
  const one_sided::Workspace& workspace = plan_.workspace;
  for (RankId rank{0}; rank.value() < plan_.config.ep_size; rank = rank.next()) {
    const Address own = memory_of(rank).window.of(rank);
    for (const one_sided::WindowRange& range : workspace.zeroed_ranges())
      machine_.fill(own.at(range.offset_bytes), range.bytes, std::byte{0});
    for (const one_sided::WindowRange& range : workspace.armed_ranges())
      machine_.fill(own.at(range.offset_bytes), range.bytes, std::byte{0xFF});
    for (const std::uint64_t phase :
         {workspace.offsets().phase, workspace.offsets().sentinel.dispatch_phase})
      machine_.write(own.at(phase), bytes_of(&options_.first_epoch, 1));
    for (const auto& cell : workspace.flags_after(options_.first_epoch))
      machine_.write(own.at(cell.offset_bytes), bytes_of(&cell.flag, 1));
  }
}

Status SimGroup::run(std::span<const assay_round> rounds, assay_experts experts, void* context) {
  late_error_ = Done{};
  ASSAY_TRY(const std::vector<RoundPlan> plans, plan_rounds(plan_, rounds));
  for (std::size_t i = 0; i < rounds.size(); ++i)
    for (RankId rank{0}; rank.value() < plan_.config.ep_size; rank = rank.next())
      if (plans[i].group.alive.has(static_cast<std::uint32_t>(rank.value())))
        enqueue_rank(rounds[i], plans[i], static_cast<std::int32_t>(i), rank, experts, context);
  const machine::RunResult result = machine_.run();
  // A status word explains a failure better than what it led to.
  ASSAY_CHECK(check_status_words());
  if (!result.ok())
    return bad_input(fmt::format("{}: {}", machine::run_status_name(result.status), result.report));
  return late_error_;
}

// One round of one rank as stream operations: inputs, the protocol's kernels around the experts,
// outputs. `round` and `plan` live until run ends.
void SimGroup::enqueue_rank(const assay_round& round, const RoundPlan& plan, std::int32_t index,
                            RankId rank, assay_experts experts, void* context) {
  using machine::kDefaultStream;
  machine_.enqueue_host(rank, kDefaultStream, "inputs",
                        [this, &round, &plan, rank] { write_inputs(round, plan, rank); });
  const auto call_experts = [this, &round, &plan, index, rank, experts, context] {
    read_received(round, plan, rank);
    read_more(plan, rank);
    experts(context, index, rank.value());
    write_expert_rows(round, plan, rank);
  };
  if (plan.protocol == one_sided::Protocol::kSentinel)
    enqueue_sentinel(round, plan, rank, call_experts);
  else
    enqueue_fence(round, plan, index, rank, call_experts);
  machine_.enqueue_host(rank, kDefaultStream, "outputs", [this, &round, rank] {
    note(machine_.read(memory_of(rank).out, {static_cast<std::byte*>(round.out[rank.value()]),
                                             tokens_of(round, rank) * plan_.out_row_bytes()}),
         "combine's output");
  });
}

template <class Body, class Params>
void SimGroup::enqueue(RankId rank, const char* name, std::uint32_t groups, Body body,
                       const Params& params) {
  machine_.enqueue(
      rank, machine::kDefaultStream,
      machine::Kernel{name, groups, [body, params](machine::SimOps& ops) { body(ops, params); }});
}

void SimGroup::enqueue_expert_lists(const RoundPlan& plan, RankId rank) {
  if (plan.more.list_offsets == nullptr) return;
  enqueue(rank, "slot lists", kGroupsThatShare, kernels_.expert_lists,
          expert_list_params(plan_, plan, rank, memory_of(rank)));
}

// [Order slots], dispatch, sanitize, [slot lists], experts, stage, combine.
void SimGroup::enqueue_fence(const assay_round& round, const RoundPlan& plan, std::int32_t index,
                             RankId rank, const std::function<void()>& experts) {
  const RankMemory& memory = memory_of(rank);
  const std::uint32_t groups = std::max(tokens_of(round, rank), 1u);
  if (plan_.ordered_slots)
    enqueue(rank, "order slots", kGroupsThatShare, kernels_.order_slots,
            order_slots_params(plan_, plan, round, rank, memory));
  enqueue(rank, "dispatch", groups, kernels_.dispatch(plan_.config.top_k),
          dispatch_params(plan_, plan, round, rank, memory));
  if (plan.ids_payload >= 0)
    enqueue(rank, "sanitize", 1, kernels_.sanitize, sanitize_params(plan_, plan, memory));
  enqueue_expert_lists(plan, rank);
  machine_.enqueue_host(rank, machine::kDefaultStream, "experts", experts);
  if (plan_.pulled == one_sided::RowFormat::kE4m3)
    enqueue(rank, "stage", kGroupsThatShare, kernels_.stage(plan_.rows),
            stage_params(plan_, plan, memory));
  one_sided::CombineParams combine = combine_params(plan_, plan, round, rank, memory);
  combine.parts_log2 = static_cast<std::uint32_t>(index + rank.value()) % 2;  // SPEC KER-2.7
  enqueue(rank, "combine", groups_of(combine),
          kernels_.combine(plan_.sum, plan_.pulled, plan_.out, plan_.config.top_k), combine);
}

// Dispatch, [slot lists], experts, combine.
void SimGroup::enqueue_sentinel(const assay_round& round, const RoundPlan& plan, RankId rank,
                                const std::function<void()>& experts) {
  const RankMemory& memory = memory_of(rank);
  const std::uint32_t groups = sentinel_groups(plan_, tokens_of(round, rank));
  const std::uint32_t waiters = std::min(groups, options_.resident_ctas);
  enqueue(rank, "dispatch", groups, kernels_.sentinel_dispatch(plan_.config.top_k),
          sentinel_dispatch_params(plan_, plan, round, rank, memory, waiters));
  enqueue_expert_lists(plan, rank);
  machine_.enqueue_host(rank, machine::kDefaultStream, "experts", experts);
  enqueue(rank, "combine", groups,
          kernels_.sentinel_combine(plan_.sum, plan_.pulled, plan_.out, plan_.config.top_k),
          sentinel_combine_params(plan_, plan, round, rank, memory, waiters));
}

void SimGroup::write_inputs(const assay_round& round, const RoundPlan& plan, RankId rank) {
  const auto r = static_cast<std::size_t>(rank.value());
  const RankMemory& memory = memory_of(rank);
  const std::uint64_t tokens = tokens_of(round, rank);
  // What the round before left in tables and outputs must not pass for this round's.
  const std::uint64_t capacity = u64(plan_.config.max_tokens_per_rank);
  const std::uint64_t top_k = u64(plan_.config.top_k);
  const one_sided::WorkspaceOffsets at = plan_.workspace.offsets();
  machine_.forget(memory.window.of(rank).at(at.target_rank), capacity * top_k * 4);
  machine_.forget(memory.window.of(rank).at(at.target_slot), capacity * top_k * 4);
  machine_.forget(memory.out, capacity * plan_.out_row_bytes());
  if (plan.more.num_statistics > 0)
    machine_.write(memory.statistics,
                   bytes_of(plan.more.statistics[r], u64(plan.more.num_statistics)));
  if (tokens == 0) return;
  machine_.write(memory.topk_ids, bytes_of(round.topk_ids[r], tokens * top_k));
  for (std::size_t i = 0; i < plan.payload_from_at.size(); ++i)
    machine_.write(memory.payload_rows.at(plan.payload_from_at[i]),
                   bytes_of(static_cast<const std::byte*>(round.payload_rows[i][r]),
                            tokens * round.payloads[i].bytes_per_token));
}

// Copies what arrived, then poisons it: between this rank's dispatch and its combine no peer may
// write here (SPEC KER-2.5), and a row of an older round must not look like one of the next. Rows
// that nobody wrote since then stay as the caller poisoned them.
void SimGroup::read_received(const assay_round& round, const RoundPlan& plan, RankId rank) {
  const auto r = static_cast<std::size_t>(rank.value());
  const Address own = memory_of(rank).window.of(rank);
  const std::uint64_t ep = u64(plan_.config.ep_size);
  const std::uint64_t picks = std::uint64_t{tokens_of(round, rank)} * u64(plan_.config.top_k);
  const one_sided::WorkspaceOffsets at = plan_.workspace.offsets();
  const auto read_words = [&](std::uint64_t offset, std::int32_t* to, std::uint64_t count,
                              const char* what) {
    note(machine_.read(own.at(offset),
                       {reinterpret_cast<std::byte*>(to), count * sizeof(std::int32_t)}),
         what);
  };
  read_words(plan.recv_counters_at, round.recv_counters[r], ep, "recv_counters");
  read_words(at.target_rank, round.target_rank[r], picks, "target_rank");
  read_words(at.target_slot, round.target_slot[r], picks, "target_slot");

  const std::uint64_t rows = ep * u64(round.max_tokens_per_rank);
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

// Statistics and slot lists, poisoned behind the reader like received rows.
void SimGroup::read_more(const RoundPlan& plan, RankId rank) {
  const auto r = static_cast<std::size_t>(rank.value());
  const RankMemory& memory = memory_of(rank);
  const auto take = [&](Address from, std::int32_t* to, std::uint64_t bytes, const char* what) {
    note(machine_.read(from, {reinterpret_cast<std::byte*>(to), bytes}), what);
    machine_.forget(from, bytes);
  };
  if (plan.more.num_statistics > 0)
    take(memory.window.of(rank).at(plan_.workspace.offsets().statistics),
         plan.more.gathered_statistics[r],
         u64(plan_.config.ep_size) * u64(plan.more.num_statistics) * 4, "statistics");
  if (plan.more.list_offsets == nullptr) return;
  const std::uint64_t experts = expert_list_params(plan_, plan, rank, memory).num_local_experts;
  take(memory.list_offsets, plan.more.list_offsets[r], (experts + 1) * 4, "offsets of lists");
  const auto entries = static_cast<std::uint32_t>(plan.more.list_offsets[r][experts]);
  if (entries <= plan_.list_entries(static_cast<std::int32_t>(plan.group.max_tokens_per_rank)))
    take(memory.list_entries, plan.more.list_entries[r], std::uint64_t{entries} * 8, "slot lists");
}

// Rows that hold a token; the others are not for anybody to read and stay poison.
void SimGroup::write_expert_rows(const assay_round& round, const RoundPlan& plan, RankId rank) {
  const auto r = static_cast<std::size_t>(rank.value());
  const std::uint64_t ep = u64(plan_.config.ep_size);
  const std::uint64_t max = u64(round.max_tokens_per_rank);
  const std::uint64_t row_bytes = plan_.row_bytes();
  const auto* rows = static_cast<const std::byte*>(round.expert_out[r]);
  const Address own = memory_of(rank).window.of(rank).at(plan_.workspace.rows_offset());
  machine_.forget(own, ep * max * row_bytes);
  for (std::uint64_t source = 0; source < ep; ++source) {
    std::uint64_t slot = 0;
    while (slot < max) {  // blocks of neighbours that hold tokens: one write for most
      std::uint64_t end = slot;
      while (end < max && holds_token(round, plan, rank, source, end)) ++end;
      const std::uint64_t offset = (source * max + slot) * row_bytes;
      if (end > slot) machine_.write(own.at(offset), {rows + offset, (end - slot) * row_bytes});
      slot = end + 1;
    }
  }
}

// By the kernels' own account: what is wrong with it is the checks' business.
bool SimGroup::holds_token(const assay_round& round, const RoundPlan& plan, RankId rank,
                           std::uint64_t source, std::uint64_t slot) {
  const auto count = static_cast<std::uint32_t>(
      round.recv_counters[static_cast<std::size_t>(rank.value())][source]);
  if (plan.protocol == one_sided::Protocol::kFence)
    return slot < count && count <= static_cast<std::uint32_t>(round.max_tokens_per_rank);
  std::uint32_t pick = 0;
  const std::uint64_t row = source * u64(round.max_tokens_per_rank) + slot;
  const Address at = memory_of(rank).window.of(rank).at(plan_.workspace.offsets().sentinel.picks +
                                                        row * sizeof pick);
  return machine_.peek(at, {reinterpret_cast<std::byte*>(&pick), sizeof pick}) && pick != 0;
}

void SimGroup::note(const Status& status, const char* what) {
  if (!status && late_error_) late_error_ = status.error().within(what);
}

Status SimGroup::check_status_words() {
  for (RankId rank{0}; rank.value() < plan_.config.ep_size; rank = rank.next()) {
    std::byte status[one_sided::StatusWord::kBytes];
    machine_.peek(memory_of(rank).window.of(rank).at(plan_.workspace.offsets().status), status);
    // Particulars may be unwritten: the first word alone says whether there is a failure.
    ASSAY_CHECK(status_of(rank, status));
  }
  return Done{};
}

}  // namespace assay::verify
