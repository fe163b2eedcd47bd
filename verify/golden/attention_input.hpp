// What golden attention reads: rows and parameters as every reader of such files does
// (model/attention/file_input.hpp), and the small tensors next to them. Decides the limits of those
// (SPEC VER-21.7).
#pragma once

#include <memory>
#include <vector>

#include "model/attention/file_input.hpp"
#include "verify/golden/op.hpp"

namespace assay::verify {

// Errors: everything in the file or the parameters that is inconsistent or beyond the limits, with
// the value and what is allowed; nothing is allocated by a size that was not checked.
Expected<std::unique_ptr<const attention::FileInput>> read_attention(const GoldenInput& in);

// The parameters that read_attention() knows, for golden and check.
std::vector<GoldenParameter> attention_parameters(std::string_view profile_names);

}  // namespace assay::verify
