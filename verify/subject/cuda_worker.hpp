// One device's part of a round: copies in, launches, waits with an end, copies out, for the ranks
// that live there (all of an emulated group, else one). Every copy is of a rectangle with a row per
// rank, so an emulated group costs as few calls as a single rank. Decides what is poisoned and
// which canaries are looked at (SPEC CUD-5.3), and how a round is stressed (SPEC CUD-5.4); a
// round's parameters are one_sided_plan.cpp's.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cuda/launch/group.hpp"
#include "verify/subject/cuda_pool.hpp"
#include "verify/subject/device_copies.hpp"
#include "verify/subject/device_poison.hpp"
#include "verify/subject/one_sided_plan.hpp"

namespace assay::verify {

struct CudaOptions {
  std::string ranks = "auto";
  ProtocolOption protocol;
  bool ordered_slots = false;
  std::uint32_t threads = 256;  // 0: the launcher's choice
  std::uint32_t timeout_ms = 10'000;
  std::uint32_t delay_us = 0;
  std::uint32_t skew_us = 0;
  bool graph = false;
  bool overlap = false;
  std::uint32_t replays = 0;
  std::uint32_t first_epoch = 0;
};

class CudaWorker {
 public:
  // The ranks [first_rank, first_rank + num_ranks) on `seat`. The references outlive the worker.
  CudaWorker(const GroupPlan& plan, const CudaOptions& options, const cuda::OneSidedGroup& group,
             CudaSeat& seat, std::int32_t first_rank, std::int32_t num_ranks);

  // Device memory for the group's capacity, and poison wherever a kernel writes; the group's
  // control words are reset after it. start: what a group that has run for long would have left in
  // them.
  Status prepare();
  Status start();
  // Pinned memory for such rounds. Growing it waits for whatever runs on the devices.
  Status reserve(std::span<const assay_round> rounds);
  bool has_reserved(std::span<const assay_round> rounds) const;

  // The three parts of a round on this device. Between the first and the second the host reads what
  // arrived; experts are called between the second and the third.
  Status dispatch(const assay_round& round, const RoundPlan& plan);
  Status receive(const assay_round& round, const RoundPlan& plan);
  Status combine(const assay_round& round, const RoundPlan& plan);

  // Of combine by Fence, 2^that groups at most share a row, where a launch has so many rows: few,
  // as all must be resident.
  static constexpr std::uint32_t most_parts_log2(std::uint32_t rows) {
    return rows <= 32 ? 2 : rows <= 64 ? 1 : 0;
  }
  // The living ranks here.
  std::vector<RankId> ranks(const RoundPlan& plan) const;
  // Whether everything enqueued has ended.
  bool is_idle() const { return cudaStreamQuery(seat_.stream) != cudaErrorNotReady; }

 private:
  struct Staging {
    std::uint64_t in, out;  // bytes
  };
  struct ListsBytes {
    std::uint64_t offsets = 0, entries = 0;  // of one rank at capacity
  };
  ListsBytes lists_bytes() const;
  Staging staging_of(std::span<const assay_round> rounds) const;

  DeviceArea window_area(std::uint64_t offset) const;
  DeviceArea input_area(std::uint64_t offset) const {
    return {seat_.inputs.address().at(offset), input_pitch_};
  }
  DeviceArea out_area() const;
  Address at(const DeviceArea& area, RankId rank) const;
  RankMemory memory_of(RankId rank) const;
  std::size_t index(RankId rank) const;

  Status wait(const char* phase);

  Status write_inputs(const assay_round& round, const RoundPlan& plan);
  Status replay(const assay_round& round, const RoundPlan& plan);
  Status poison_received(const assay_round& round, const RoundPlan& plan);
  Status launch_dispatch(const assay_round& round, const RoundPlan& plan);
  Status launch_lists(const RoundPlan& plan);
  Status launch_combine(const assay_round& round, const RoundPlan& plan);
  std::uint64_t slots_copied(const assay_round& round, std::uint64_t row_bytes) const;
  bool holds_token(const assay_round& round, const RoundPlan& plan, RankId rank,
                   std::uint64_t source, std::uint64_t slot) const;
  Status read_payload(const assay_round& round, const RoundPlan& plan, std::size_t payload);
  Status write_statistics(const RoundPlan& plan, std::byte* staging);
  Status read_more(const assay_round& round, const RoundPlan& plan);
  Status read_lists(const assay_round& round, const RoundPlan& plan);
  Status write_expert_rows(const assay_round& round, const RoundPlan& plan);
  std::vector<cuda::LaunchedRank> launched(const RoundPlan& plan);
  Status poison_written(const RoundPlan& plan);
  void pause();

  const GroupPlan& plan_;
  const CudaOptions& options_;
  const cuda::OneSidedGroup& group_;
  CudaSeat& seat_;
  const std::int32_t first_rank_, num_ranks_;
  Window window_;
  DeviceCopies copies_;
  std::uint64_t input_pitch_ = 0, out_pitch_ = 0;
  std::uint64_t payloads_at_ = 0, statistics_at_ = 0, offsets_at_ = 0, entries_at_ = 0;  // inputs
  cuda::LaunchConfig launch_;
  cuda::Graph dispatch_graph_, combine_graph_, round_graph_;
  std::uint64_t random_;
  std::chrono::milliseconds budget_;
};

}  // namespace assay::verify
