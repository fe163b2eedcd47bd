// Copies, launches and waits of one device.
#include "verify/subject/cuda_worker.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "model/core/prng.hpp"

namespace assay::verify {

namespace {

std::uint64_t u64(std::int64_t value) { return static_cast<std::uint64_t>(value); }

}  // namespace

Status CudaWorker::wait(const char* phase) {
  return cuda::wait_for(seat_.stream, budget_, fmt::format("{} at rank {}", phase, first_rank_));
}

// Between kernels: a host that comes late.
void CudaWorker::pause() {
  if (options_.skew_us != 0)
    std::this_thread::sleep_for(
        std::chrono::microseconds(splitmix64(random_) % (options_.skew_us + 1)));
}

std::vector<cuda::LaunchedRank> CudaWorker::launched(const RoundPlan& plan) {
  std::vector<cuda::LaunchedRank> all;
  for (const RankId rank : ranks(plan))
    all.push_back(
        {rank, options_.delay_us == 0 ? 0 : splitmix64(random_) % (options_.delay_us * 1000u + 1)});
  return all;
}

Status CudaWorker::dispatch(const assay_round& round, const RoundPlan& plan) {
  cuda::DeviceScope scope(seat_.device);
  if (ranks(plan).empty()) return Done{};
  ASSAY_CHECK(write_inputs(round, plan));
  if (options_.replays != 0) ASSAY_CHECK(replay(round, plan));
  pause();
  if (!options_.graph) return launch_dispatch(round, plan);
  ASSAY_CHECK(dispatch_graph_.record(seat_.stream, [&] { return launch_dispatch(round, plan); }));
  return dispatch_graph_.launch(seat_.stream);
}

Status CudaWorker::write_inputs(const assay_round& round, const RoundPlan& plan) {
  std::uint64_t tokens = 0;
  for (const RankId rank : ranks(plan))
    tokens = std::max<std::uint64_t>(tokens, tokens_of(round, rank));
  const std::uint64_t ids_bytes = u64(plan_.config.top_k) * 4;
  std::uint64_t packed = ids_bytes * tokens + u64(plan.more.num_statistics) * 4;
  for (std::int32_t i = 0; i < round.num_payloads; ++i)
    packed += tokens * round.payloads[i].bytes_per_token;
  ASSAY_TRY(std::byte * staging, seat_.to_device.at_least(packed * u64(num_ranks_) + 1));
  const auto send = [&](const DeviceArea& to, std::uint64_t row, const auto& rows_of) -> Status {
    for (const RankId rank : ranks(plan))
      if (tokens_of(round, rank) != 0)
        std::memcpy(staging + index(rank) * tokens * row, rows_of(rank),
                    tokens_of(round, rank) * row);
    ASSAY_CHECK(copies_.in(to, staging, tokens * row));
    staging += tokens * row * u64(num_ranks_);
    return Done{};
  };
  const auto of = [](RankId rank) { return static_cast<std::size_t>(rank.value()); };
  ASSAY_CHECK(send(input_area(0), ids_bytes,
                   [&](RankId rank) -> const void* { return round.topk_ids[of(rank)]; }));
  for (std::size_t i = 0; i < plan.payload_from_at.size(); ++i)
    ASSAY_CHECK(send(input_area(payloads_at_ + plan.payload_from_at[i]),
                     round.payloads[i].bytes_per_token,
                     [&](RankId rank) { return round.payload_rows[i][of(rank)]; }));
  ASSAY_CHECK(write_statistics(plan, staging));
  return poison_written(plan);
}

// What a round before left in tables, lists and outputs must not pass for this round's.
Status CudaWorker::poison_written(const RoundPlan& plan) {
  const std::uint64_t table = u64(plan_.config.max_tokens_per_rank) * u64(plan_.config.top_k) * 4;
  const auto offsets = plan_.workspace.offsets();
  ASSAY_CHECK(copies_.fill(window_area(offsets.target_rank), kDevicePoison, table));
  ASSAY_CHECK(copies_.fill(window_area(offsets.target_slot), kDevicePoison, table));
  if (plan.more.list_offsets != nullptr) {
    ASSAY_CHECK(copies_.fill(input_area(offsets_at_), kDevicePoison, lists_bytes().offsets));
    ASSAY_CHECK(copies_.fill(input_area(entries_at_), kDevicePoison, lists_bytes().entries));
  }
  return copies_.fill({seat_.out.address(), out_pitch_}, kDevicePoison, out_pitch_);
}

Status CudaWorker::write_statistics(const RoundPlan& plan, std::byte* staging) {
  const std::uint64_t bytes = u64(plan.more.num_statistics) * 4;
  if (bytes == 0) return Done{};
  for (const RankId rank : ranks(plan))
    std::memcpy(staging + index(rank) * bytes,
                plan.more.statistics[static_cast<std::size_t>(rank.value())], bytes);
  return copies_.in(input_area(statistics_at_), staging, bytes);
}

// Whole rounds back to back without a host in between. Their outputs are not looked at: what is
// under test is the state that they leave. Receive buffers are poisoned between dispatch and
// combine, when no peer can write there (SPEC KER-2.5).
Status CudaWorker::replay(const assay_round& round, const RoundPlan& plan) {
  ASSAY_CHECK(round_graph_.record(seat_.stream, [&]() -> Status {
    ASSAY_CHECK(launch_dispatch(round, plan));
    ASSAY_CHECK(poison_received(round, plan));
    return launch_combine(round, plan);
  }));
  for (std::uint32_t i = 0; i < options_.replays; ++i) {
    ASSAY_CHECK(round_graph_.launch(seat_.stream));
    if (i % 256 == 255) ASSAY_CHECK(wait("graph replays"));
  }
  return poison_written(plan);
}

Status CudaWorker::poison_received(const assay_round& round, const RoundPlan& plan) {
  const std::uint64_t rows = u64(plan_.config.ep_size) * u64(round.max_tokens_per_rank);
  for (std::size_t i = 0; i < plan.payload_at.size(); ++i)
    ASSAY_CHECK(copies_.fill(window_area(plan.payload_at[i]), kDevicePoison,
                             rows * round.payloads[i].bytes_per_token));
  if (plan.more.num_statistics == 0) return Done{};
  return copies_.fill(window_area(plan_.workspace.offsets().statistics), kDevicePoison,
                      u64(plan_.config.ep_size) * u64(plan.more.num_statistics) * 4);
}

Status CudaWorker::launch_dispatch(const assay_round& round, const RoundPlan& plan) {
  if (plan.protocol == one_sided::Protocol::kSentinel) {
    std::vector<one_sided::SentinelDispatchParams> params;
    for (const RankId rank : ranks(plan))
      params.push_back(sentinel_dispatch_params(plan_, plan, round, rank, memory_of(rank)));
    ASSAY_CHECK(group_.kernels().dispatch(launched(plan), params, launch_));
    return launch_lists(plan);
  }
  if (plan_.ordered_slots) {
    std::vector<one_sided::OrderSlotsParams> order;
    for (const RankId rank : ranks(plan))
      order.push_back(order_slots_params(plan_, plan, round, rank, memory_of(rank)));
    ASSAY_CHECK(group_.kernels().order_slots(launched(plan), order, launch_));
  }
  std::vector<one_sided::DispatchParams> params;
  for (const RankId rank : ranks(plan))
    params.push_back(dispatch_params(plan_, plan, round, rank, memory_of(rank)));
  ASSAY_CHECK(group_.kernels().dispatch(launched(plan), params, launch_));
  if (plan.ids_payload < 0) return Done{};
  std::vector<one_sided::SanitizeParams> sanitize;
  for (const RankId rank : ranks(plan))
    sanitize.push_back(sanitize_params(plan_, plan, memory_of(rank)));
  ASSAY_CHECK(group_.kernels().sanitize(launched(plan), sanitize, launch_));
  return launch_lists(plan);
}

Status CudaWorker::launch_lists(const RoundPlan& plan) {
  if (plan.more.list_offsets == nullptr) return Done{};
  std::vector<one_sided::ExpertListParams> params;
  for (const RankId rank : ranks(plan))
    params.push_back(expert_list_params(plan_, plan, rank, memory_of(rank)));
  return group_.kernels().list_experts(launched(plan), params, launch_);
}

Status CudaWorker::launch_combine(const assay_round& round, const RoundPlan& plan) {
  if (plan.protocol == one_sided::Protocol::kSentinel) {
    std::vector<one_sided::SentinelCombineParams> params;
    for (const RankId rank : ranks(plan))
      params.push_back(sentinel_combine_params(plan_, plan, round, rank, memory_of(rank)));
    return group_.kernels().combine(launched(plan), params, launch_);
  }
  if (plan_.pulled == one_sided::RowFormat::kE4m3) {
    std::vector<one_sided::StageParams> stage;
    for (const RankId rank : ranks(plan))
      stage.push_back(stage_params(plan_, plan, memory_of(rank)));
    ASSAY_CHECK(group_.kernels().stage(launched(plan), stage, launch_));
  }
  std::vector<one_sided::CombineParams> params;
  std::uint32_t groups = 0;
  for (const RankId rank : ranks(plan)) {
    params.push_back(combine_params(plan_, plan, round, rank, memory_of(rank)));
    groups += groups_of(params.back());
  }
  // A suite's rows are too short for the launcher to share them (SPEC KER-2.7, CUD-3.3).
  cuda::LaunchConfig launch = launch_;
  launch.parts_log2 =
      static_cast<std::uint32_t>(splitmix64(random_) % (most_parts_log2(groups) + 1));
  return group_.kernels().combine(launched(plan), params, launch);
}

// Copies what arrived and poisons it behind itself: between a rank's dispatch and its combine no
// peer may write there (SPEC KER-2.5). Rows that are still poison were not written.
Status CudaWorker::receive(const assay_round& round, const RoundPlan& plan) {
  cuda::DeviceScope scope(seat_.device);
  if (ranks(plan).empty()) return Done{};
  ASSAY_CHECK(wait("dispatch"));
  const auto offsets = plan_.workspace.offsets();
  const std::uint64_t ep = u64(plan_.config.ep_size);
  const std::uint64_t table = u64(round.max_tokens_per_rank) * u64(plan_.config.top_k) * 4;
  const std::uint64_t here = u64(num_ranks_);
  ASSAY_TRY(
      std::byte* const staging,
      seat_.from_device.at_least(here * (ep * 4 + 2 * table + one_sided::StatusWord::kBytes)));
  std::byte* const counters = staging;
  std::byte* const target_rank = counters + here * ep * 4;
  std::byte* const target_slot = target_rank + here * table;
  std::byte* const status = target_slot + here * table;
  ASSAY_CHECK(copies_.out(counters, window_area(plan.recv_counters_at), ep * 4));
  ASSAY_CHECK(copies_.out(target_rank, window_area(offsets.target_rank), table));
  ASSAY_CHECK(copies_.out(target_slot, window_area(offsets.target_slot), table));
  ASSAY_CHECK(copies_.out(status, window_area(offsets.status), one_sided::StatusWord::kBytes));
  ASSAY_CHECK(wait("copying what arrived"));
  for (const RankId rank : ranks(plan)) {
    const auto r = static_cast<std::size_t>(rank.value());
    const std::uint64_t picks = tokens_of(round, rank) * u64(plan_.config.top_k) * 4;
    ASSAY_CHECK(status_of(rank, status + index(rank) * one_sided::StatusWord::kBytes));
    std::memcpy(round.recv_counters[r], counters + index(rank) * ep * 4, ep * 4);
    if (picks == 0) continue;
    std::memcpy(round.target_rank[r], target_rank + index(rank) * table, picks);
    std::memcpy(round.target_slot[r], target_slot + index(rank) * table, picks);
  }
  // Ids first: they say which rows hold a token.
  const auto ids = static_cast<std::size_t>(std::max(plan.ids_payload, 0));
  ASSAY_CHECK(read_payload(round, plan, ids));
  for (std::size_t i = 0; i < plan.payload_at.size(); ++i)
    if (i != ids) ASSAY_CHECK(read_payload(round, plan, i));
  ASSAY_CHECK(read_more(round, plan));
  return poison_received(round, plan);
}

// Statistics and slot lists.
Status CudaWorker::read_more(const assay_round& round, const RoundPlan& plan) {
  const std::uint64_t bytes = u64(plan_.config.ep_size) * u64(plan.more.num_statistics) * 4;
  if (bytes > 0) {
    ASSAY_TRY(std::byte* const staging, seat_.from_device.at_least(u64(num_ranks_) * bytes));
    ASSAY_CHECK(copies_.out(staging, window_area(plan_.workspace.offsets().statistics), bytes));
    ASSAY_CHECK(wait("copying statistics"));
    for (const RankId rank : ranks(plan))
      std::memcpy(plan.more.gathered_statistics[static_cast<std::size_t>(rank.value())],
                  staging + index(rank) * bytes, bytes);
  }
  return plan.more.list_offsets == nullptr ? Status(Done{}) : read_lists(round, plan);
}

// Offsets first: they say how many entries there are. More than fit are told by the check of the
// lists, not copied.
Status CudaWorker::read_lists(const assay_round& round, const RoundPlan& plan) {
  const std::uint64_t pitch = lists_bytes().offsets, here = u64(num_ranks_);
  ASSAY_TRY(std::byte * staging, seat_.from_device.at_least(here * pitch));
  ASSAY_CHECK(copies_.out(staging, input_area(offsets_at_), pitch));
  ASSAY_CHECK(wait("copying offsets of lists"));
  std::vector<std::uint64_t> entries(here, 0);
  for (const RankId rank : ranks(plan)) {
    const std::uint64_t experts =
        expert_list_params(plan_, plan, rank, memory_of(rank)).num_local_experts;
    const auto r = static_cast<std::size_t>(rank.value());
    std::memcpy(plan.more.list_offsets[r], staging + index(rank) * pitch, (experts + 1) * 4);
    entries[index(rank)] =
        std::min<std::uint64_t>(static_cast<std::uint32_t>(plan.more.list_offsets[r][experts]),
                                plan_.list_entries(round.max_tokens_per_rank));
  }
  const std::uint64_t most = 8 * *std::max_element(entries.begin(), entries.end());
  if (most == 0) return Done{};
  ASSAY_TRY(staging, seat_.from_device.at_least(here * most));
  ASSAY_CHECK(copies_.out(staging, input_area(entries_at_), most));
  ASSAY_CHECK(wait("copying slot lists"));
  for (const RankId rank : ranks(plan))
    std::memcpy(plan.more.list_entries[static_cast<std::size_t>(rank.value())],
                staging + index(rank) * most, 8 * entries[index(rank)]);
  return Done{};
}

Status CudaWorker::read_payload(const assay_round& round, const RoundPlan& plan, std::size_t i) {
  const std::uint64_t ep = u64(plan_.config.ep_size), max = u64(round.max_tokens_per_rank);
  const std::uint64_t row_bytes = round.payloads[i].bytes_per_token;
  const std::uint64_t rows = slots_copied(round, row_bytes);
  const std::uint64_t block = rows * row_bytes;
  ASSAY_TRY(std::byte* const staging, seat_.from_device.at_least(u64(num_ranks_) * ep * block + 1));
  if (rows == max) {  // [rank here][source]
    ASSAY_CHECK(copies_.out(staging, window_area(plan.payload_at[i]), ep * block));
  } else {  // [source][rank here]
    for (std::uint64_t source = 0; source < ep; ++source)
      ASSAY_CHECK(copies_.out(staging + source * block * u64(num_ranks_),
                              window_area(plan.payload_at[i] + source * max * row_bytes), block));
  }
  ASSAY_CHECK(wait("copying received rows"));
  for (const RankId rank : ranks(plan)) {
    auto* to = static_cast<std::byte*>(round.recv[i][static_cast<std::size_t>(rank.value())]);
    for (std::uint64_t source = 0; source < ep; ++source) {
      const std::byte* from =
          staging + block * (rows == max ? index(rank) * ep + source
                                         : source * u64(num_ranks_) + index(rank));
      // A short row may equal the poison: rows that hold a token are taken as they are.
      for (std::uint64_t row = 0; row < rows; ++row)
        if (!is_device_poison({from + row * row_bytes, row_bytes}) ||
            holds_token(round, plan, rank, source, row))
          std::memcpy(to + (source * max + row) * row_bytes, from + row * row_bytes, row_bytes);
    }
  }
  return Done{};
}

Status CudaWorker::combine(const assay_round& round, const RoundPlan& plan) {
  cuda::DeviceScope scope(seat_.device);
  if (ranks(plan).empty()) return Done{};
  ASSAY_CHECK(write_expert_rows(round, plan));
  pause();
  if (options_.graph) {
    ASSAY_CHECK(combine_graph_.record(seat_.stream, [&] { return launch_combine(round, plan); }));
    ASSAY_CHECK(combine_graph_.launch(seat_.stream));
  } else {
    ASSAY_CHECK(launch_combine(round, plan));
  }
  ASSAY_CHECK(wait("combine"));
  const std::uint64_t row_bytes = plan_.out_row_bytes();
  const std::uint64_t bytes = 2 * kCanaryBytes + u64(round.max_tokens_per_rank) * row_bytes;
  const std::uint64_t here = u64(num_ranks_);
  ASSAY_TRY(std::byte* const staging,
            seat_.from_device.at_least(here * (bytes + one_sided::StatusWord::kBytes)));
  std::byte* const status = staging + here * bytes;
  ASSAY_CHECK(copies_.out(staging, {seat_.out.address(), out_pitch_}, bytes));
  ASSAY_CHECK(copies_.out(status, window_area(plan_.workspace.offsets().status),
                          one_sided::StatusWord::kBytes));
  ASSAY_CHECK(wait("copying combined rows"));
  for (const RankId rank : ranks(plan)) {
    const std::byte* out = staging + index(rank) * bytes;
    ASSAY_CHECK(status_of(rank, status + index(rank) * one_sided::StatusWord::kBytes));
    if (tokens_of(round, rank) != 0)
      std::memcpy(round.out[static_cast<std::size_t>(rank.value())], out + kCanaryBytes,
                  tokens_of(round, rank) * row_bytes);
    ASSAY_CHECK(check_canaries(rank.value(), {out, bytes}, tokens_of(round, rank) * row_bytes,
                               tokens_of(round, rank)));
  }
  return Done{};
}

// Rows that hold no token arrive as NaN, and go to the device like the others.
Status CudaWorker::write_expert_rows(const assay_round& round, const RoundPlan& plan) {
  const std::uint64_t ep = u64(plan_.config.ep_size), max = u64(round.max_tokens_per_rank);
  const std::uint64_t rows = slots_copied(round, plan_.row_bytes());
  const std::uint64_t block = rows * plan_.row_bytes();
  ASSAY_TRY(std::byte* const staging, seat_.to_device.at_least(u64(num_ranks_) * ep * block + 1));
  for (std::uint64_t source = 0; source < ep; ++source) {
    std::byte* const packed = staging + source * block * u64(num_ranks_);
    for (const RankId rank : ranks(plan))
      std::memcpy(
          packed + index(rank) * block,
          static_cast<const std::byte*>(round.expert_out[static_cast<std::size_t>(rank.value())]) +
              source * max * plan_.row_bytes(),
          block);
    ASSAY_CHECK(
        copies_.in(window_area(plan_.workspace.rows_offset() + source * max * plan_.row_bytes()),
                   packed, block));
  }
  return Done{};
}

}  // namespace assay::verify
