// The benchmark of a build without nvcc or NCCL: there is none, and it says so.
#include "verify/bench/bench.hpp"

namespace assay::verify::bench {

Expected<BenchResult> run_bench(const BenchOptions& options, std::vector<RowRequest> rows) {
  ASSAY_CHECK(check_bench(options, rows));
  return unsupported("a benchmark needs a build with nvcc and NCCL; this one lacks them");
}

}  // namespace assay::verify::bench
