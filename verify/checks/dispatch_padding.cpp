// dispatch.padding: a row that holds no token keeps what was there; its expert ids are the invalid
// id, so that no expert computes garbage (SPEC MOE-2.7). Dead sources have such rows only.
#include <fmt/format.h>

#include <cstring>

#include "verify/checks/checks.hpp"
#include "verify/checks/explain_row.hpp"

namespace assay::verify {

namespace {

struct Finding {
  std::int64_t rows = 0;
  std::int64_t wrong = 0;
  struct Place {
    std::size_t payload;
    RankId dst, src;
    SlotId slot;
  };
  std::optional<Place> first;
};

bool padding_is_right(const RoundView& view, std::size_t payload, RankId dst,
                      std::span<const std::byte> rows) {
  const moe::Payload& what = view.payloads[payload];
  if (!what.holds_expert_ids)
    return all_equal(rows, view.recv[payload][static_cast<std::size_t>(dst.value())].poison);
  const std::int32_t invalid = view.setup->invalid_expert_id;
  // Every id equals the one before it, and the first is the invalid id.
  return std::memcmp(rows.data(), &invalid, sizeof invalid) == 0 &&
         std::memcmp(rows.data(), rows.data() + sizeof invalid, rows.size() - sizeof invalid) == 0;
}

void look_at_slots(Finding& finding, const RoundView& view, std::size_t payload, RankId dst,
                   RankId src, std::int32_t from, std::int32_t to) {
  if (from >= to) return;
  const auto bytes = static_cast<std::size_t>(view.payloads[payload].bytes_per_token);
  const auto rows = static_cast<std::size_t>(to - from);
  finding.rows += to - from;
  if (padding_is_right(view, payload, dst,
                       {view.recv_row(payload, dst, src, SlotId(from)), rows * bytes}))
    return;
  for (SlotId slot(from); slot.value() < to; slot = slot.next()) {
    if (padding_is_right(view, payload, dst, {view.recv_row(payload, dst, src, slot), bytes}))
      continue;
    ++finding.wrong;
    if (!finding.first) finding.first = {payload, dst, src, slot};
  }
}

// Buffers of gigabytes: only rows in touched pages.
void look_at_touched(Finding& finding, const RoundView& view, std::size_t payload, RankId dst) {
  const std::int64_t bytes = view.payloads[payload].bytes_per_token;
  const OutputBuffer& buffer = view.recv[payload][static_cast<std::size_t>(dst.value())];
  std::int64_t next_row = 0;  // rows before it were looked at
  buffer.touched_parts([&](std::int64_t offset, std::span<const std::byte> part) {
    const std::int64_t end = offset + static_cast<std::int64_t>(part.size());
    for (std::int64_t row = std::max(next_row, offset / bytes); row * bytes < end; ++row) {
      next_row = row + 1;
      const RankId src(static_cast<std::int32_t>(row / view.max_tokens()));
      const SlotId slot(static_cast<std::int32_t>(row % view.max_tokens()));
      if (!view.joined->source_of(dst, src, slot)) {
        look_at_slots(finding, view, payload, dst, src, slot.value(), slot.value() + 1);
      }
    }
  });
}

void look_at_block(Finding& finding, const RoundView& view, std::size_t payload, RankId dst,
                   RankId src) {
  std::int32_t next = 0;
  for (const auto& row : view.joined->rows(dst, src)) {
    look_at_slots(finding, view, payload, dst, src, next, row.slot.value());
    next = row.slot.value() + 1;
  }
  look_at_slots(finding, view, payload, dst, src, next, view.max_tokens());
}

}  // namespace

void check_dispatch_padding(const RoundView& view, std::vector<Mismatch>& found) {
  Finding finding;
  for (RankId dst{0}; dst.value() < view.ep_size(); dst = dst.next()) {
    if (!view.is_alive(dst)) continue;
    for (std::size_t payload = 0; payload < view.payloads.size(); ++payload) {
      // An id payload of gigabytes is written all over, so it is read as a whole.
      if (view.recv[payload][static_cast<std::size_t>(dst.value())].sparse &&
          !view.payloads[payload].holds_expert_ids) {
        look_at_touched(finding, view, payload, dst);
        continue;
      }
      for (RankId src{0}; src.value() < view.ep_size(); src = src.next())
        look_at_block(finding, view, payload, dst, src);
    }
  }
  if (!finding.first) return;
  const auto& [payload, dst, src, slot] = *finding.first;
  const bool ids = view.payloads[payload].holds_expert_ids;
  Mismatch mismatch = mismatch_of(
      "dispatch.padding",
      fmt::format(
          "rank {} slot {} of source {} holds no token, but its row of '{}' {}", dst.value(),
          slot.value(), src.value(), view.payloads[payload].name,
          ids ? fmt::format("is not filled with the invalid id {}", view.setup->invalid_expert_id)
              : "was written"),
      {{"round", view.number},
       {"rank", dst.value()},
       {"source", src.value()},
       {"slot", slot.value()},
       {"payload", static_cast<std::int64_t>(payload)}});
  const std::byte* got = view.recv_row(payload, dst, src, slot);
  const OutputBuffer& buffer = view.recv[payload][static_cast<std::size_t>(dst.value())];
  if (ids) {
    std::int32_t k = 0;
    while (load_element(ElementFormat::kInt32, got, k) ==
           static_cast<std::uint32_t>(view.setup->invalid_expert_id))
      ++k;
    mismatch.where.push_back({"k", k});
    mismatch.values = Values{ElementFormat::kInt32, load_element(ElementFormat::kInt32, got, k),
                             static_cast<std::uint32_t>(view.setup->invalid_expert_id)};
    if (all_equal({got, static_cast<std::size_t>(view.payloads[payload].bytes_per_token)},
                  buffer.poison))
      mismatch.diagnoses.push_back("padding ids were never written");
  } else {
    const auto bytes = static_cast<std::size_t>(view.payloads[payload].bytes_per_token);
    const std::size_t byte = first_other({got, bytes}, buffer.poison);
    mismatch.where.push_back({"byte", static_cast<std::int64_t>(byte)});
    mismatch.values = Values{ElementFormat::kBytes, static_cast<std::uint32_t>(got[byte]),
                             static_cast<std::uint32_t>(buffer.poison)};
  }
  for (std::string& sentence : explain_written_padding(view, payload, dst, src, slot))
    mismatch.diagnoses.push_back(std::move(sentence));
  mismatch.wrong = finding.wrong;
  mismatch.total = finding.rows;
  mismatch.unit = "padding rows";
  found.push_back(std::move(mismatch));
}

}  // namespace assay::verify
