// One-sided MoE dispatch and combine between the ranks of one NVLink domain, as kernel bodies over
// Ops (model/core/ops.hpp): g++ compiles them for the simulated machine, nvcc for GPUs.
//
//   workspace.hpp  where everything lies in a rank's window, and the flag word
//   params.hpp     what a kernel is told at launch
//   barrier.hpp    signal and wait: flags to all peers, bounded waits, the status word
//   dispatch.hpp   tokens to the ranks of their experts           ends in a barrier
//   sanitize.hpp   ids of padding rows become the invalid id
//   stage.hpp      low-precision combine: rows become e4m3
//   combine.hpp    rows back to their token, summed               starts with a barrier
//   reduce.hpp     the order in which a token's rows are added
//   rows.hpp       moving and reading rows by the widest legal vector
//   sentinel_rows.hpp, sentinel_dispatch.hpp, sentinel_combine.hpp
//                  the same round by another protocol, for few tokens: no flags, no counts
//
// One round on one stream: dispatch, [sanitize], experts, [stage], combine; by Sentinel dispatch,
// experts, combine. One group (CTA) per token in dispatch and combine by Fence. These files decide
// the protocol (SPEC KER); they are the second route to every answer and share with the first
// (model/moe) nothing but ids and the scalar arithmetic behind Ops.
#pragma once

#include "cuda/kernels/one_sided/combine.hpp"
#include "cuda/kernels/one_sided/dispatch.hpp"
#include "cuda/kernels/one_sided/sanitize.hpp"
#include "cuda/kernels/one_sided/sentinel_combine.hpp"
#include "cuda/kernels/one_sided/sentinel_dispatch.hpp"
#include "cuda/kernels/one_sided/stage.hpp"
