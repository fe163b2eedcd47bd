// Experts that read through slot lists: an example of what stands between dispatch and combine. One
// linear layer per local expert; rows are gathered from where dispatch put them, results go where
// combine pulls them, and nothing is copied in between. Decides the order of its additions (SPEC
// CUD-10.1), so that a host can repeat them; it is written to be read, not to be fast.
#pragma once

#include <cstdint>

#include "cuda/launch/one_sided_launch.hpp"

namespace assay::cuda {

// Shapes: r = ep * max rows of the round, k = top_k, h = hidden size, e = local experts, n =
// entries of the slot lists.
struct ExpertGemm {
  std::uint32_t hidden_size = 0;
  std::uint32_t top_k = 0;
  std::uint32_t first_expert = 0;       // of this rank, as the ids name it
  std::uint32_t num_local_experts = 0;  // e
  // As dispatch left them in the window, and list_experts behind it.
  Address rows;            // bf16 [r, h]
  Address ids;             // int32 [r, k]
  Address router_weights;  // f32 [r, k]
  Address list_offsets;    // u32 [e + 1]
  Address list_entries;    // ListEntry [n]
  Address weights;         // bf16 [e, h out, h in]
  // Scratch.
  Address products;  // f32 [n, h]
  Address entry_of;  // u32 [r, k]: the entry of each local pick
  // The rows that combine pulls: bf16 [r, h]. Rows without a local pick are left alone.
  Address out;
};

// Two kernels on the stream, on the current device. Errors: CUDA's.
Status enqueue_expert_gemm(const ExpertGemm& gemm, const Stream& stream);

}  // namespace assay::cuda
