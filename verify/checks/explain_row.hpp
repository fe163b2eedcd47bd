// What a wrong received row could be instead. Decides the diagnoses of dispatch.rows and
// dispatch.padding (SPEC VER-2.6); each sentence is true of the whole row, not of a byte that
// happens to fit.
#pragma once

#include <string>
#include <vector>

#include "verify/checks/checks.hpp"

namespace assay::verify {

// Sentences without a full stop, the strongest first.
std::vector<std::string> explain_row(const RoundView& view, const WrongRow& wrong);

// For the bytes of a row that should hold none: "it is the row of source 1 token 3 ...".
std::vector<std::string> explain_written_padding(const RoundView& view, std::size_t payload,
                                                 RankId dst, RankId src, SlotId slot);

}  // namespace assay::verify
