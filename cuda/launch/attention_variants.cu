// Prefill kernels for bf16 heads of 128 elements that are tuned otherwise, for the benchmark.
#include "cuda/kernels/attention/attention.cuh"
#include "cuda/launch/attention_variants.hpp"

namespace assay::cuda {
namespace {

using namespace assay::attention_kernels;

template <Tuning kTuning>
PrefillVariant variant(const char* name, PrefillMode mode) {
  using Shape = PrefillShape<Bf16, 128, Bf16, kTuning>;
  const void* const function =
      mode == PrefillMode::kDense
          ? reinterpret_cast<const void*>(&prefill_kernel<Shape, Mode::kDense>)
          : reinterpret_cast<const void*>(&prefill_kernel<Shape, Mode::kSkip>);
  return {name, {function, Shape::kThreads, Shape::kAllocatedBytes, Shape::kUnits * kUnitRows}};
}

}  // namespace

std::vector<PrefillVariant> prefill_variants(PrefillMode mode) {
  return {
      variant<Tuning{3, 2, true}>("values 2", mode),
      variant<Tuning{2, 3, true}>("keys 2", mode),
      variant<Tuning{2, 4, true}>("keys 2, values 4", mode),
      variant<Tuning{3, 3, false}>("queries shared", mode),
  };
}

}  // namespace assay::cuda
