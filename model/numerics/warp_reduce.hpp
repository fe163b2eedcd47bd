// Reductions by shuffles: which value meets which. Decides SPEC NUM-3.8; the operation is the
// caller's, and so is the sequence of distances, because it fixes the tree ("16, 8, 4, 2, 1" in
// most kernels, "2, 1" inside the quads of an MMA accumulator).
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "model/core/contract.hpp"

namespace assay::numerics {

// shfl.sync.bfly: in each step lane i combines its value with that of lane i ^ distance, its own as
// the first operand. A commutative operation gives every lane of a group the same bits.
template <class T, std::size_t N, class Op>
constexpr std::array<T, N> reduce_butterfly(std::array<T, N> lanes,
                                            std::span<const std::size_t> distances, Op op) {
  for (const std::size_t distance : distances) {
    CONTRACT(distance < N, distance, N);
    const std::array<T, N> before = lanes;
    for (std::size_t i = 0; i < N; ++i) lanes[i] = op(before[i], before[i ^ distance]);
  }
  return lanes;
}

// shfl.sync.down: lane i combines with lane i + distance, and with itself where there is none. Lane
// 0 holds the result.
template <class T, std::size_t N, class Op>
constexpr std::array<T, N> reduce_down(std::array<T, N> lanes,
                                       std::span<const std::size_t> distances, Op op) {
  for (const std::size_t distance : distances) {
    CONTRACT(distance < N, distance, N);
    const std::array<T, N> before = lanes;
    for (std::size_t i = 0; i < N; ++i) {
      lanes[i] = op(before[i], i + distance < N ? before[i + distance] : before[i]);
    }
  }
  return lanes;
}

}  // namespace assay::numerics
