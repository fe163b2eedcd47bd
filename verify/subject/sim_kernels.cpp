// The table of our own bodies, unchanged. The only file that instantiates the whole matrix on the
// host.
#include "verify/subject/sim_kernels.hpp"

#include "verify/subject/sim_kernels_of.hpp"

namespace assay::verify {

const SimKernels& own_sim_kernels() {
  static const SimKernels kernels{&sim_dispatch_of, &one_sided::sanitize<machine::SimOps>,
                                  &sim_stage_of, &sim_combine_of};
  return kernels;
}

}  // namespace assay::verify
