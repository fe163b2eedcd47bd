// dispatch.lists: the slot list of each local expert is the specification's, entry by entry (SPEC
// MOE-2.8), with the slots in which rows really lie; behind the last entry nothing is written.
// Decides which confusions are told apart (SPEC VER-2.6).
#include <fmt/format.h>

#include <algorithm>

#include "verify/checks/checks.hpp"

namespace assay::verify {

namespace {

struct Finding {
  std::int64_t entries = 0;
  std::int64_t wrong = 0;
  std::optional<Mismatch> first;
  bool other_order = true;  // every wrong list has the right entries
};

using Entry = std::pair<std::int32_t, std::int32_t>;  // row, pick

std::vector<Entry> legal_entries(const RoundView& view, const moe::ExpertLists& lists) {
  std::vector<Entry> entries;
  for (const moe::ExpertSlot& slot : lists.entries)
    entries.emplace_back(slot.src.value() * view.max_tokens() + slot.slot.value(), slot.k.value());
  return entries;
}

void look_at_offsets(Finding& finding, const RoundView& view, RankId dst,
                     const moe::ExpertLists& lists) {
  const auto got = view.list_offsets_of(dst);
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] == lists.offsets[i]) continue;
    ++finding.wrong;
    finding.other_order = false;
    if (finding.first) continue;
    finding.first = mismatch_of(
        "dispatch.lists",
        fmt::format("the list of local expert {} of rank {} {} at entry {}; it must at {}",
                    std::min(i, got.size() - 2), dst.value(),
                    i + 1 == got.size() ? "ends" : "begins", got[i], lists.offsets[i]),
        {{"round", view.number}, {"rank", dst.value()}, {"expert", static_cast<std::int64_t>(i)}});
    finding.first->values =
        Values{ElementFormat::kInt32, static_cast<std::uint32_t>(got[i]),
               static_cast<std::uint32_t>(static_cast<std::int32_t>(lists.offsets[i]))};
  }
}

void look_at_entries(Finding& finding, const RoundView& view, RankId dst,
                     const moe::ExpertLists& lists) {
  const auto words = view.list_entries_of(dst);
  const std::vector<Entry> legal = legal_entries(view, lists);
  std::vector<Entry> got;
  for (std::size_t i = 0; i < legal.size(); ++i) got.emplace_back(words[2 * i], words[2 * i + 1]);
  for (std::size_t e = 0; e + 1 < lists.offsets.size(); ++e) {
    const auto begin = static_cast<std::size_t>(lists.offsets[e]);
    const auto end = static_cast<std::size_t>(lists.offsets[e + 1]);
    std::vector<Entry> sorted(got.begin() + static_cast<std::ptrdiff_t>(begin),
                              got.begin() + static_cast<std::ptrdiff_t>(end));
    std::sort(sorted.begin(), sorted.end());  // as the legal ones are
    finding.other_order &= std::equal(sorted.begin(), sorted.end(),
                                      legal.begin() + static_cast<std::ptrdiff_t>(begin));
    for (std::size_t i = begin; i < end; ++i) {
      ++finding.entries;
      if (got[i] == legal[i]) continue;
      ++finding.wrong;
      if (finding.first) continue;
      finding.first = mismatch_of(
          "dispatch.lists",
          fmt::format("entry {} of local expert {} of rank {} is row {} pick {}; it must be row {} "
                      "pick {} (slot {} of source {})",
                      i - begin, e, dst.value(), got[i].first, got[i].second, legal[i].first,
                      legal[i].second, legal[i].first % view.max_tokens(),
                      legal[i].first / view.max_tokens()),
          {{"round", view.number},
           {"rank", dst.value()},
           {"expert", static_cast<std::int64_t>(e)},
           {"entry", static_cast<std::int64_t>(i - begin)}});
    }
  }
}

void look_behind(Finding& finding, const RoundView& view, RankId dst,
                 const moe::ExpertLists& lists) {
  const OutputBuffer& buffer = view.list_entries[static_cast<std::size_t>(dst.value())];
  if (buffer.sparse) return;
  const auto used = lists.entries.size() * 2 * sizeof(std::int32_t);
  if (all_equal(buffer.bytes().subspan(used), buffer.poison)) return;
  ++finding.wrong;
  finding.other_order = false;
  if (finding.first) return;
  finding.first = mismatch_of("dispatch.lists",
                              fmt::format("rank {} wrote behind the last of its {} entries",
                                          dst.value(), lists.entries.size()),
                              {{"round", view.number}, {"rank", dst.value()}});
}

}  // namespace

void check_dispatch_lists(const RoundView& view, std::vector<Mismatch>& found) {
  if (view.list_offsets.empty()) return;
  Finding finding;
  for (RankId dst{0}; dst.value() < view.ep_size(); dst = dst.next()) {
    if (!view.is_alive(dst)) continue;
    const moe::ExpertLists lists =
        moe::list_expert_slots(*view.placement, *view.routing, *view.joined, dst);
    look_at_offsets(finding, view, dst, lists);
    look_at_entries(finding, view, dst, lists);
    look_behind(finding, view, dst, lists);
  }
  if (!finding.first) return;
  if (finding.other_order)
    finding.first->diagnoses.push_back("every list has the right entries, in another order");
  finding.first->wrong = finding.wrong;
  finding.first->total = finding.entries;
  finding.first->unit = "entries";
  found.push_back(*std::move(finding.first));
}

}  // namespace assay::verify
