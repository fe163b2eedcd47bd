// The subject `cuda` of attention on the current device. In a build without CUDA it says that there
// is none. Decides SPEC VER-25.5: how a wait ends, and that a device whose kernel failed is not
// used again. What a subject runs is device_subject.hpp's.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "verify/attention/subject.hpp"

namespace assay::verify {

// Errors (unsupported): a build without CUDA, no device, one that is not sm_90; (bad input): a
// mutant that this program does not have.
Expected<std::unique_ptr<AttentionSubject>> load_cuda_attention(
    std::optional<std::string_view> mutant);

// Names of wrong kernels that this program holds: none in `assay`, all of verify/mutants/attention
// in `assay_cuda_mutants`.
std::vector<std::string_view> cuda_attention_mutants();

}  // namespace assay::verify
