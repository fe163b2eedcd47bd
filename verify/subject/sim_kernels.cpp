// The table of our own bodies, unchanged, with SimOps for Ops. The instantiation matrix is large,
// so it is compiled in five files: dispatch and the plain fp32 sums of Fence here, the others
// beside.
#include "verify/subject/sim_kernels.hpp"

#include "cuda/kernels/one_sided/matrix.hpp"

namespace assay::verify {

using machine::SimOps;
using one_sided::find_combine;
using one_sided::RowFormat;
using one_sided::Sum;

namespace {

SimKernels::Dispatch dispatch_of(int top_k) { return one_sided::find_dispatch<SimOps>(top_k); }

SimKernels::Stage stage_of(RowFormat rows) {
  switch (rows) {
    case RowFormat::kBf16:
      return &one_sided::stage<Bf16, SimOps>;
    case RowFormat::kF16:
      return &one_sided::stage<F16, SimOps>;
    case RowFormat::kF32:
      return &one_sided::stage<F32, SimOps>;
    case RowFormat::kE4m3:
      return nullptr;
  }
  return nullptr;
}

SimKernels::Combine combine_of(Sum sum, RowFormat rows, RowFormat out, int top_k) {
  switch (sum) {
    case Sum::kF32:
      return find_combine<Sum::kF32, SimOps>(rows, out, top_k);
    case Sum::kF32Ftz:
      return find_combine<Sum::kF32Ftz, SimOps>(rows, out, top_k);
    case Sum::kF32Compact:
    case Sum::kF32CompactFtz:
      return compact_sim_combine(sum, rows, out, top_k);
    case Sum::kPayload:
    case Sum::kPayloadFtz:
    case Sum::kF32ThroughE4m3:
    case Sum::kF32FtzThroughE4m3:
      return other_sim_combine(sum, rows, out, top_k);
  }
  return nullptr;
}

}  // namespace

void own_order_slots(SimOps& ops, const one_sided::OrderSlotsParams& params) {
  one_sided::order_slots(ops, params);
}
void own_expert_lists(SimOps& ops, const one_sided::ExpertListParams& params) {
  one_sided::list_experts(ops, params);
}

const SimKernels& own_sim_kernels() {
  static const SimKernels kernels{
      &dispatch_of, &one_sided::sanitize<SimOps>, &stage_of,
      &combine_of,  &sentinel_sim_dispatch,       &sentinel_sim_combine};
  return kernels;
}

}  // namespace assay::verify
