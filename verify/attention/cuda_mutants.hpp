// Wrong prefill kernels on purpose, compiled by nvcc from verify/mutants/attention and present only
// in the program `assay_cuda_mutants`. Decides how they get there (SPEC
// VER-25.6); which there are is that folder.
#pragma once

#include <span>

#include "cuda/launch/attention_kernels.hpp"

namespace assay::verify {

struct CudaAttentionMutant {
  const char* name;       // "vote_not_strict"
  const char* title;      // a sentence
  const char* clause;     // of model/SPEC.md that it breaks
  const char* caught_by;  // the property that must find it
  // For bf16 heads of 128; function null: of dense kernels there is no wrong one.
  cuda::PrefillKernel (*kernel)(cuda::PrefillMode mode);
};

// Called once, before main: the table that make_mutant.py writes does.
void register_cuda_attention_mutants(std::span<const CudaAttentionMutant* const> mutants);
std::span<const CudaAttentionMutant* const> registered_cuda_attention_mutants();

}  // namespace assay::verify
