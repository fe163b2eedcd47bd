// The sums in the payload's format and those that read through e4m3, for sim_kernels.cpp.
#include "cuda/kernels/one_sided/matrix.hpp"
#include "verify/subject/sim_kernels.hpp"

namespace assay::verify {

using machine::SimOps;
using one_sided::find_combine;
using one_sided::Sum;

SimKernels::Combine other_sim_combine(Sum sum, one_sided::RowFormat rows, one_sided::RowFormat out,
                                      int top_k) {
  switch (sum) {
    case Sum::kPayload:
      return find_combine<Sum::kPayload, SimOps>(rows, out, top_k);
    case Sum::kPayloadFtz:
      return find_combine<Sum::kPayloadFtz, SimOps>(rows, out, top_k);
    case Sum::kF32ThroughE4m3:
      return find_combine<Sum::kF32ThroughE4m3, SimOps>(rows, out, top_k);
    case Sum::kF32FtzThroughE4m3:
      return find_combine<Sum::kF32FtzThroughE4m3, SimOps>(rows, out, top_k);
    default:
      return nullptr;
  }
}

}  // namespace assay::verify
