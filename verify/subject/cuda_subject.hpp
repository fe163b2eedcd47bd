// The CUDA subject: our kernels on real GPUs, behind the same C interface as every other subject.
// Decides how a round becomes copies and launches on each rank's stream; what a kernel does is
// cuda/kernels. Exists only in builds with nvcc.
#pragma once

#include "verify/subject/subject.h"

namespace assay::verify {

// Options, all optional, as "key=value key=value":
//   ranks      "devices": one GPU per rank; "emulated": all ranks on device 0; default: devices if
//              there are enough, else emulated
//   threads    of a group (default 256)
//   timeout_ms budget of one wait (default 10000)
//   delay_us   up to so long each rank sleeps before each phase, at random (default 0)
const assay_subject& cuda_subject();

}  // namespace assay::verify
