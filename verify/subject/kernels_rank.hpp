// One rank of somebody's kernels: memory on its device, copies in and out, launches, waits with an
// end. Decides what is poisoned and looked at (SPEC CUD-5.5); who calls it when is
// kernels_subject.cpp's.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "cuda/launch/device.hpp"
#include "verify/subject/cuda_pool.hpp"
#include "verify/subject/kernels_on_device.hpp"
#include "verify/subject/kernels_options.hpp"
#include "verify/subject/memory_ranges.hpp"
#include "verify/subject/one_sided_plan.hpp"

namespace assay::verify {

// What all ranks of a group share.
struct KernelsGroup {
  assay_kernels_config config;  // `profile` and `options` are the owner's
  KernelsOptions options;
  std::uint64_t seed = 1;
  bool out_is_bf16 = false;  // whatever combine_dtype is
};

class KernelsRank {
 public:
  // The references outlive the rank.
  KernelsRank(const KernelsGroup& group, DeviceKernels kernels, CudaSeat& seat, std::int32_t rank);

  // Device and pinned memory for such rounds, which wait for the whole device when they grow;
  // poison where they will be received; graphs. There are some, and nobody's is under way.
  Status reserve(std::span<const assay_round> rounds);

  // The three parts of a round. Experts are called between the second and the third. `slot_rule` is
  // what the group promises of the round: ASSAY_SLOTS_*.
  Status dispatch(const assay_round& round);
  Status receive(const assay_round& round, int slot_rule);
  Status combine(const assay_round& round);

  std::int32_t rank() const { return rank_; }
  // cudaSuccess: nothing runs; cudaErrorNotReady: something does; else the device is in error.
  cudaError_t state() const { return cudaStreamQuery(seat_.stream); }

 private:
  static constexpr std::uint64_t kAlignment = 256;  // of inputs, as cudaMalloc gives it
  // The round in the library's words.
  struct Part {
    assay_kernels_round round{};
    std::vector<const void*> payload_rows;
  };
  Part part_of(const assay_round& round) const;
  Status write_inputs(const assay_round& round, const Part& part);
  Status replay(const assay_round& round, const Part& part);
  Status poison_written(const assay_round& round);
  Status poison_received(const assay_round& round);
  Status poison_once(const assay_round& round);
  Status poison_payload(const assay_round& round, std::size_t payload);
  Status record_first(const assay_round& round);
  Status record_round(const assay_round& round, const Part& part);
  Status launch(cuda::Graph& graph, const std::function<Status()>& enqueue);
  Status read_payload(const assay_round& round, std::size_t payload, int slot_rule);
  bool holds_token(const assay_round& round, int slot_rule, std::uint64_t source,
                   std::uint64_t slot) const;
  Status fill(void* to, std::uint64_t bytes);
  Status in(void* to, const void* from, std::uint64_t bytes);
  Status out(void* to, const void* from, std::uint64_t bytes);
  Status wait(const char* phase);
  void pause();
  std::uint64_t tokens(const assay_round& round) const { return tokens_of(round, RankId(rank_)); }
  std::uint64_t slots_read(const assay_round& round, std::uint64_t row_bytes) const;
  std::uint64_t max_read(const assay_round& round, std::uint64_t widest) const;
  std::uint64_t received_bytes(const assay_round& round, std::size_t payload) const {
    return static_cast<std::uint64_t>(group_.config.ep_size) *
           static_cast<std::uint64_t>(round.max_tokens_per_rank) *
           round.payloads[payload].bytes_per_token;
  }
  std::uint64_t out_row_bytes() const;

  const KernelsGroup& group_;
  DeviceKernels kernels_;
  CudaSeat& seat_;
  const std::int32_t rank_;
  std::uint64_t random_;
  KernelsPlaces places_;   // of the round under way, or that is prepared
  MemoryRanges poisoned_;  // of the window: poison, but for what a dispatch since then wrote
  cuda::Graph dispatch_graph_, combine_graph_, round_graph_;
};

}  // namespace assay::verify
