// memory.bounds: nothing is written outside an output buffer. Decides which buffer is named and how
// the distance is told. What may not be written inside a buffer is dispatch.padding's.
#include <fmt/format.h>

#include "verify/checks/checks.hpp"

namespace assay::verify {

namespace {

struct Finding {
  std::int64_t buffers = 0;
  std::int64_t wrong = 0;
  std::optional<Mismatch> first;
};

void look_at(Finding& finding, const RoundView& view, const OutputBuffer& buffer, RankId rank,
             const std::string& name) {
  ++finding.buffers;
  const auto before = buffer.guard_before();
  const auto after = buffer.guard_after();
  const bool before_ok = all_equal(before, kGuardByte);
  if (before_ok && all_equal(after, kGuardByte)) return;
  ++finding.wrong;
  if (finding.first) return;
  std::int64_t overwritten = 0;
  for (const std::byte b : before_ok ? after : before) overwritten += b != kGuardByte ? 1 : 0;
  const auto at = static_cast<std::int64_t>(first_other(before_ok ? after : before, kGuardByte));
  const std::int64_t byte = before_ok ? buffer.size + at : at - kGuardBytes;
  finding.first = mismatch_of(
      "memory.bounds",
      fmt::format("{} bytes {} {} of rank {} were overwritten, the first at byte {} of a buffer of "
                  "{} bytes",
                  overwritten, before_ok ? "behind" : "before", name, rank.value(), byte,
                  buffer.size),
      {{"round", view.number}, {"rank", rank.value()}, {"byte", byte}});
  finding.first->values =
      Values{ElementFormat::kBytes,
             static_cast<std::uint32_t>((before_ok ? after : before)[static_cast<std::size_t>(at)]),
             static_cast<std::uint32_t>(kGuardByte)};
}

}  // namespace

void check_memory_bounds(const RoundView& view, std::vector<Mismatch>& found) {
  Finding finding;
  for (RankId rank{0}; rank.value() < view.ep_size(); rank = rank.next()) {
    const auto i = static_cast<std::size_t>(rank.value());
    for (std::size_t p = 0; p < view.payloads.size(); ++p)
      look_at(finding, view, view.recv[p][i], rank, "recv '" + view.payloads[p].name + "'");
    look_at(finding, view, view.recv_counters[i], rank, "recv_counters");
    look_at(finding, view, view.target_rank[i], rank, "target_rank");
    look_at(finding, view, view.target_slot[i], rank, "target_slot");
    if (!view.statistics.empty())
      look_at(finding, view, view.statistics[i], rank, "gathered_statistics");
    if (!view.list_offsets.empty()) {
      look_at(finding, view, view.list_offsets[i], rank, "list_offsets");
      look_at(finding, view, view.list_entries[i], rank, "list_entries");
    }
    look_at(finding, view, view.expert_out[i], rank, "expert_out");
    look_at(finding, view, view.out[i], rank, "out");
  }
  if (!finding.first) return;
  finding.first->wrong = finding.wrong;
  finding.first->total = finding.buffers;
  finding.first->unit = "buffers";
  found.push_back(*std::move(finding.first));
}

}  // namespace assay::verify
