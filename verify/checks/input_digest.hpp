// The digest of what a subject reads of one rank: its picks and payload rows. Taken before and
// after.
#pragma once

#include "verify/checks/checks.hpp"

namespace assay::verify {

std::uint64_t input_digest(const RoundView& view, RankId rank);

}  // namespace assay::verify
