// The one-sided bodies instantiated for the simulated machine, as a table of functions. The table
// of our own kernels is own_sim_kernels(); every mutant (verify/mutants) brings a table in which
// some entries come from a changed copy of the bodies. Decides nothing about what a body does.
#pragma once

#include "cuda/kernels/one_sided/params.hpp"
#include "model/machine/machine.hpp"

namespace assay::verify {

// Our own bodies ahead of dispatch and behind it; a table that names no others has these.
void own_order_slots(machine::SimOps& ops, const one_sided::OrderSlotsParams& params);
void own_expert_lists(machine::SimOps& ops, const one_sided::ExpertListParams& params);

struct SimKernels {
  using Dispatch = void (*)(machine::SimOps&, const one_sided::DispatchParams&);
  using OrderSlots = void (*)(machine::SimOps&, const one_sided::OrderSlotsParams&);
  using ExpertLists = void (*)(machine::SimOps&, const one_sided::ExpertListParams&);
  using Sanitize = void (*)(machine::SimOps&, const one_sided::SanitizeParams&);
  using Stage = void (*)(machine::SimOps&, const one_sided::StageParams&);
  using Combine = void (*)(machine::SimOps&, const one_sided::CombineParams&);
  using SentinelDispatch = void (*)(machine::SimOps&, const one_sided::SentinelDispatchParams&);
  using SentinelCombine = void (*)(machine::SimOps&, const one_sided::SentinelCombineParams&);

  // Each returns null for what the build does not instantiate.
  Dispatch (*dispatch)(int top_k);
  Sanitize sanitize;
  Stage (*stage)(one_sided::RowFormat rows);
  Combine (*combine)(one_sided::Sum sum, one_sided::RowFormat rows, one_sided::RowFormat out,
                     int top_k);
  SentinelDispatch (*sentinel_dispatch)(int top_k);
  SentinelCombine (*sentinel_combine)(one_sided::Sum sum, one_sided::RowFormat rows,
                                      one_sided::RowFormat out, int top_k);
  OrderSlots order_slots = &own_order_slots;
  ExpertLists expert_lists = &own_expert_lists;
};

const SimKernels& own_sim_kernels();

// Parts of its tables, compiled apart.
SimKernels::Combine compact_sim_combine(one_sided::Sum sum, one_sided::RowFormat rows,
                                        one_sided::RowFormat out, int top_k);
SimKernels::Combine other_sim_combine(one_sided::Sum sum, one_sided::RowFormat rows,
                                      one_sided::RowFormat out, int top_k);
SimKernels::SentinelDispatch sentinel_sim_dispatch(int top_k);
SimKernels::SentinelCombine sentinel_sim_combine(one_sided::Sum sum, one_sided::RowFormat rows,
                                                 one_sided::RowFormat out, int top_k);
SimKernels::SentinelCombine sentinel_other_sim_combine(one_sided::Sum sum,
                                                       one_sided::RowFormat rows,
                                                       one_sided::RowFormat out, int top_k);

}  // namespace assay::verify
