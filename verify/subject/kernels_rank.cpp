// Copies, launches and waits of one rank.
#include "verify/subject/kernels_rank.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "model/core/prng.hpp"
#include "verify/subject/device_poison.hpp"

namespace assay::verify {

namespace {

std::uint64_t u64(std::int64_t value) { return static_cast<std::uint64_t>(value); }

std::uint64_t element_bytes(std::int32_t dtype) { return dtype == ASSAY_DTYPE_F32 ? 4 : 2; }

}  // namespace

KernelsRank::KernelsRank(const KernelsGroup& group, DeviceKernels kernels, CudaSeat& seat,
                         std::int32_t rank)
    : group_(group),
      kernels_(std::move(kernels)),
      seat_(seat),
      rank_(rank),
      random_(group.seed + u64(rank) * 0x9E3779B97F4A7C15u) {}

Status KernelsRank::dispatch(const assay_round& round) {
  cuda::DeviceScope scope(seat_.device);
  const Part part = part_of(round);
  ASSAY_TRY(places_, kernels_->places(part.round));
  ASSAY_CHECK(write_inputs(round, part));
  if (group_.options.replays != 0) ASSAY_CHECK(replay(round, part));
  pause();
  return launch(dispatch_graph_, [&] { return kernels_->dispatch(part.round, seat_.stream); });
}

// Copies what arrived and poisons it behind itself: between a rank's dispatch and its combine no
// peer may write there. Expert ids first: they may say which rows hold a token.
Status KernelsRank::receive(const assay_round& round, int slot_rule) {
  cuda::DeviceScope scope(seat_.device);
  ASSAY_CHECK(wait("dispatch"));
  const auto r = static_cast<std::size_t>(rank_);
  const std::uint64_t counters = u64(group_.config.ep_size) * 4;
  const std::uint64_t table = tokens(round) * u64(group_.config.top_k) * 4;
  ASSAY_TRY(std::byte* const staging, seat_.from_device.at_least(counters + 2 * table));
  ASSAY_CHECK(out(staging, places_.recv_counters, counters));
  ASSAY_CHECK(out(staging + counters, places_.target_rank, table));
  ASSAY_CHECK(out(staging + counters + table, places_.target_slot, table));
  ASSAY_CHECK(wait("copying what arrived"));
  std::memcpy(round.recv_counters[r], staging, counters);
  if (table != 0) {
    std::memcpy(round.target_rank[r], staging + counters, table);
    std::memcpy(round.target_slot[r], staging + counters + table, table);
  }
  for (const bool ids : {true, false})
    for (std::size_t i = 0; i < places_.recv.size(); ++i)
      if ((round.payloads[i].holds_expert_ids != 0) == ids)
        ASSAY_CHECK(read_payload(round, i, slot_rule));
  return group_.options.keep_recv ? Status(Done{}) : poison_received(round);
}

// Rows that hold no token arrive as NaN, and go to the device like the others.
Status KernelsRank::combine(const assay_round& round) {
  cuda::DeviceScope scope(seat_.device);
  const Part part = part_of(round);
  const auto r = static_cast<std::size_t>(rank_);
  const std::uint64_t row =
      u64(group_.config.hidden_size) * element_bytes(group_.config.combine_dtype);
  const std::uint64_t block = slots_read(round, row) * row,
                      pitch = u64(round.max_tokens_per_rank) * row;
  ASSAY_TRY(std::byte* const rows, seat_.to_device.at_least(u64(group_.config.ep_size) * block));
  for (std::uint64_t source = 0; source < u64(group_.config.ep_size); ++source) {
    std::memcpy(rows + source * block,
                static_cast<const std::byte*>(round.expert_out[r]) + source * pitch, block);
    ASSAY_CHECK(in(static_cast<std::byte*>(places_.expert_out) + source * pitch,
                   rows + source * block, block));
  }
  poisoned_.remove(places_.expert_out, u64(group_.config.ep_size) * pitch);  // may lie in recv
  pause();
  ASSAY_CHECK(launch(combine_graph_, [&] { return kernels_->combine(part.round, seat_.stream); }));
  ASSAY_CHECK(wait("combine"));
  const std::uint64_t all = u64(round.max_tokens_per_rank) * out_row_bytes();
  const std::uint64_t written = tokens(round) * out_row_bytes();
  ASSAY_TRY(std::byte* const staging, seat_.from_device.at_least(all + 2 * kCanaryBytes));
  ASSAY_CHECK(out(staging, seat_.out.data(), all + 2 * kCanaryBytes));
  ASSAY_CHECK(wait("copying combined rows"));
  if (written != 0) std::memcpy(round.out[r], staging + kCanaryBytes, written);
  return check_canaries(rank_, {staging, all + 2 * kCanaryBytes}, written, tokens(round));
}

Status KernelsRank::reserve(std::span<const assay_round> rounds) {
  cuda::DeviceScope scope(seat_.device);
  std::uint64_t inputs = 0, to_device = 0, from_device = 0, outputs = 0;
  const std::uint64_t ep = u64(group_.config.ep_size);
  for (const assay_round& round : rounds) {
    const std::uint64_t max = u64(round.max_tokens_per_rank);
    std::uint64_t row = u64(group_.config.top_k) * 4, widest = 0;
    for (std::int32_t i = 0; i < round.num_payloads; ++i) {
      row += round.payloads[i].bytes_per_token;
      widest = std::max<std::uint64_t>(widest, round.payloads[i].bytes_per_token);
    }
    const std::uint64_t expert_row = u64(group_.config.hidden_size) * 4;  // or less
    inputs = std::max(inputs, tokens(round) * row + kAlignment * (u64(round.num_payloads) + 1));
    to_device = std::max({to_device, inputs, ep * max_read(round, expert_row)});
    outputs = std::max(outputs, max * out_row_bytes() + 2 * kCanaryBytes);
    from_device = std::max({from_device, outputs, ep * max_read(round, widest),
                            ep * 4 + 2 * tokens(round) * u64(group_.config.top_k) * 4});
  }
  ASSAY_CHECK(CudaSeat::grow(seat_.inputs, inputs, "inputs"));
  ASSAY_CHECK(CudaSeat::grow(seat_.out, outputs, "combined rows"));
  ASSAY_CHECK(seat_.to_device.at_least(to_device));
  ASSAY_CHECK(seat_.from_device.at_least(from_device));
  for (const assay_round& round : rounds) {
    const Part part = part_of(round);
    ASSAY_TRY(places_, kernels_->places(part.round));
    if (!group_.options.keep_recv) ASSAY_CHECK(poison_once(round));
  }
  ASSAY_CHECK(record_first(rounds[0]));
  return wait("preparation");
}

// Of graphs what may wait for the device, and what cannot be recorded at all, comes before anybody
// waits for this rank: later rounds update what is made here.
Status KernelsRank::record_first(const assay_round& round) {
  const Part part = part_of(round);
  ASSAY_TRY(places_, kernels_->places(part.round));
  if (group_.options.graph) {
    ASSAY_CHECK(dispatch_graph_.record(
        seat_.stream, [&] { return kernels_->dispatch(part.round, seat_.stream); }));
    ASSAY_CHECK(combine_graph_.record(seat_.stream,
                                      [&] { return kernels_->combine(part.round, seat_.stream); }));
  }
  return group_.options.replays != 0 ? record_round(round, part) : Status(Done{});
}

KernelsRank::Part KernelsRank::part_of(const assay_round& round) const {
  Part part;
  part.round.struct_size = sizeof part.round;
  part.round.max_tokens_per_rank = round.max_tokens_per_rank;
  part.round.num_tokens = round.num_tokens[rank_];
  part.round.num_payloads = round.num_payloads;
  part.round.payloads = round.payloads;
  part.round.rank_mask = round.rank_mask;
  auto* at = static_cast<std::byte*>(seat_.inputs.data());
  part.round.topk_ids = reinterpret_cast<const std::int32_t*>(at);
  std::uint64_t bytes = tokens(round) * u64(group_.config.top_k) * 4;
  for (std::int32_t i = 0; i < round.num_payloads; ++i) {
    at += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    part.payload_rows.push_back(at);
    bytes = tokens(round) * round.payloads[i].bytes_per_token;
  }
  part.round.payload_rows = part.payload_rows.data();
  part.round.out = static_cast<std::byte*>(seat_.out.data()) + kCanaryBytes;
  return part;
}

Status KernelsRank::write_inputs(const assay_round& round, const Part& part) {
  const auto r = static_cast<std::size_t>(rank_);
  const std::uint64_t ids = tokens(round) * u64(group_.config.top_k) * 4;
  std::uint64_t all = ids;
  for (std::int32_t i = 0; i < round.num_payloads; ++i)
    all += tokens(round) * round.payloads[i].bytes_per_token;
  ASSAY_TRY(std::byte * staging, seat_.to_device.at_least(all));
  const auto send = [&](const void* to, const void* rows, std::uint64_t bytes) -> Status {
    if (bytes == 0) return Done{};
    std::memcpy(staging, rows, bytes);
    ASSAY_CHECK(in(const_cast<void*>(to), staging, bytes));
    staging += bytes;
    return Done{};
  };
  ASSAY_CHECK(send(part.round.topk_ids, round.topk_ids[r], ids));
  for (std::size_t i = 0; i < part.payload_rows.size(); ++i)
    ASSAY_CHECK(send(part.payload_rows[i], round.payload_rows[i][r],
                     tokens(round) * round.payloads[i].bytes_per_token));
  return poison_written(round);
}

// What a round before left in tables and outputs must not pass for this round's.
Status KernelsRank::poison_written(const assay_round& round) {
  const std::uint64_t table = tokens(round) * u64(group_.config.top_k) * 4;
  ASSAY_CHECK(fill(places_.target_rank, table));
  ASSAY_CHECK(fill(places_.target_slot, table));
  return fill(seat_.out.data(),
              u64(round.max_tokens_per_rank) * out_row_bytes() + 2 * kCanaryBytes);
}

Status KernelsRank::poison_received(const assay_round& round) {
  for (std::size_t i = 0; i < places_.recv.size(); ++i) ASSAY_CHECK(poison_payload(round, i));
  return Done{};
}

Status KernelsRank::poison_once(const assay_round& round) {
  for (std::size_t i = 0; i < places_.recv.size(); ++i)
    if (!poisoned_.covers(places_.recv[i], received_bytes(round, i)))
      ASSAY_CHECK(poison_payload(round, i));
  return Done{};
}

Status KernelsRank::poison_payload(const assay_round& round, std::size_t payload) {
  ASSAY_CHECK(fill(places_.recv[payload], received_bytes(round, payload)));
  poisoned_.add(places_.recv[payload], received_bytes(round, payload));
  return Done{};
}

// Whole rounds back to back without a host in between. Their outputs are not looked at: what is
// under test is the state that they leave.
Status KernelsRank::replay(const assay_round& round, const Part& part) {
  ASSAY_CHECK(record_round(round, part));
  for (std::uint32_t i = 0; i < group_.options.replays; ++i) {
    ASSAY_CHECK(round_graph_.launch(seat_.stream));
    if (i % 256 == 255) ASSAY_CHECK(wait("graph replays"));
  }
  return poison_written(round);
}

Status KernelsRank::record_round(const assay_round& round, const Part& part) {
  return round_graph_.record(seat_.stream, [&]() -> Status {
    ASSAY_CHECK(kernels_->dispatch(part.round, seat_.stream));
    if (!group_.options.keep_recv) ASSAY_CHECK(poison_received(round));
    return kernels_->combine(part.round, seat_.stream);
  });
}

Status KernelsRank::launch(cuda::Graph& graph, const std::function<Status()>& enqueue) {
  if (!group_.options.graph) return enqueue();
  ASSAY_CHECK(graph.record(seat_.stream, enqueue));
  return graph.launch(seat_.stream);
}

// Where memory was not poison, as of a kernel that wants to keep it, a row that holds no token
// cannot be told from one that was written, and is not looked at unless it holds expert ids.
Status KernelsRank::read_payload(const assay_round& round, std::size_t payload, int slot_rule) {
  const auto r = static_cast<std::size_t>(rank_);
  const std::uint64_t ep = u64(group_.config.ep_size), max = u64(round.max_tokens_per_rank);
  const std::uint64_t row = round.payloads[payload].bytes_per_token;
  const std::uint64_t rows = slots_read(round, row), block = rows * row;
  const bool was_poison = poisoned_.covers(places_.recv[payload], received_bytes(round, payload));
  const bool all = !was_poison && round.payloads[payload].holds_expert_ids != 0;
  ASSAY_TRY(std::byte* const staging, seat_.from_device.at_least(ep * block));
  for (std::uint64_t source = 0; source < ep; ++source)
    ASSAY_CHECK(out(staging + source * block,
                    static_cast<const std::byte*>(places_.recv[payload]) + source * max * row,
                    block));
  ASSAY_CHECK(wait("copying received rows"));
  auto* const to = static_cast<std::byte*>(round.recv[payload][r]);
  for (std::uint64_t source = 0; source < ep; ++source)
    for (std::uint64_t slot = 0; slot < rows; ++slot) {
      const std::byte* const from = staging + source * block + slot * row;
      // A short row may equal the poison: rows that hold a token are taken as they are.
      if (all || (was_poison && !is_device_poison({from, row})) ||
          holds_token(round, slot_rule, source, slot))
        std::memcpy(to + (source * max + slot) * row, from, row);
    }
  return Done{};
}

// As kernels tell a consumer: by the count, or, where rows lie apart, by an expert id that names an
// expert, of the ids that were read (SPEC MOE-2.3).
bool KernelsRank::holds_token(const assay_round& round, int slot_rule, std::uint64_t source,
                              std::uint64_t slot) const {
  const auto r = static_cast<std::size_t>(rank_);
  if (slot_rule != ASSAY_SLOTS_TOKEN_INDEX)
    return slot < static_cast<std::uint32_t>(round.recv_counters[r][source]);
  for (std::int32_t i = 0; i < round.num_payloads; ++i) {
    if (round.payloads[i].holds_expert_ids == 0) continue;
    const std::uint64_t bytes = round.payloads[i].bytes_per_token;
    const auto* const ids = static_cast<const std::byte*>(round.recv[i][r]) +
                            (source * u64(round.max_tokens_per_rank) + slot) * bytes;
    if (names_expert({ids, bytes}, group_.config.num_experts)) return true;
  }
  return false;
}

std::uint64_t KernelsRank::slots_read(const assay_round& round, std::uint64_t row_bytes) const {
  return slots_looked_at(round, u64(group_.config.ep_size), 1, row_bytes);
}

// Bytes of one source's slots, of rows up to so wide: narrower ones may be read whole.
std::uint64_t KernelsRank::max_read(const assay_round& round, std::uint64_t widest) const {
  const std::uint64_t ep = u64(group_.config.ep_size);
  return std::max(slots_read(round, widest) * widest,
                  std::min(u64(round.max_tokens_per_rank) * widest, kWholeBufferMax / ep));
}

std::uint64_t KernelsRank::out_row_bytes() const {
  return u64(group_.config.hidden_size) *
         (group_.out_is_bf16 ? 2 : element_bytes(group_.config.combine_dtype));
}

Status KernelsRank::fill(void* to, std::uint64_t bytes) {
  if (bytes != 0)
    ASSAY_CUDA(cudaMemsetAsync(to, kDevicePoison, bytes, seat_.stream), "poisoning memory");
  return Done{};
}

Status KernelsRank::in(void* to, const void* from, std::uint64_t bytes) {
  if (bytes != 0)
    ASSAY_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, seat_.stream),
               "copying inputs");
  return Done{};
}

Status KernelsRank::out(void* to, const void* from, std::uint64_t bytes) {
  if (bytes != 0)
    ASSAY_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, seat_.stream),
               "copying results");
  return Done{};
}

Status KernelsRank::wait(const char* phase) {
  return cuda::wait_for(seat_.stream, std::chrono::milliseconds(group_.options.timeout_ms),
                        fmt::format("{} at rank {}", phase, rank_));
}

// Between kernels: a host that comes late.
void KernelsRank::pause() {
  if (group_.options.skew_us != 0)
    std::this_thread::sleep_for(
        std::chrono::microseconds(splitmix64(random_) % (group_.options.skew_us + 1)));
}

}  // namespace assay::verify
