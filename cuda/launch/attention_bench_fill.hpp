// Tensors for the benchmark, made on the device: random mantissas plus a direction that makes key
// tiles high or low for a unit of query rows. Decides nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/launch/one_sided_launch.hpp"

namespace assay::cuda {

// Fills rows [rows, heads, dim] of bf16, or of e4m3 if `fp8`; dim is a multiple of 4. Elements 0 to
// codes - 1 of a row hold the code of its block of block_rows rows instead: +-strength, drawn per
// (block, head / heads_per_code); with codes == 1, the code is strength for a share `high` of the
// blocks, and for every high_every-th one unless that is 0, and -strength for others; strength < 0
// means |strength| for every block (queries).
struct BenchFill {
  void* to;
  bool fp8;
  std::int64_t rows;
  int heads, dim;
  int block_rows, codes, heads_per_code;
  float strength, high;
  std::uint32_t seed;
  int high_every = 0;
};
void fill(const BenchFill& what, Stream stream);

// Reads bytes once, a multiple of 16, as fast as device memory gives them: what a kernel that reads
// them is measured against. `sink` is a word of device memory that is hardly ever written.
void read_stream(const void* from, std::size_t bytes, void* sink, Stream stream);

}  // namespace assay::cuda
