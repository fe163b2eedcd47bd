// Prefill kernels for bf16 heads of 128 elements that are tuned otherwise, for the benchmark.
#include "cuda/kernels/attention/attention.cuh"
#include "cuda/launch/attention_variants.hpp"

namespace assay::cuda {
namespace {

using namespace assay::attention_kernels;

template <Tuning kTuning>
PrefillVariant variant(const char* name, PrefillMode mode, int max_cluster) {
  using Shape = PrefillShape<Bf16, 128, Bf16, kTuning>;
  const void* const function =
      mode == PrefillMode::kDense
          ? reinterpret_cast<const void*>(&prefill_kernel<Shape, Mode::kDense>)
          : reinterpret_cast<const void*>(&prefill_kernel<Shape, Mode::kSkip>);
  PrefillVariant v{name, prefill_kernel_with<Shape>(function)};
  v.kernel.max_cluster = max_cluster;
  return v;
}

}  // namespace

std::vector<PrefillVariant> prefill_variants(PrefillMode mode) {
  return {
      variant<Tuning{3, 3, 2, false}>("no clusters", mode, 1),
      variant<Tuning{3, 2, 3, false}>("keys 2, values 3", mode, 2),
      variant<Tuning{2, 3, 3, true}>("two units", mode, 2),
  };
}

}  // namespace assay::cuda
