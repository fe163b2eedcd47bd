// Looks bodies up in the instantiation matrix, with SimOps for Ops. Everything here is local to the
// including file (internal linkage), because a mutant's file includes changed bodies under the same
// header names. Decides nothing.
#pragma once

#include "cuda/kernels/one_sided/matrix.hpp"
#include "verify/subject/sim_kernels.hpp"

namespace assay::verify {

static inline SimKernels::Dispatch sim_dispatch_of(int top_k) {
  return one_sided::find_dispatch<machine::SimOps>(top_k);
}

static inline SimKernels::Stage sim_stage_of(one_sided::RowFormat rows) {
  switch (rows) {
    case one_sided::RowFormat::kBf16:
      return &one_sided::stage<Bf16, machine::SimOps>;
    case one_sided::RowFormat::kF16:
      return &one_sided::stage<F16, machine::SimOps>;
    case one_sided::RowFormat::kF32:
      return &one_sided::stage<F32, machine::SimOps>;
    case one_sided::RowFormat::kE4m3:
      return nullptr;
  }
  return nullptr;
}

static inline SimKernels::Combine sim_combine_of(one_sided::Sum sum, one_sided::RowFormat rows,
                                                 one_sided::RowFormat out, int top_k) {
  using machine::SimOps;
  using one_sided::find_combine;
  using one_sided::Sum;
  switch (sum) {
    case Sum::kPayload:
      return find_combine<Sum::kPayload, SimOps>(rows, out, top_k);
    case Sum::kPayloadFtz:
      return find_combine<Sum::kPayloadFtz, SimOps>(rows, out, top_k);
    case Sum::kF32:
      return find_combine<Sum::kF32, SimOps>(rows, out, top_k);
    case Sum::kF32Ftz:
      return find_combine<Sum::kF32Ftz, SimOps>(rows, out, top_k);
    case Sum::kF32Compact:
      return find_combine<Sum::kF32Compact, SimOps>(rows, out, top_k);
    case Sum::kF32CompactFtz:
      return find_combine<Sum::kF32CompactFtz, SimOps>(rows, out, top_k);
    case Sum::kF32ThroughE4m3:
      return find_combine<Sum::kF32ThroughE4m3, SimOps>(rows, out, top_k);
    case Sum::kF32FtzThroughE4m3:
      return find_combine<Sum::kF32FtzThroughE4m3, SimOps>(rows, out, top_k);
  }
  return nullptr;
}

}  // namespace assay::verify
