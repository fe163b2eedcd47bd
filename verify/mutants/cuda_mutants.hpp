// Wrong kernels on a GPU: those of verify/mutants that nvcc compiled too, present only in the
// program `assay_cuda_mutants`. Decides how they get there and what is said of one that a program
// does not hold (SPEC VER-4.4); which there are, and where each is caught, is on_cuda.txt.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/core/expected.hpp"
#include "verify/mutants/mutants.hpp"

namespace assay::verify {

// A mutant that is not compiled for CUDA.
struct NotOnCuda {
  const char* name;
  const char* reason;  // a sentence
};

struct CudaMutants {
  std::span<const Mutant* const> held;
  std::span<const NotOnCuda> not_built;
};

// Called once, before main: the table that make_mutant.py writes does.
void register_cuda_mutants(CudaMutants mutants);

// Errors: none of that name; the sentence says why there is none.
Expected<const Mutant*> find_cuda_mutant(std::string_view name);

// Of a mutant that is not among `held`, those that this program has of a family ("attention").
Error no_such_cuda_mutant(std::string_view name, std::string_view family,
                          const std::vector<std::string_view>& held);

}  // namespace assay::verify
