// Decode kernels for bf16 heads of 128 elements that are tuned otherwise, for the benchmark.
#include "cuda/launch/decode_kernels.cuh"
#include "cuda/launch/decode_variants.hpp"

namespace assay::cuda {
namespace {

using namespace assay::attention_kernels;

template <DecodeTuning kTuning>
DecodeVariant variant(const char* name) {
  return {name, decode_kernel_of<DecodeShape<Bf16, 128, 16, kTuning>>()};
}

}  // namespace

std::vector<DecodeVariant> decode_variants() {
  return {
      variant<DecodeTuning{4, 2, 2, true}>("keys 4, entries 2, blocks 2"),
      variant<DecodeTuning{2, 2, 2, true}>("keys 2, entries 2, blocks 2"),
      variant<DecodeTuning{6, 6, 1, true}>("keys 6, entries 6, blocks 1"),
      variant<DecodeTuning{7, 5, 1, true}>("keys 7, entries 5, blocks 1"),
      variant<DecodeTuning{3, 3, 2, false}>("keys 3, entries 3, blocks 2, q in shared memory"),
  };
}

}  // namespace assay::cuda
