// One wrong received row as a Mismatch, for the two checks that speak of such rows.
#pragma once

#include "verify/checks/checks.hpp"

namespace assay::verify {

Mismatch row_mismatch(const RoundView& view, std::string_view check, const WrongRow& wrong);
Mismatch out_mismatch(const RoundView& view, std::string_view check, const WrongOut& wrong);

}  // namespace assay::verify
