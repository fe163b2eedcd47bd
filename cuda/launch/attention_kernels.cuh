// The prefill kernel's instantiations for one head size. Included by the files that are one head
// size each. For sm_100a it is an empty kernel, which the launcher does not launch.
#pragma once

#include "cuda/kernels/attention/attention.cuh"
#include "cuda/launch/attention_kernels.hpp"

namespace assay::cuda {

template <class T, int kDim, class Out = T>
PrefillKernel prefill_kernel_of(PrefillMode mode) {
  using namespace assay::attention_kernels;
  using Shape = PrefillShape<T, kDim, Out>;
  switch (mode) {
    case PrefillMode::kDense:
      return prefill_kernel_with<Shape>(
          reinterpret_cast<const void*>(&prefill_kernel<Shape, Mode::kDense>));
    case PrefillMode::kSkip:
      return prefill_kernel_with<Shape>(
          reinterpret_cast<const void*>(&prefill_kernel<Shape, Mode::kSkip>));
    case PrefillMode::kTrace:
      return prefill_kernel_with<Shape>(
          reinterpret_cast<const void*>(&prefill_kernel<Shape, Mode::kTrace>));
  }
  return {};
}

template <int kDim>
PrefillKernel prefill_kernel_of(Dtype dtype, PrefillMode mode) {
  if (dtype == Dtype::kBf16) return prefill_kernel_of<Bf16, kDim>(mode);
  if (dtype == Dtype::kF16) return prefill_kernel_of<F16, kDim>(mode);
  return {};
}

}  // namespace assay::cuda
