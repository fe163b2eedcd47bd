// Sentinel's bodies of our own, for sim_kernels.cpp: dispatch and the plain fp32 sums.
#include "cuda/kernels/one_sided/matrix.hpp"
#include "verify/subject/sim_kernels.hpp"

namespace assay::verify {

using machine::SimOps;
using one_sided::find_combine_in;
using one_sided::RowFormat;
using one_sided::SentinelBodies;
using one_sided::Sum;

SimKernels::SentinelDispatch sentinel_sim_dispatch(int top_k) {
  return one_sided::find_dispatch_in<SentinelBodies, SimOps>(top_k);
}

SimKernels::SentinelCombine sentinel_sim_combine(Sum sum, RowFormat rows, RowFormat out,
                                                 int top_k) {
  switch (sum) {
    case Sum::kF32:
      return find_combine_in<SentinelBodies, Sum::kF32, SimOps>(rows, out, top_k);
    case Sum::kF32Ftz:
      return find_combine_in<SentinelBodies, Sum::kF32Ftz, SimOps>(rows, out, top_k);
    default:
      return sentinel_other_sim_combine(sum, rows, out, top_k);
  }
}

}  // namespace assay::verify
