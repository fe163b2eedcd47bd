// From a request to an operation's input: the file with its schema, and the parameters that file
// and command line give. Decides SPEC VER-7.1.
#pragma once

#include "verify/golden/golden.hpp"
#include "verify/golden/op.hpp"

namespace assay::verify {

// Opens a file of tensors that is not of another schema, version or operation.
Expected<TensorFile> open_golden(const std::string& path, const GoldenOp& op);

// The parameters of `file`, overridden by `settings` and `profile`, completed by fallbacks. Errors:
// unknown keys, keys given twice, required ones that nobody gives.
Expected<GoldenInput> read_parameters(const GoldenOp& op, const TensorFile& file,
                                      const std::vector<std::string>& settings,
                                      const std::optional<std::string>& profile);

// assay.params of a written file: one JSON object, keys in order.
std::string parameters_json(const GoldenOp& op, const GoldenInput& in);

}  // namespace assay::verify
