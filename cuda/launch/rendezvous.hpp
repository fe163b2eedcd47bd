// One message from rank 0 to all processes of a job, through a path that they share: how NCCL's id
// reaches them without MPI. Decides how a file that an earlier job left behind is told from this
// job's, and how long anybody waits (SPEC CUD-1.2). Needs no CUDA.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "model/core/expected.hpp"

namespace assay::cuda {

struct Rendezvous {
  std::string path;  // "<path>.0" and "<path>.<rank>" are written beside each other
  int rank = 0;
  int size = 1;
  int timeout_ms = 60'000;
};

// Rank 0 returns `message`; the others return what rank 0 gave here. Returns at rank 0 only when
// all have it. Every rank asks under a number of its own that no earlier job can have answered;
// what is left of an earlier job is overwritten, and nothing is left when all have returned.
// Errors: a path that cannot be written, and, after timeout_ms, who did not come.
Expected<std::vector<std::byte>> receive_from_rank_0(const Rendezvous& meeting,
                                                     const std::vector<std::byte>& message);

}  // namespace assay::cuda
