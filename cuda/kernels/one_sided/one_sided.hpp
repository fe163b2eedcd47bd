// One-sided MoE dispatch and combine between the ranks of one NVLink domain, as kernel bodies over
// Ops (model/core/ops.hpp): g++ compiles them for the simulated machine, nvcc for GPUs.
//
//   workspace.hpp  where everything lies in a rank's window, and the flag word
//   params.hpp     what a kernel is told at launch
//   barrier.hpp    signal and wait: flags to all peers, bounded waits, the status word
//   order_slots.hpp  slots in the order of tokens, ahead of dispatch, where somebody wants that
//   dispatch.hpp   tokens to the ranks of their experts           ends in a barrier
//   statistics.hpp loads of experts that ride along with dispatch
//   sanitize.hpp   ids of padding rows become the invalid id
//   expert_lists.hpp  the received rows of each local expert, for a GEMM that gathers them
//   stage.hpp      low-precision combine: rows become e4m3
//   combine.hpp    rows back to their token, summed               starts with a barrier
//   reduce.hpp     the order in which a token's rows are added
//   group_prefix.hpp  what the threads of a group before this one have counted
//   rows.hpp       moving and reading rows by the widest legal vector
//   pieces.hpp     how Fence's dispatch shares a token's rows out over its threads
//   sentinel_rows.hpp, sentinel_dispatch.hpp, sentinel_combine.hpp
//                  the same round by another protocol, for few tokens: no flags, no counts
//
// One round on one stream: [order_slots], dispatch, [sanitize], [list_experts], experts, [stage],
// combine; by Sentinel dispatch, [list_experts], experts, combine. By Fence one group (CTA) per
// token in dispatch, one or more in combine. These files decide the protocol (SPEC KER); they are
// the second route to every answer and share with the first (model/moe) nothing but ids and the
// scalar arithmetic behind Ops.
#pragma once

#include "cuda/kernels/one_sided/combine.hpp"
#include "cuda/kernels/one_sided/dispatch.hpp"
#include "cuda/kernels/one_sided/expert_lists.hpp"
#include "cuda/kernels/one_sided/order_slots.hpp"
#include "cuda/kernels/one_sided/sanitize.hpp"
#include "cuda/kernels/one_sided/sentinel_combine.hpp"
#include "cuda/kernels/one_sided/sentinel_dispatch.hpp"
#include "cuda/kernels/one_sided/stage.hpp"
