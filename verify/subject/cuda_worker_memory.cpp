// What a device holds for a group: sizes, poison, areas of each rank, and who looks at what is
// left.
#include "verify/subject/cuda_worker.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace assay::verify {

namespace {

using cuda::pointer;

std::uint64_t u64(std::int64_t value) { return static_cast<std::uint64_t>(value); }

std::uint64_t round_up(std::uint64_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

CudaWorker::CudaWorker(const GroupPlan& plan, const CudaOptions& options,
                       const cuda::OneSidedGroup& group, CudaSeat& seat, std::int32_t first_rank,
                       std::int32_t num_ranks)
    : plan_(plan),
      options_(options),
      group_(group),
      seat_(seat),
      first_rank_(first_rank),
      num_ranks_(num_ranks),
      window_(group.windows()[static_cast<std::size_t>(first_rank)]),
      copies_{seat.stream, num_ranks},
      random_(plan.config.seed + u64(first_rank) * 0x9E3779B97F4A7C15u) {
  launch_.threads = options.threads;
  launch_.overlaps = options.overlap;
  launch_.timeout_ns = std::uint64_t{options.timeout_ms} * 1'000'000;
  launch_.stream = seat.stream.stream();
  // A round waits at most once per phase before all its kernels give up, its replays not at all.
  budget_ = std::chrono::milliseconds(3 * std::uint64_t{options.timeout_ms} + 10'000);
}

Status CudaWorker::prepare() {
  cuda::DeviceScope scope(seat_.device);
  const std::uint64_t tokens = u64(plan_.config.max_tokens_per_rank);
  payloads_at_ = round_up(tokens * u64(plan_.config.top_k) * 4);
  statistics_at_ = payloads_at_ + round_up(plan_.payload_bytes());
  offsets_at_ = statistics_at_ + round_up(u64(plan_.config.num_statistics) * 4);
  entries_at_ = offsets_at_ + round_up(lists_bytes().offsets);
  input_pitch_ = entries_at_ + round_up(lists_bytes().entries);
  out_pitch_ = round_up(2 * kCanaryBytes + tokens * plan_.out_row_bytes());
  ASSAY_CHECK(CudaSeat::grow(seat_.inputs, input_pitch_ * u64(num_ranks_), "inputs"));
  ASSAY_CHECK(CudaSeat::grow(seat_.out, out_pitch_ * u64(num_ranks_), "combined rows"));
  // Everything that OneSidedGroup::make did not set.
  const std::uint64_t tables = plan_.workspace.layout().offset_bytes("recv_counters");
  ASSAY_CHECK(
      copies_.fill(window_area(tables), kDevicePoison, plan_.workspace.window_bytes() - tables));
  ASSAY_CHECK(copies_.fill({seat_.out.address(), out_pitch_}, kDevicePoison, out_pitch_));
  return wait("preparation");
}

Status CudaWorker::start() {
  if (options_.first_epoch == 0) return Done{};
  cuda::DeviceScope scope(seat_.device);
  const auto offsets = plan_.workspace.offsets();
  for (std::int32_t rank = first_rank_; rank < first_rank_ + num_ranks_; ++rank) {
    const Address own = window_.of(RankId(rank));
    for (const std::uint64_t phase : {offsets.phase, offsets.sentinel.dispatch_phase})
      ASSAY_CHECK(cuda::copy_to_device(pointer(own.at(phase)), &options_.first_epoch, 4,
                                       "writing the first epoch"));
    for (const auto& cell : plan_.workspace.flags_after(options_.first_epoch))
      ASSAY_CHECK(cuda::copy_to_device(pointer(own.at(cell.offset_bytes)), &cell.flag,
                                       sizeof cell.flag, "writing flags"));
  }
  return Done{};
}

// The largest of what dispatch, receive and combine stage for any of the rounds.
CudaWorker::Staging CudaWorker::staging_of(std::span<const assay_round> rounds) const {
  std::uint64_t in = 0, out = 0;
  const std::uint64_t ep = u64(plan_.config.ep_size), here = u64(num_ranks_);
  const std::uint64_t statistics = u64(plan_.config.num_statistics) * 4;
  out = std::max({ep * statistics, lists_bytes().offsets, lists_bytes().entries});
  for (const assay_round& round : rounds) {
    const std::uint64_t max = u64(round.max_tokens_per_rank), picks = max * u64(plan_.config.top_k);
    std::uint64_t tokens = 0;
    for (std::int32_t rank = 0; rank < plan_.config.ep_size; ++rank)
      tokens = std::max<std::uint64_t>(tokens, tokens_of(round, RankId(rank)));
    std::uint64_t rows = 4 * tokens * u64(plan_.config.top_k) + statistics;
    for (std::int32_t i = 0; i < round.num_payloads; ++i) {
      const std::uint64_t row = round.payloads[i].bytes_per_token;
      rows += tokens * row;
      out = std::max(out, ep * slots_copied(round, row) * row);
    }
    in = std::max({in, rows, ep * slots_copied(round, plan_.row_bytes()) * plan_.row_bytes()});
    out = std::max({out, ep * 4 + 8 * picks, 2 * kCanaryBytes + max * plan_.out_row_bytes()});
  }
  return {here * in + 1, here * (out + one_sided::StatusWord::kBytes) + 1};
}

bool CudaWorker::has_reserved(std::span<const assay_round> rounds) const {
  const Staging needed = staging_of(rounds);
  return seat_.to_device.bytes() >= needed.in && seat_.from_device.bytes() >= needed.out;
}

Status CudaWorker::reserve(std::span<const assay_round> rounds) {
  const Staging needed = staging_of(rounds);
  cuda::DeviceScope scope(seat_.device);
  ASSAY_CHECK(seat_.to_device.at_least(needed.in));
  ASSAY_CHECK(seat_.from_device.at_least(needed.out));
  return Done{};
}

CudaWorker::ListsBytes CudaWorker::lists_bytes() const {
  if (plan_.config.expert_lists == 0) return {};
  return {(plan_.most_local_experts() + std::uint64_t{1}) * 4,
          plan_.list_entries(plan_.config.max_tokens_per_rank) * 8};
}

std::vector<RankId> CudaWorker::ranks(const RoundPlan& plan) const {
  std::vector<RankId> living;
  for (std::int32_t rank = first_rank_; rank < first_rank_ + num_ranks_; ++rank)
    if (plan.group.alive.has(static_cast<std::uint32_t>(rank))) living.emplace_back(rank);
  return living;
}

std::size_t CudaWorker::index(RankId rank) const {
  return static_cast<std::size_t>(rank.value() - first_rank_);
}

DeviceArea CudaWorker::window_area(std::uint64_t offset) const {
  return {window_.of(RankId(first_rank_)).at(offset), window_.stride_bytes};
}

DeviceArea CudaWorker::out_area() const {
  return {seat_.out.address().at(kCanaryBytes), out_pitch_};
}

Address CudaWorker::at(const DeviceArea& area, RankId rank) const {
  return area.first.at(area.pitch * index(rank));
}

RankMemory CudaWorker::memory_of(RankId rank) const {
  return {window_,
          at(input_area(0), rank),
          at(input_area(payloads_at_), rank),
          at(out_area(), rank),
          at(input_area(statistics_at_), rank),
          at(input_area(offsets_at_), rank),
          at(input_area(entries_at_), rank)};
}

// Of all its ranks' buffers together.
std::uint64_t CudaWorker::slots_copied(const assay_round& round, std::uint64_t row_bytes) const {
  return slots_looked_at(round, u64(plan_.config.ep_size), u64(num_ranks_), row_bytes);
}

// Whether a slot holds a token, as the kernels tell a consumer: by the count, or, where rows lie
// apart, by an expert id in the row that names an expert (SPEC MOE-2.3).
bool CudaWorker::holds_token(const assay_round& round, const RoundPlan& plan, RankId rank,
                             std::uint64_t source, std::uint64_t slot) const {
  const auto r = static_cast<std::size_t>(rank.value());
  if (plan.protocol == one_sided::Protocol::kFence)
    return slot < static_cast<std::uint32_t>(round.recv_counters[r][source]);
  if (plan.ids_payload < 0) return false;
  const std::uint64_t bytes = u64(plan_.config.top_k) * sizeof(std::int32_t);
  const auto* ids = static_cast<const std::byte*>(round.recv[plan.ids_payload][r]) +
                    (source * u64(round.max_tokens_per_rank) + slot) * bytes;
  return names_expert({ids, bytes}, plan_.config.num_experts);
}

}  // namespace assay::verify
