// Decode kernels for bf16 heads of 128 elements that are tuned otherwise, for the benchmark.
#include "cuda/launch/decode_kernels.cuh"
#include "cuda/launch/decode_variants.hpp"

namespace assay::cuda {
namespace {

using namespace assay::attention_kernels;

template <DecodeTuning kTuning>
DecodeVariant variant(const char* name, bool begins_early = false, bool alone = false) {
  DecodeVariant v{name, decode_kernel_of<DecodeShape<Bf16, 128, 16, kTuning>>()};
  v.kernel.begins_early = begins_early;
  if (alone) {  // more than half of shared memory, so that no second block comes beside it
    v.kernel.blocks = 1;
    v.kernel.shared_bytes = 120 * 1024;
  }
  return v;
}

}  // namespace

std::vector<DecodeVariant> decode_variants() {
  constexpr DecodeTuning kLaunched{3, 3, 2, true};
  return {
      variant<kLaunched>("begins early", true),
      variant<kLaunched>("one block", false, true),
      variant<kLaunched>("one block, begins early", true, true),
      variant<DecodeTuning{7, 5, 1, true}>("keys 7, entries 5, blocks 1"),
      variant<DecodeTuning{7, 5, 1, true}>("keys 7, entries 5, blocks 1, begins early", true),
  };
}

}  // namespace assay::cuda
