// What a benchmark is asked for, looked at before anything is made: also by builds that have none.
#include <fmt/format.h>

#include "model/moe/profile.hpp"
#include "verify/bench/bench.hpp"
#include "verify/subject/kernels_library.hpp"

namespace assay::verify::bench {

namespace {

Status fits_on_one(const BenchOptions& options, std::span<const RowRequest> rows) {
  for (const RowRequest& row : rows)
    if (options.devices.size() * static_cast<std::size_t>(row.batch) > kTogether)
      return bad_input(
          fmt::format("{} ranks of {} tokens on one GPU (--emulated); allowed are {} tokens in all",
                      options.devices.size(), row.batch, kTogether));
  return Done{};
}

}  // namespace

Status check_bench(const BenchOptions& options, std::span<const RowRequest> rows) {
  if (options.devices.size() < 2)
    return bad_input(fmt::format("{} ranks: a wire needs at least 2", options.devices.size()));
  if (options.emulated) ASSAY_CHECK(fits_on_one(options, rows));
  if (options.kernels.empty()) return Done{};
  ASSAY_CHECK(moe::find_combine_profile(options.kernels_profile));
  ASSAY_CHECK(KernelsLibrary::open(options.kernels));
  return Done{};
}

}  // namespace assay::verify::bench
