// The decode kernel's instantiations for one type. Included by the files that are one type each.
// For sm_100a it is an empty kernel, which the launcher does not launch.
#pragma once

#include "cuda/kernels/attention/attention.cuh"
#include "cuda/launch/decode_kernels.hpp"

namespace assay::cuda {

template <class Shape>
DecodeKernel decode_kernel_of() {
  using namespace assay::attention_kernels;
  using T = typename Shape::Element;
  return decode_kernel_with<Shape>(reinterpret_cast<const void*>(&decode_kernel<Shape>),
                                   reinterpret_cast<const void*>(&merge_kernel<T, Shape::kHeadDim>),
                                   kMergeWarps);
}

template <class T, int kDim>
DecodeKernel decode_kernel_of(int rows) {
  using namespace assay::attention_kernels;
  if (rows <= 16) return decode_kernel_of<DecodeShape<T, kDim, 16>>();
  return decode_kernel_of<DecodeShape<T, kDim, kUnitRows>>();
}

template <class T>
DecodeKernel decode_kernel_of(int head_dim, int rows) {
  if constexpr (sizeof(T) == 2)
    if (head_dim == 64) return decode_kernel_of<T, 64>(rows);
  if (head_dim == 128) return decode_kernel_of<T, 128>(rows);
  if (head_dim == 256) return decode_kernel_of<T, 256>(rows);
  return {};
}

}  // namespace assay::cuda
