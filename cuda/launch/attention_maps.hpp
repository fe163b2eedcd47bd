// Maps of tensors for the copy engine, made by the driver, which is asked for by name: programs
// that link this need no -lcuda. Decides the boxes that copies move (SPEC CUD-6.1).
#pragma once

#include <cuda.h>

#include "cuda/launch/attention_launch.hpp"

namespace assay::cuda {

// A map with axes element, row, head and request (or page), of boxes of 128 bytes by `box_rows`
// rows, 128-byte swizzled. `requests` is 1 for packed rows. What lies outside reads as zeros.
// What is not in L2 is fetched by 256 bytes, 128, or, with 0, as asked. Written to `map`, which is
// over-aligned and passes badly by value.
Status tensor_map(std::string_view name, const AttentionRows& rows, Dtype dtype, int head_dim,
                  int heads, std::int64_t requests, int box_rows, int fetch_bytes,
                  CUtensorMap& map);

}  // namespace assay::cuda
