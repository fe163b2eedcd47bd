// Wrong attention kernels on purpose, compiled by nvcc from verify/mutants/attention and present
// only in the program `assay_cuda_mutants`. Decides how they get there, and which calls are theirs
// (SPEC VER-25.6); which there are is that folder.
#pragma once

#include <span>

#include "cuda/launch/attention_kernels.hpp"
#include "cuda/launch/decode_kernels.hpp"

namespace assay::verify {

struct CudaAttentionMutant {
  const char* name;       // "vote_not_strict"
  const char* title;      // a sentence
  const char* clause;     // of model/SPEC.md that it breaks
  const char* caught_by;  // the property that must find it
  Dtype dtype;            // of the only kernels that it replaces, with heads of kHeadDim
  // One of these; the other is null. Of dense prefill kernels there is no wrong one: function null.
  cuda::PrefillKernel (*prefill)(cuda::PrefillMode mode);
  cuda::DecodeKernel (*decode)(int rows);

  static constexpr int kHeadDim = 128;
  bool replaces(const cuda::AttentionCall& call) const {
    return call.dtype == dtype && call.head_dim == kHeadDim;
  }
};

// The kernels that a call runs: a mutant's where it has one for the call, else the right ones.
// `mutant` may be null.
inline cuda::PrefillKernel prefill_kernel_for(const CudaAttentionMutant* mutant,
                                              const cuda::AttentionCall& call) {
  if (mutant != nullptr && mutant->prefill != nullptr && mutant->replaces(call)) {
    const cuda::PrefillKernel wrong = mutant->prefill(cuda::prefill_mode(call));
    if (wrong.function != nullptr) return wrong;
  }
  return cuda::find_prefill_kernel(call);
}
inline cuda::DecodeKernel decode_kernel_for(const CudaAttentionMutant* mutant,
                                            const cuda::AttentionCall& call) {
  if (mutant != nullptr && mutant->decode != nullptr && mutant->replaces(call))
    return mutant->decode(cuda::decode_rows(call));
  return cuda::find_decode_kernel(call);
}

// Called once, before main: the table that make_mutant.py writes does.
void register_cuda_attention_mutants(std::span<const CudaAttentionMutant* const> mutants);
std::span<const CudaAttentionMutant* const> registered_cuda_attention_mutants();

}  // namespace assay::verify
