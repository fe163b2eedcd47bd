// The CUDA subject of a build without CUDA: there is none, and it says so.
#include "verify/attention/cuda_attention.hpp"

#include "verify/attention/long.hpp"
#include "verify/mutants/cuda_mutants.hpp"

namespace assay::verify {

Expected<std::unique_ptr<AttentionSubject>> load_cuda_attention(
    std::optional<std::string_view> mutant) {
  if (mutant) return no_such_cuda_mutant(*mutant, "attention", {});
  return unsupported(
      "subject \"cuda\" needs a build with nvcc and the CUDA runtime, and this build is without");
}

std::vector<std::string_view> cuda_attention_mutants() { return {}; }

Expected<LongResult> run_long(const LongCase&, const LongOptions& options) {
  std::optional<std::string_view> mutant;
  if (!options.mutant.empty()) mutant = options.mutant;
  return load_cuda_attention(mutant).error();
}

}  // namespace assay::verify
