// The benchmark of a build without nvcc or NCCL: there is none, and it says so.
#include "verify/bench/bench.hpp"

namespace assay::verify::bench {

Expected<BenchResult> run_bench(const BenchOptions&, std::vector<RowRequest>) {
  return unsupported("a benchmark needs a build with nvcc and NCCL; this one lacks them");
}

}  // namespace assay::verify::bench
