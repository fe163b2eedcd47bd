// The same rounds by somebody else's kernels (verify/subject/one_sided_kernels.h), with the same
// inputs, on the same GPUs, by the same clock. Decides nothing of its own (SPEC VER-20.7).
#pragma once

#include <memory>
#include <optional>

#include "cuda/launch/communicator.hpp"
#include "verify/bench/round_data.hpp"
#include "verify/bench/timing.hpp"
#include "verify/subject/kernels_on_device.hpp"

namespace assay::verify::bench {

class ForeignRounds {
 public:
  // Errors: those of the library, which may not serve the row; expert rows in receive buffers,
  // which chained rounds would overwrite; not enough memory. `bad_options` becomes whether it is
  // the library's ASSAY_BAD_OPTIONS.
  static Expected<std::unique_ptr<ForeignRounds>> make(const KernelsLibrary& library,
                                                       const cuda::Communicator& communicator,
                                                       std::optional<cuda::SymmetricMemory>& memory,
                                                       const RowRequest& request,
                                                       const BenchOptions& options,
                                                       bool& bad_options);

  // Microseconds of a round, of each repeat of a chain.
  Expected<std::vector<double>> time(Stopwatch& watch);
  // As RoundData::check, with the arithmetic of BenchOptions::kernels_profile.
  Expected<std::int64_t> check(const Stopwatch& watch) const;

 private:
  ForeignRounds(const RowRequest& request, const BenchOptions& options, RoundData data)
      : request_(request), options_(options), data_(std::move(data)) {}
  Status fill_rank(std::size_t rank);
  Status check_apart(const KernelsPlaces& theirs) const;
  assay_kernels_round round_of(std::size_t rank) const;

  const RowRequest& request_;
  const BenchOptions& options_;
  RoundData data_;
  std::vector<RankPlaces> places_;
  std::vector<std::vector<const void*>> payload_rows_;
  std::vector<cuda::DeviceMemory> inputs_, out_;
  std::vector<DeviceKernels> kernels_;  // the first to go
};

}  // namespace assay::verify::bench
