// The simulated subject: our kernels' bodies run by the simulated machine, behind the same C
// interface as every other subject. Decides how a round becomes stream operations; what a body does
// is cuda/kernels, what the machine does is model/machine.
#pragma once

#include "verify/subject/sim_kernels.hpp"
#include "verify/subject/subject.h"

namespace assay::verify {

// Our own kernels.
const assay_subject& simulated_subject();

// The functions of a subject that runs `kernels`; the subject of a mutant forwards to these.
// Options, all optional, as "key=value key=value":
//   group_size     threads of a group (default 4)
//   resident_ctas  groups of a rank in flight at once (default: all)
//   first_epoch    value of the phase word at the start, even (default 0); to test its wrapping
//   longest_run    operations between two choices of the scheduler (default 64)
//   timeouts       "fire": waits that can never end time out instead of being a deadlock
//   protocol       fence (default), sentinel, or auto: Sentinel for rounds of few tokens
//   sentinel_max_tokens  of a round, the most for which auto takes Sentinel (default 0)
//   slots          counter (default), or ordered: by Fence too a routing fixes its slots
int sim_create(const SimKernels& kernels, const assay_group_config* config, void** group,
               assay_message* message);
int sim_run(void* group, const assay_round* rounds, int32_t num_rounds, assay_experts experts,
            void* context, assay_message* message);
void sim_destroy(void* group);
int sim_slot_rule(void* group, int32_t max_tokens_per_rank);

}  // namespace assay::verify
