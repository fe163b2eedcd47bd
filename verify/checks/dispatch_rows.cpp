// dispatch.rows: every token's row lies, whole, in the slot that was recorded for it. Decides how
// the first wrong row is told. Rows were joined and compared by examine(); those that are left over
// from an earlier round are round.isolation's.
#include <fmt/format.h>

#include <algorithm>

#include "verify/checks/checks.hpp"
#include "verify/checks/explain_row.hpp"
#include "verify/checks/row_mismatch.hpp"

namespace assay::verify {

Mismatch row_mismatch(const RoundView& view, std::string_view check, const WrongRow& wrong) {
  const moe::Payload& payload = view.payloads[wrong.payload];
  const std::byte* got = view.recv_row(wrong.payload, wrong.dst, wrong.src, wrong.slot);
  const std::byte* expected = view.source_row(wrong.payload, wrong.src, wrong.token);
  std::int64_t byte = 0;
  while (got[byte] == expected[byte]) ++byte;
  std::string sentence = fmt::format(
      "rank {} slot {} of source {} should hold token {}'s row of '{}'; it differs from byte {} on",
      wrong.dst.value(), wrong.slot.value(), wrong.src.value(), wrong.token.value(), payload.name,
      byte);
  if (view.joined_by_content) sentence += " (recorded slots are illegal: rows joined by content)";
  Mismatch mismatch = mismatch_of(check, std::move(sentence),
                                  {{"round", view.number},
                                   {"rank", wrong.dst.value()},
                                   {"source", wrong.src.value()},
                                   {"slot", wrong.slot.value()},
                                   {"token", wrong.token.value()},
                                   {"payload", static_cast<std::int64_t>(wrong.payload)},
                                   {"byte", byte}});
  mismatch.values = Values{ElementFormat::kBytes, static_cast<std::uint32_t>(got[byte]),
                           static_cast<std::uint32_t>(expected[byte])};
  mismatch.diagnoses = explain_row(view, wrong);
  return mismatch;
}

void check_dispatch_rows(const RoundView& view, std::vector<Mismatch>& found) {
  const auto first = std::find_if(view.wrong_rows.begin(), view.wrong_rows.end(),
                                  [](const WrongRow& wrong) { return !wrong.stale; });
  if (first == view.wrong_rows.end()) return;
  Mismatch mismatch = row_mismatch(view, "dispatch.rows", *first);
  mismatch.wrong =
      view.num_wrong_rows - std::count_if(view.wrong_rows.begin(), view.wrong_rows.end(),
                                          [](const WrongRow& wrong) { return wrong.stale; });
  mismatch.total = view.num_rows;
  mismatch.unit = "rows";
  found.push_back(std::move(mismatch));
}

}  // namespace assay::verify
