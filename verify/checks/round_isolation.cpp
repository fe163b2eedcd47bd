// round.isolation: a round's outputs hold nothing of an earlier round. Decides that a wrong row
// with bytes of the round before is reported here, by its cause, and not as a row that is merely
// wrong (SPEC VER-2.5): missing waits, counters that were not reset and buffers reused too early
// end here.
#include <algorithm>

#include "verify/checks/checks.hpp"
#include "verify/checks/row_mismatch.hpp"

namespace assay::verify {

void check_round_isolation(const RoundView& view, std::vector<Mismatch>& found) {
  const auto row = std::find_if(view.wrong_rows.begin(), view.wrong_rows.end(),
                                [](const WrongRow& wrong) { return wrong.stale; });
  const auto out = std::find_if(view.wrong_out.begin(), view.wrong_out.end(),
                                [](const WrongOut& wrong) { return wrong.stale; });
  const bool in_dispatch = row != view.wrong_rows.end();
  if (!in_dispatch && out == view.wrong_out.end()) return;
  Mismatch mismatch = in_dispatch ? row_mismatch(view, "round.isolation", *row)
                                  : out_mismatch(view, "round.isolation", *out);
  mismatch.wrong = std::count_if(view.wrong_rows.begin(), view.wrong_rows.end(),
                                 [](const WrongRow& wrong) { return wrong.stale; }) +
                   std::count_if(view.wrong_out.begin(), view.wrong_out.end(),
                                 [](const WrongOut& wrong) { return wrong.stale; });
  mismatch.total = view.num_rows + view.num_out;
  mismatch.unit = "rows";
  found.push_back(std::move(mismatch));
}

}  // namespace assay::verify
