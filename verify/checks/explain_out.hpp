// What a wrong combined row could be instead: other arithmetics, other orders, other rows. Decides
// the diagnoses of combine.bits (SPEC VER-2.6). A guess fires when it reproduces all bits of every
// wrong row that was kept (at most kWrongMax), or of the first one, and says which.
#pragma once

#include <string>
#include <vector>

#include "verify/checks/checks.hpp"

namespace assay::verify {

// Sentences without a full stop, the strongest first. `wrong` must be one of the view's.
std::vector<std::string> explain_out(const RoundView& view, const WrongOut& wrong);

}  // namespace assay::verify
