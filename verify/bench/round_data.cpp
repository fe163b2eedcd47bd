// Making, uploading and comparing.
#include "verify/bench/round_data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "cuda/probe/wire.hpp"
#include "model/core/prng.hpp"
#include "model/moe/buffer_sizes.hpp"
#include "verify/subject/device_poison.hpp"

namespace assay::verify::bench {

namespace {

using cuda::pointer;

std::uint64_t u64(std::int64_t value) { return static_cast<std::uint64_t>(value); }

constexpr std::uint64_t kAlignment = 256;
std::uint64_t aligned(std::uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Bytes that depend on everything that could be mixed up.
void fill_bytes(std::uint64_t key, std::vector<std::byte>& bytes) {
  std::uint64_t state = key;
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t word = splitmix64(state);
    std::memcpy(bytes.data() + at, &word, std::min(sizeof word, bytes.size() - at));
  }
}

Expected<std::vector<std::byte>> read(int device, Address from, std::uint64_t bytes) {
  cuda::DeviceScope scope(device);
  std::vector<std::byte> got(bytes);
  ASSAY_CUDA(cudaMemcpy(got.data(), pointer(from), bytes, cudaMemcpyDeviceToHost), "reading a row");
  return got;
}

Expected<std::vector<std::int32_t>> read_table(int device, Address from, std::uint64_t entries) {
  ASSAY_TRY(const std::vector<std::byte> bytes, read(device, from, entries * 4));
  std::vector<std::int32_t> table(entries);
  std::memcpy(table.data(), bytes.data(), bytes.size());
  return table;
}

}  // namespace

Expected<RoundData> RoundData::make(const RowRequest& request, std::int32_t ep) {
  ASSAY_TRY(const std::vector<moe::Payload> payloads,
            moe::recipe_payloads(request.recipe, request.model.hidden_size, request.model.top_k));
  RoundData data(request, ep);
  for (const moe::Payload& payload : payloads) {
    data.row_bytes_ += payload.bytes_per_token;
    data.names_.push_back(payload.name);
  }
  for (std::size_t i = 0; i < payloads.size(); ++i)
    data.payloads_.push_back({data.names_[i].c_str(),
                              static_cast<std::uint32_t>(payloads[i].bytes_per_token),
                              payloads[i].holds_expert_ids ? 1 : 0});
  return Expected<RoundData>(std::move(data));
}

std::uint64_t RoundData::input_bytes() const {
  const std::uint64_t tokens = u64(request_->batch);
  std::uint64_t bytes = aligned(tokens * u64(request_->model.top_k) * 4);
  for (const assay_payload& payload : payloads_) bytes += aligned(tokens * payload.bytes_per_token);
  return bytes;
}

std::uint64_t RoundData::out_bytes() const {
  return u64(request_->batch) * u64(request_->model.hidden_size) * 2;
}

void RoundData::place_inputs(Address inputs, RankPlaces& places) const {
  const std::uint64_t tokens = u64(request_->batch);
  places.topk_ids = inputs;
  std::uint64_t at = aligned(tokens * u64(request_->model.top_k) * 4);
  places.payload_rows.clear();
  for (const assay_payload& payload : payloads_) {
    places.payload_rows.push_back(inputs.at(at));
    at += aligned(tokens * payload.bytes_per_token);
  }
}

Status RoundData::fill(std::size_t rank, const RankPlaces& places) const {
  cuda::DeviceScope scope(places.device);
  const std::uint64_t tokens = u64(request_->batch);
  const std::vector<std::int32_t>& ids = request_->topk_ids[rank];
  ASSAY_CHECK(
      cuda::copy_to_device(pointer(places.topk_ids), ids.data(), ids.size() * 4, "copying ids"));
  for (std::size_t i = 0; i < payloads_.size(); ++i) {
    std::vector<std::byte> rows;
    rows.reserve(tokens * payloads_[i].bytes_per_token);
    for (std::int32_t token = 0; token < request_->batch; ++token) {
      const std::vector<std::byte> row = payload_row(i, rank, token);
      rows.insert(rows.end(), row.begin(), row.end());
    }
    ASSAY_CHECK(cuda::copy_to_device(pointer(places.payload_rows[i]), rows.data(), rows.size(),
                                     "copying payload rows"));
  }
  const std::vector<std::byte> row = expert_row(rank);
  ASSAY_CHECK(
      cuda::copy_to_device(pointer(places.out), row.data(), row.size(), "copying an expert row"));
  ASSAY_CUDA(probe::repeat_row(places.out.raw, places.expert_out.raw, row.size(), u64(ep_) * tokens,
                               nullptr),
             "filling expert rows");
  ASSAY_CUDA(cudaStreamSynchronize(nullptr), "filling expert rows");
  ASSAY_CUDA(cudaMemset(pointer(places.out), kDevicePoison, out_bytes()),
             "poisoning combined rows");
  return Done{};
}

std::vector<std::byte> RoundData::payload_row(std::size_t payload, std::size_t rank,
                                              std::int32_t token) const {
  std::vector<std::byte> row(payloads_[payload].bytes_per_token);
  if (payloads_[payload].holds_expert_ids != 0) {
    std::memcpy(row.data(),
                request_->topk_ids[rank].data() + std::int64_t{token} * request_->model.top_k,
                row.size());
  } else {
    fill_bytes((u64(token) << 24) | (rank << 8) | payload, row);
  }
  return row;
}

// bf16 numbers between 1/2 and 2 of either sign, another row at every rank.
std::vector<std::byte> RoundData::expert_row(std::size_t rank) const {
  std::vector<std::byte> row(u64(request_->model.hidden_size) * 2);
  fill_bytes(0x45787065727473u + rank, row);
  for (std::size_t at = 1; at < row.size(); at += 2)
    row[at] = (row[at] & std::byte{0x80}) | std::byte{0x3F};
  return row;
}

Expected<std::int64_t> RoundData::check(std::span<const RankPlaces> ranks,
                                        const moe::CombineArithmetic& arithmetic) const {
  constexpr std::int32_t kTokens = 16;  // of each rank, evenly spread
  ASSAY_TRY(
      const moe::Combine combine,
      moe::Combine::make(arithmetic, {.top_k = request_->model.top_k, .dtype = moe::Dtype::kBf16}));
  const std::uint64_t picks = u64(request_->batch) * u64(request_->model.top_k);
  std::int64_t checked = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankPlaces& own = ranks[rank];
    ASSAY_TRY(const auto target_rank, read_table(own.device, own.target_rank, picks));
    ASSAY_TRY(const auto target_slot, read_table(own.device, own.target_slot, picks));
    const std::int32_t step = std::max(1, request_->batch / kTokens);
    for (std::int32_t token = request_->batch - 1; token >= 0; token -= step, ++checked)
      ASSAY_CHECK(check_token(ranks, rank, token, target_rank, target_slot, combine));
  }
  return checked;
}

// Every row of the token at its target, and the sum of what came back.
Status RoundData::check_token(std::span<const RankPlaces> ranks, std::size_t rank,
                              std::int32_t token, std::span<const std::int32_t> target_rank,
                              std::span<const std::int32_t> target_slot,
                              const moe::Combine& combine) const {
  const auto top_k = static_cast<std::size_t>(request_->model.top_k);
  std::vector<std::vector<std::byte>> rows(top_k);
  std::vector<const std::byte*> leaves(top_k, nullptr);
  for (std::size_t k = 0; k < top_k; ++k) {
    const std::int32_t target = target_rank[static_cast<std::size_t>(token) * top_k + k];
    const std::int32_t slot = target_slot[static_cast<std::size_t>(token) * top_k + k];
    if (target < 0) continue;
    if (target >= ep_ || slot < 0 || slot >= request_->batch)
      return bad_input(fmt::format("rank {} token {} pick {}: target rank {} of {}, slot {} of {}",
                                   rank, token, k, target, ep_, slot, request_->batch));
    const std::uint64_t row = rank * u64(request_->batch) + u64(slot);
    const auto at = static_cast<std::size_t>(target);
    for (std::size_t i = 0; i < payloads_.size(); ++i) {
      const std::vector<std::byte> sent = payload_row(i, rank, token);
      ASSAY_TRY(const auto got,
                read(ranks[at].device, ranks[at].recv[i].at(row * sent.size()), sent.size()));
      if (got != sent)
        return bad_input(
            fmt::format("rank {} token {}: payload {} arrived with other bytes at rank {}, row {}",
                        rank, token, names_[i], target, row));
    }
    rows[k] = expert_row(at);
    leaves[k] = rows[k].data();
  }
  std::vector<std::byte> legal(u64(request_->model.hidden_size) * 2);
  combine.row(leaves, request_->model.hidden_size, legal.data());
  ASSAY_TRY(const auto got,
            read(ranks[rank].device, ranks[rank].out.at(u64(token) * legal.size()), legal.size()));
  if (got != legal)
    return bad_input(fmt::format(
        "rank {} token {}: the combined row has other bits than the model's", rank, token));
  return Done{};
}

}  // namespace assay::verify::bench
