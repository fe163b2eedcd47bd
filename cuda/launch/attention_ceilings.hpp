// What this GPU does at best, for the benchmark: reading memory, copying it, and matrix
// instructions alone on random operands in shared memory. Decides SPEC CUD-8.2: what a ceiling is.
// Enqueued on the stream; timing is the caller's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/launch/one_sided_launch.hpp"
#include "model/core/dtype.hpp"

namespace assay::cuda {

// Reads `bytes` (a multiple of 16) with vector loads; `sink` gets a word in a case that does not
// happen.
void read_ceiling(const void* from, std::size_t bytes, std::uint32_t* sink, int multiprocessors,
                  Stream stream);
void copy_ceiling(const void* from, void* to, std::size_t bytes, int multiprocessors,
                  Stream stream);

// Every multiprocessor computes `rounds` of kMatrixRoundFlop operations, in chains as long as those
// of attention's two products. `operands`: kMatrixOperandBytes of random elements in device memory.
inline constexpr std::size_t kMatrixOperandBytes = 48 * 1024;
inline constexpr int kMatrixTiles = 32;  // a round: of 128 x 256 x 128 bytes of k
constexpr double matrix_round_flop(Dtype dtype) {
  return 2.0 * 128 * 256 * (dtype == Dtype::kF8E4m3 ? 128 : 64) * kMatrixTiles;
}
void matrix_ceiling(Dtype dtype, const void* operands, int rounds, float* sink, int multiprocessors,
                    Stream stream);

}  // namespace assay::cuda
