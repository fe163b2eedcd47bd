// Rounds of our dispatch and combine on one group of GPUs, chained in one graph per GPU. Decides
// SPEC VER-20.2 (the times of the two halves); what is sent and checked is round_data.hpp's.
#pragma once

#include <memory>

#include "cuda/launch/group.hpp"
#include "verify/bench/bench.hpp"
#include "verify/bench/round_data.hpp"
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

  std::int64_t dispatch_row_bytes() const { return data_.row_bytes(); }
  std::int64_t combine_row_bytes() const { return static_cast<std::int64_t>(plan_.row_bytes()); }

 private:
  Rounds(const RowRequest& request, const BenchOptions& options, RoundData data, GroupPlan plan,
         cuda::OneSidedGroup group)
      : request_(request),
        options_(options),
        data_(std::move(data)),
        plan_(std::move(plan)),
        group_(std::move(group)) {}
  Status fill();
  Status enqueue(std::size_t rank, cudaStream_t stream, bool dispatch_tokens, bool combine_tokens);
  Expected<std::vector<double>> chain(Stopwatch& watch, bool dispatch_tokens, bool combine_tokens,
                                      int repeats);

  const RowRequest& request_;
  const BenchOptions& options_;
  RoundData data_;
  GroupPlan plan_;
  cuda::OneSidedGroup group_;
  RoundPlan round_plan_;
  assay_round round_{};
  std::vector<std::int32_t> num_tokens_, no_tokens_;
  std::vector<RankMemory> memory_;
  std::vector<RankPlaces> places_;
  std::vector<cuda::DeviceMemory> inputs_, out_;
};

// One window for all rows, as large as the largest so far: it is registered once per growth.
Status window_of(const cuda::Communicator& communicator, std::uint64_t bytes,
                 std::optional<cuda::SymmetricMemory>& memory);

}  // namespace assay::verify::bench
