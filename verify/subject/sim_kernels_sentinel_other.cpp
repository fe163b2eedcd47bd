// Sentinel's other sums, for sim_kernels.cpp.
#include "cuda/kernels/one_sided/matrix.hpp"
#include "verify/subject/sim_kernels.hpp"

namespace assay::verify {

using machine::SimOps;
using one_sided::find_combine_in;
using one_sided::RowFormat;
using one_sided::SentinelBodies;
using one_sided::Sum;

SimKernels::SentinelCombine sentinel_other_sim_combine(Sum sum, RowFormat rows, RowFormat out,
                                                       int top_k) {
  switch (sum) {
    case Sum::kF32Compact:
      return find_combine_in<SentinelBodies, Sum::kF32Compact, SimOps>(rows, out, top_k);
    case Sum::kF32CompactFtz:
      return find_combine_in<SentinelBodies, Sum::kF32CompactFtz, SimOps>(rows, out, top_k);
    case Sum::kPayload:
      return find_combine_in<SentinelBodies, Sum::kPayload, SimOps>(rows, out, top_k);
    case Sum::kPayloadFtz:
      return find_combine_in<SentinelBodies, Sum::kPayloadFtz, SimOps>(rows, out, top_k);
    case Sum::kF32ThroughE4m3:
      return find_combine_in<SentinelBodies, Sum::kF32ThroughE4m3, SimOps>(rows, out, top_k);
    case Sum::kF32FtzThroughE4m3:
      return find_combine_in<SentinelBodies, Sum::kF32FtzThroughE4m3, SimOps>(rows, out, top_k);
    default:
      return nullptr;
  }
}

}  // namespace assay::verify
