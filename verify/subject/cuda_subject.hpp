// The CUDA subject: our kernels on real GPUs, behind the same C interface as every other subject.
// Decides the options and what a failed round leaves (SPEC CUD-4.4); a round is cuda_worker.hpp's,
// what a process makes only once cuda_pool.hpp's. Exists only in builds with nvcc.
#pragma once

#include "cuda/launch/one_sided_launch.hpp"
#include "verify/subject/subject.h"

namespace assay::verify {

// Options, all optional, as "key=value key=value" (SPEC CUD-5.4):
//   ranks      "devices": one GPU per rank; "emulated": all ranks on device 0, as ranges of blocks
//              of one launch; default: devices if there are enough, else emulated
//   protocol   "fence" (default), "sentinel" or "auto"
//   sentinel_max_tokens   for "auto": larger rounds go by Fence (default 0: all do)
//   slots      "counter" (default), or "ordered": by Fence too a routing fixes its slots
//   first_epoch   even; where the phases begin (default 0)
//   threads    of a group (default 256; 0: the launcher's choice, SPEC CUD-3.3)
//   overlap    1: a kernel may begin while the one before it still runs (SPEC CUD-3.4)
//   timeout_ms budget of one wait (default 10000)
//   delay_us   up to so long each rank's kernels wait on the device before they begin, at random
//   skew_us    up to so long each device's host thread sleeps before each phase, at random
//   graph      1: each phase is recorded in a graph, which later rounds update
//   replays    whole rounds replayed from a graph, without a host in between, before every round
const assay_subject& cuda_subject();

// The functions of a subject that runs the kernels that `find` gives; those of a mutant forward to
// these. A group for which `find` has none but our own is not served: its verdict would be ours.
int cuda_create(cuda::FindKernels find, const assay_group_config* config, void** group,
                assay_message* message);
int cuda_run(void* group, const assay_round* rounds, int32_t num_rounds, assay_experts experts,
             void* context, assay_message* message);
void cuda_destroy(void* group);
int cuda_slot_rule(void* group, int32_t max_tokens_per_rank);

}  // namespace assay::verify
