// The attention benchmark of a build without CUDA: there is none, and it says so.
#include "verify/bench/attention.hpp"

namespace assay::verify::bench {

Expected<AttentionBenchResult> run_attention_bench(const AttentionBenchOptions&) {
  return unsupported(
      "a benchmark of attention needs a build with nvcc and the CUDA runtime; this one lacks them");
}

}  // namespace assay::verify::bench
