// How fast the decode kernel is: bf16 and e4m3, 64 query heads, 4 key heads, d 128, 64 requests of
// 16k keys and one of 64k, without skipping, with skipping that never happens, and with given
// shares of skipped tiles (the first tile of every chunk is high, because it is kept anyhow).
// Prints one JSON object per measurement, and one for a kernel that only reads the same bytes.
// Tensors are rotated so that nothing is in L2; launches are recorded back to back in a graph,
// merge included. Decides nothing.
#pragma once

#include "model/core/expected.hpp"

namespace assay::cuda {

// With `variants` every measurement of bf16 is repeated with kernels that are tuned otherwise.
Status bench_decode(int repeats, bool variants);

}  // namespace assay::cuda
