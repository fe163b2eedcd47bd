// The CUDA subject of a build without CUDA: there is none, and it says so.
#include "verify/attention/cuda_attention.hpp"

#include <fmt/format.h>

#include "model/core/text.hpp"
#include "verify/attention/long.hpp"

namespace assay::verify {

Expected<std::unique_ptr<AttentionSubject>> load_cuda_attention(
    std::optional<std::string_view> mutant) {
  if (mutant)
    return bad_input(
        fmt::format("mutant is {}; this program holds no wrong CUDA kernel", in_quotes(*mutant)));
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
