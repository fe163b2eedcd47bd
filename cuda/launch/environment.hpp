// Who this process is among those that a launcher started: rank, size and local rank from the
// environment of torchrun, mpirun or srun. Decides whose variables count and what is refused (SPEC
// CUD-1.1); needs neither MPI nor CUDA.
#pragma once

#include <functional>
#include <string>

#include "model/core/expected.hpp"

namespace assay::cuda {

struct ProcessPlace {
  int rank = 0;
  int size = 1;
  int local_rank = 0;    // among the processes of this machine: the device to take
  std::string launcher;  // "torchrun", "Open MPI", ...
};

using Variables = std::function<const char*(const char* name)>;  // nullptr: not set

// Errors: no complete set of variables, a value that is no number or out of range.
Expected<ProcessPlace> place_in(const Variables& variables);
Expected<ProcessPlace> place_in_environment();

}  // namespace assay::cuda
