// What a program holds of wrong CUDA kernels, and its words for what it does not.
#include "verify/mutants/cuda_mutants.hpp"

#include <fmt/format.h>

#include "model/core/text.hpp"

namespace assay::verify {

namespace {

CudaMutants& registry() {
  static CudaMutants mutants;
  return mutants;
}

}  // namespace

void register_cuda_mutants(CudaMutants mutants) { registry() = mutants; }

Expected<const Mutant*> find_cuda_mutant(std::string_view name) {
  std::vector<std::string_view> held;
  for (const Mutant* mutant : registry().held) {
    if (name == mutant->name) return mutant;
    held.emplace_back(mutant->name);
  }
  for (const NotOnCuda& other : registry().not_built)
    if (name == other.name)
      return bad_input(
          fmt::format("mutant {} is not compiled for CUDA: {}", in_quotes(name), other.reason));
  return no_such_cuda_mutant(name, "dispatch and combine", held);
}

Error no_such_cuda_mutant(std::string_view name, std::string_view family,
                          const std::vector<std::string_view>& held) {
  if (held.empty())
    return bad_input(
        fmt::format("mutant is {}; this program holds no wrong CUDA kernel, the one of target "
                    "assay_cuda_mutants of a build with CUDA does",
                    in_quotes(name)));
  return bad_input(fmt::format("mutant is {}; of {} on CUDA, there are {}", in_quotes(name), family,
                               joined(held)));
}

}  // namespace assay::verify
