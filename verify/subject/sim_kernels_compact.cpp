// The compacting sums of our own bodies, for sim_kernels.cpp.
#include "cuda/kernels/one_sided/matrix.hpp"
#include "verify/subject/sim_kernels.hpp"

namespace assay::verify {

using one_sided::Sum;

SimKernels::Combine compact_sim_combine(Sum sum, one_sided::RowFormat rows,
                                        one_sided::RowFormat out, int top_k) {
  return sum == Sum::kF32CompactFtz
             ? one_sided::find_combine<Sum::kF32CompactFtz, machine::SimOps>(rows, out, top_k)
             : one_sided::find_combine<Sum::kF32Compact, machine::SimOps>(rows, out, top_k);
}

}  // namespace assay::verify
