// How large a decode may become, as far as the host knows. Decides what its workspace holds (SPEC
// CUD-7.5).
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/kernels/attention/decode_plan.hpp"
#include "cuda/launch/attention_launch.hpp"

namespace assay::cuda {

struct DecodeSizes {
  std::int64_t q_len = 0, kv_len = 0;  // of the longest request
  std::int64_t units = 0;              // of a request and key head
  std::int64_t chunks = 0;             // of a unit
  std::int64_t rows = 0;               // of a unit, rounded up to an even number
  std::int64_t entries = 0;            // chunks that wait for others
  std::size_t workspace_bytes = 0;
};
// The workspace begins with the count of work; partial results follow.
inline constexpr std::size_t kDecodePartialsAt = 256;

// Of a call whose shape has been checked, or is positive.
DecodeSizes decode_sizes(const AttentionCall& call);

// How many chunks a piece of work has, so that the whole ends soonest: all of a unit's where units
// keep the blocks busy, which leaves nothing to merge; fewer where they do not, or where the last
// pieces would run alone (SPEC CUD-7.2). `units` of all requests and key heads.
std::int64_t decode_chunks_per_piece(std::int64_t units, std::int64_t chunks, std::int64_t blocks);

}  // namespace assay::cuda
