// Rows of one block matched by what they hold, where their slots are unknown. Decides only what is
// paired with what; that rows are whole rows over all payloads is the caller's part (SPEC VER-7.6).
#pragma once

#include <string>
#include <vector>

namespace assay::verify {

// `legal` in the order of `got`: where got[i] is a legal row that no earlier one took, that row;
// what is left over stands at the places that matched nothing, in its own order. Both have one
// size.
std::vector<std::string> join_rows(const std::vector<std::string>& legal,
                                   const std::vector<std::string>& got);

}  // namespace assay::verify
