// Loops over one row of scores on the machine's vectors: the maximum, and the argument of the
// exponential. Decides nothing: the bits are those of the scalar functions named beside each, to
// which tests hold them (SPEC ATT-5.8).
#pragma once

#include <span>
#include <string_view>

#include "model/core/bits.hpp"
#include "model/numerics/max_min.hpp"

namespace assay::attention {

// max_of over the row, in any order: NaN aside it has none. An empty row gives -inf.
F32 row_maximum(std::span<const F32> row, numerics::NanRule rule);

// out[i] such that ex2_approx_ftz(out[i]) has the bits of ex2_approx_ftz(x), x being
//   kRn  fma_rn(row[i], factor, addend, flush)
//   kRz  fma_rz(row[i], factor, addend, flush)
//   kSubtractMultiply  mul_rn(add_rn(row[i], addend, flush), factor, flush)
// out[i] may differ from x where the exponential cannot tell: in NaN bits, beyond 128, and below
// 2^-100, where both give 1. `out` may be `row`.
enum class ArgumentForm : std::uint8_t { kRn, kRz, kSubtractMultiply };
void exponent_arguments(ArgumentForm form, std::span<const F32> row, F32 factor, F32 addend,
                        bool flush, std::span<F32> out);

}  // namespace assay::attention
