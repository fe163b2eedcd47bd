// Somebody's one-sided kernels (one_sided_kernels.h) as a subject: one thread, stream and window
// per rank, every rank on a GPU of its own or all of them on one. Decides what Assay does around
// the kernels: copies, poison, canaries, waits with an end (SPEC CUD-5.5). Exists only in builds
// with nvcc.
#pragma once

#include "verify/subject/kernels_library.hpp"
#include "verify/subject/subject.h"

namespace assay::verify {

// Options, all optional, as "key=value key=value"; what is not among them goes to the library:
//   ranks       "devices": one GPU per rank; "emulated": all ranks on device 0, a stream each;
//               default: devices if there are enough, else emulated
//   timeout_ms  until a rank's part of a round must have ended (default 10000)
//   skew_us     up to so long each rank's host thread sleeps before each phase, at random
//   graph       1: each phase is recorded in a graph, which later rounds update
//   replays     whole rounds replayed from a graph, without a host in between, before every round
//   together    tokens of a round that ranks on one GPU may have in all (default 512): blocks that
//               wait for each other must be resident together
//   keep_recv   1: receive buffers are not poisoned, for kernels to which their content matters
//
// The table lives as long as the process. Error: a process holds one library, and has another.
Expected<const assay_subject*> kernels_subject(KernelsLibrary library);

}  // namespace assay::verify
