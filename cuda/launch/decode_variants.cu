// Decode kernels for bf16 heads of 128 elements that are tuned otherwise, for the benchmark.
#include "cuda/launch/decode_kernels.cuh"
#include "cuda/launch/decode_variants.hpp"

namespace assay::cuda {
namespace {

using namespace assay::attention_kernels;

template <DecodeTuning kTuning>
DecodeVariant variant(const char* name, int fetch_bytes = 256) {
  DecodeVariant v{name, decode_kernel_of<DecodeShape<Bf16, 128, 16, kTuning>>()};
  v.kernel.fetch_bytes = fetch_bytes;
  return v;
}

}  // namespace

std::vector<DecodeVariant> decode_variants() {
  return {
      variant<DecodeTuning{3, 3, 2, true}>("keys 3, entries 3, blocks 2, by 128 bytes", 128),
      variant<DecodeTuning{3, 3, 2, true}>("keys 3, entries 3, blocks 2, as asked", 0),
      variant<DecodeTuning{4, 2, 2, true}>("keys 4, entries 2, blocks 2"),
      variant<DecodeTuning{2, 2, 2, true}>("keys 2, entries 2, blocks 2"),
      variant<DecodeTuning{7, 5, 1, true}>("keys 7, entries 5, blocks 1"),
      variant<DecodeTuning{3, 3, 2, true, false}>("keys 3, entries 3, blocks 2, kept in L2"),
  };
}

}  // namespace assay::cuda
