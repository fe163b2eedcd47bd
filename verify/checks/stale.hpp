// Finds bytes of the round before where bytes of this round belong. Decides when a wrong row counts
// as stale (SPEC VER-2.5): a coincidence must be impossible, so short rows never do.
#pragma once

#include <optional>
#include <string>

#include "verify/checks/checks.hpp"

namespace assay::verify {

// How the stale bytes got there, as a sentence without a full stop.
std::optional<std::string> find_stale_row(const RoundView& view, const WrongRow& wrong);
// The bytes of a whole row of `payload` at `dst`, wherever they were found.
std::optional<std::string> find_earlier_row(const RoundView& view, std::size_t payload, RankId dst,
                                            const std::byte* got);
std::optional<std::string> find_stale_out(const RoundView& view, const WrongOut& wrong);

}  // namespace assay::verify
