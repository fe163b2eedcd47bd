// For tests that need GPUs: rounds so small that their legal outcome is arithmetic in one's head.
// Token t of rank r picks the experts of ranks r + t and r + t + 1, an expert row of rank d is d +
// 1 in every element, so a sum is that of two small integers; a payload row names its token.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "cuda/launch/device.hpp"
#include "cuda/launch/group.hpp"

namespace assay::cuda::testing {

class SmallRounds {
 public:
  static constexpr std::int32_t kMaxTokens = 8, kTopK = 2, kHidden = 32, kRowBytes = 64;

  static one_sided::GroupCapacity capacity(std::int32_t ep_size) {
    one_sided::GroupCapacity capacity;
    capacity.ep_size = ep_size;
    capacity.top_k = kTopK;
    capacity.max_tokens_per_rank = kMaxTokens;
    capacity.payload_bytes_total = kRowBytes;
    capacity.row_bytes = kRowBytes;
    return capacity;
  }
  static KernelRequest request() {
    KernelRequest request;
    request.top_k = kTopK;
    return request;
  }

  LaunchConfig how;  // of every launch, but for its stream and time

  // Streams, inputs and expert rows of the local ranks.
  static Expected<SmallRounds> make(const Communicator& communicator) {
    ASSAY_TRY(const one_sided::Workspace workspace,
              one_sided::Workspace::make(capacity(communicator.ep_size())));
    ASSAY_TRY(OneSidedGroup group, OneSidedGroup::make(communicator, workspace, request()));
    SmallRounds rounds(std::move(group));
    for (const LocalRank& local : communicator.local_ranks()) {
      DeviceScope scope(local.device);
      Seat seat;
      ASSAY_TRY(seat.stream, OwnStream::make());
      ASSAY_TRY(seat.memory, DeviceMemory::make(4 * kPart, "a small round"));
      rounds.seats_.push_back(std::move(seat));
      const std::size_t i = rounds.seats_.size() - 1;
      const std::uint16_t one[] = {bf16_of(local.rank.value() + 1)};
      const std::size_t rows = static_cast<std::size_t>(communicator.ep_size()) * kMaxTokens;
      std::vector<std::uint16_t> expert_rows(rows * kHidden, one[0]);
      ASSAY_CHECK(copy_to_device(pointer(rounds.group_.own(i).at(workspace.rows_offset())),
                                 expert_rows.data(), expert_rows.size() * 2, "expert rows"));
    }
    return Expected<SmallRounds>(std::move(rounds));
  }

  const OneSidedGroup& group() const { return group_; }
  cudaStream_t stream(std::size_t local) const { return seats_[at(local)].stream; }

  // Copies the ids and rows of a round; `shift` moves the picks on, so that rounds differ.
  Status write(std::int32_t tokens, std::int32_t shift) {
    for (std::size_t i = 0; i < local().size(); ++i) {
      DeviceScope scope(local()[i].device);
      std::vector<std::int32_t> ids(kMaxTokens * kTopK);
      std::vector<std::byte> rows(kMaxTokens * kRowBytes, std::byte{0});
      for (std::int32_t t = 0; t < tokens; ++t) {
        for (std::int32_t k = 0; k < kTopK; ++k)
          ids[static_cast<std::size_t>(t * kTopK + k)] =
              target(local()[i].rank.value(), t, k, shift);
        std::memset(rows.data() + t * kRowBytes, mark(local()[i].rank.value(), t, shift),
                    kRowBytes);
      }
      ASSAY_CHECK(copy_to_device(part(i, kIds), ids.data(), ids.size() * 4, "ids"));
      ASSAY_CHECK(copy_to_device(part(i, kRows), rows.data(), rows.size(), "rows"));
      ASSAY_CUDA(cudaMemset(part(i, kOut), 0xDB, kMaxTokens * kRowBytes), "out");
      ASSAY_CUDA(cudaDeviceSynchronize(), "inputs");
    }
    return Done{};
  }

  // Enqueues dispatch and combine of the local ranks from `first` to before `last`. `max_tokens` is
  // what this process believes the round's size to be.
  Status enqueue(std::int32_t tokens, std::size_t first, std::size_t last, std::uint64_t timeout_ns,
                 std::int32_t max_tokens = kMaxTokens) {
    const bool emulated = group_.communicator().is_emulated();
    std::vector<LaunchedRank> ranks;
    std::vector<one_sided::DispatchParams> dispatch;
    std::vector<one_sided::CombineParams> combine;
    for (std::size_t i = first; i < last; ++i) {
      ranks.push_back({local()[i].rank, 0});
      dispatch.push_back(dispatch_params(i, tokens, max_tokens));
      combine.push_back(combine_params(i, tokens, max_tokens));
      if (emulated && i + 1 < last) continue;
      DeviceScope scope(local()[i].device);
      LaunchConfig launch = how;
      launch.timeout_ns = timeout_ns;
      launch.stream.handle = stream(i);
      ASSAY_CHECK(group_.kernels().dispatch(ranks, dispatch, launch));
      ASSAY_CHECK(group_.kernels().combine(ranks, combine, launch));
      ranks.clear();
      dispatch.clear();
      combine.clear();
    }
    return Done{};
  }

  Status wait() {
    for (std::size_t i = 0; i < local().size(); ++i) {
      DeviceScope scope(local()[i].device);
      ASSAY_CHECK(wait_for(stream(i), std::chrono::seconds(10), "a small round"));
    }
    return Done{};
  }

  // Whether every combined row and every received row is the legal one.
  Status check(std::int32_t tokens, std::int32_t shift) {
    for (std::size_t i = 0; i < local().size(); ++i) {
      DeviceScope scope(local()[i].device);
      const std::int32_t rank = local()[i].rank.value();
      std::vector<std::uint16_t> out(kMaxTokens * kHidden);
      ASSAY_CUDA(cudaMemcpy(out.data(), part(i, kOut), out.size() * 2, cudaMemcpyDeviceToHost),
                 "out");
      for (std::int32_t t = 0; t < tokens; ++t) {
        std::int32_t sum = target(rank, t, 0, shift) + 1;
        if (target(rank, t, 1, shift) != target(rank, t, 0, shift))
          sum += target(rank, t, 1, shift) + 1;
        for (std::int32_t h = 0; h < kHidden; ++h)
          if (out[static_cast<std::size_t>(t * kHidden + h)] != bf16_of(sum))
            return bad_input("rank " + std::to_string(rank) + " token " + std::to_string(t) +
                             ": not the sum " + std::to_string(sum));
      }
      ASSAY_CHECK(check_received(i, tokens, shift));
    }
    return Done{};
  }

 private:
  struct Seat {
    OwnStream stream;
    DeviceMemory memory;
  };
  enum Part { kIds, kRows, kOut };
  static constexpr std::size_t kPart = 4096;

  explicit SmallRounds(OneSidedGroup group) : group_(std::move(group)) {}
  std::span<const LocalRank> local() const { return group_.communicator().local_ranks(); }
  // All ranks of one device share its first stream when emulated.
  std::size_t at(std::size_t i) const { return group_.communicator().is_emulated() ? 0 : i; }
  void* part(std::size_t i, Part part) const {
    return static_cast<std::byte*>(seats_[i].memory.data()) +
           static_cast<std::size_t>(part) * kPart;
  }
  std::int32_t ep() const { return group_.communicator().ep_size(); }
  std::int32_t target(std::int32_t rank, std::int32_t t, std::int32_t k, std::int32_t shift) const {
    return (rank + t + k + shift) % ep();
  }
  static int mark(std::int32_t rank, std::int32_t t, std::int32_t shift) {
    return 1 + (rank * kMaxTokens + t + 31 * shift) % 251;
  }
  static std::uint16_t bf16_of(std::int32_t value) {  // exact: values are small
    const float wide = static_cast<float>(value);
    std::uint32_t bits;
    std::memcpy(&bits, &wide, sizeof bits);
    return static_cast<std::uint16_t>(bits >> 16);
  }

  one_sided::GroupParams group_params(std::size_t i, std::int32_t max_tokens) const {
    one_sided::RoundShape shape;
    shape.num_experts = ep();
    shape.max_tokens_per_rank = max_tokens;
    shape.payload_bytes = {kRowBytes};
    for (std::int32_t rank = 0; rank < ep(); ++rank)
      shape.alive.word[rank / 64] |= std::uint64_t{1} << (rank % 64);
    one_sided::GroupParams params{};
    params.window = group_.windows()[i];
    params.at = group_.workspace().offsets();
    params.alive = shape.alive;
    params.ep_size = static_cast<std::uint32_t>(ep());
    params.layout_digest = group_.workspace().round_digest(shape);
    params.max_tokens_per_rank = static_cast<std::uint32_t>(max_tokens);
    return params;
  }
  std::uint64_t recv_offset() const {
    one_sided::RoundShape shape;
    shape.max_tokens_per_rank = kMaxTokens;
    shape.payload_bytes = {kRowBytes};
    return group_.workspace().payload_offsets(shape)[0];
  }
  one_sided::DispatchParams dispatch_params(std::size_t i, std::int32_t tokens,
                                            std::int32_t max_tokens) const {
    one_sided::DispatchParams params{};
    params.group = group_params(i, max_tokens);
    params.experts = one_sided::split_experts(ep(), ep());
    params.num_tokens = static_cast<std::uint32_t>(tokens);
    params.num_payloads = 1;
    params.topk_ids = Address{reinterpret_cast<std::uint64_t>(part(i, kIds))};
    params.payload[0] = {Address{reinterpret_cast<std::uint64_t>(part(i, kRows))}, recv_offset(),
                         kRowBytes, 16};
    one_sided::describe_token(params);
    return params;
  }
  one_sided::CombineParams combine_params(std::size_t i, std::int32_t tokens,
                                          std::int32_t max_tokens) const {
    one_sided::CombineParams params{};
    params.group = group_params(i, max_tokens);
    params.num_tokens = static_cast<std::uint32_t>(tokens);
    params.hidden_size = kHidden;
    params.vector_bytes = 16;
    params.rows_offset = group_.workspace().rows_offset();
    params.out = Address{reinterpret_cast<std::uint64_t>(part(i, kOut))};
    return params;
  }

  // Every source's rows are those of its tokens that pick this rank, in any order.
  Status check_received(std::size_t i, std::int32_t tokens, std::int32_t shift) const {
    const std::int32_t rank = local()[i].rank.value();
    std::vector<std::uint32_t> counts(static_cast<std::size_t>(ep()));
    std::vector<std::byte> rows(static_cast<std::size_t>(ep()) * kMaxTokens * kRowBytes);
    ASSAY_CUDA(cudaMemcpy(counts.data(),
                          pointer(group_.own(i).at(group_.workspace().offsets().recv_counters)),
                          counts.size() * 4, cudaMemcpyDeviceToHost),
               "counts");
    ASSAY_CUDA(cudaMemcpy(rows.data(), pointer(group_.own(i).at(recv_offset())), rows.size(),
                          cudaMemcpyDeviceToHost),
               "received rows");
    for (std::int32_t source = 0; source < ep(); ++source) {
      std::int64_t legal = 0, got = 0;
      std::uint32_t count = 0;
      for (std::int32_t t = 0; t < tokens; ++t)
        if (target(source, t, 0, shift) == rank || target(source, t, 1, shift) == rank) {
          legal += std::int64_t{1} << (mark(source, t, shift) % 61);
          ++count;
        }
      for (std::uint32_t slot = 0;
           slot < counts[static_cast<std::size_t>(source)] && slot < kMaxTokens; ++slot)
        got +=
            std::int64_t{1}
            << (std::to_integer<int>(
                    rows[(static_cast<std::size_t>(source) * kMaxTokens + slot) * kRowBytes + 5]) %
                61);
      if (counts[static_cast<std::size_t>(source)] != count || got != legal)
        return bad_input("rank " + std::to_string(rank) + " got other rows of rank " +
                         std::to_string(source) + " than were sent");
    }
    return Done{};
  }

  OneSidedGroup group_;
  std::vector<Seat> seats_;
};

}  // namespace assay::cuda::testing
