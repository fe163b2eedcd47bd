// One legal tensor against one tensor of a file: whether it is there as it should be, and the first
// bits that differ. Decides SPEC VER-7.4.
#pragma once

#include <optional>

#include "verify/golden/op.hpp"

namespace assay::verify {

// The tensor of that name. Errors: it is missing, or of another dtype or shape. 8-bit floats may
// come as U8, F4 as U8 with half the last axis: frameworks have no such types.
Expected<TensorView> find_got(const GoldenTensor& legal, const TensorFile& got);

// Nothing if all compared elements have the legal bits.
std::optional<Mismatch> first_difference(const GoldenTensor& legal, const TensorView& got,
                                         const std::string& check);

// All tensors of `answer` that `got` must have are there with legal bits; findings count as wrong.
bool agrees(const GoldenAnswer& answer, const TensorFile& got);

// Elements that first_difference looks at.
std::uint64_t compared_elements(const GoldenTensor& legal);

}  // namespace assay::verify
