// Rounds of dispatch and combine on one group of GPUs: inputs that say where they belong, chains in
// one graph per GPU, and a look at the last round's bytes. Decides SPEC VER-20.2 (the times of the
// two halves) and VER-20.6 (what is checked).
#pragma once

#include <memory>

#include "cuda/launch/group.hpp"
#include "verify/bench/bench.hpp"
#include "verify/bench/timing.hpp"
#include "verify/subject/one_sided_plan.hpp"

namespace assay::verify::bench {

class Rounds {
 public:
  // A group for this row's sizes, with inputs and expert rows in place. Errors: no kernel for the
  // row, not enough memory.
  static Expected<std::unique_ptr<Rounds>> make(const cuda::Communicator& communicator,
                                                std::optional<cuda::SymmetricMemory>& memory,
                                                const RowRequest& request, bool sentinel,
                                                const BenchOptions& options);

  Expected<ProtocolTimes> time(Stopwatch& watch);
  // Tokens whose rows and sums of the last timed round were compared, bit for bit.
  Expected<std::int64_t> check(const Stopwatch& watch);

  std::int64_t dispatch_row_bytes() const { return dispatch_row_bytes_; }
  std::int64_t combine_row_bytes() const { return static_cast<std::int64_t>(plan_.row_bytes()); }

 private:
  Rounds(const RowRequest& request, const BenchOptions& options, GroupPlan plan,
         cuda::OneSidedGroup group)
      : request_(request), options_(options), plan_(std::move(plan)), group_(std::move(group)) {}
  Status fill();
  Status enqueue(std::size_t rank, cudaStream_t stream, bool dispatch_tokens, bool combine_tokens);
  Expected<std::vector<double>> chain(Stopwatch& watch, bool dispatch_tokens, bool combine_tokens,
                                      int repeats);
  Status check_token(std::size_t rank, std::int32_t token,
                     std::span<const std::int32_t> target_rank,
                     std::span<const std::int32_t> target_slot);
  std::vector<std::byte> payload_row(std::size_t payload, std::size_t rank,
                                     std::int32_t token) const;
  std::vector<std::byte> expert_row(std::size_t rank) const;
  Expected<std::vector<std::byte>> read(std::size_t rank, Address from, std::uint64_t bytes) const;

  const RowRequest& request_;
  const BenchOptions& options_;
  GroupPlan plan_;
  cuda::OneSidedGroup group_;
  RoundPlan round_plan_;
  assay_round round_{};
  std::vector<assay_payload> payloads_;
  std::vector<std::string> names_;
  std::vector<std::int32_t> num_tokens_, no_tokens_;
  std::vector<RankMemory> memory_;
  std::vector<cuda::DeviceMemory> inputs_, out_;
  std::int64_t dispatch_row_bytes_ = 0;
};

}  // namespace assay::verify::bench
