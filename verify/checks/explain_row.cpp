// The guesses about a wrong received row: another token, another place, mixed columns, a lost tail.
#include "verify/checks/explain_row.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "verify/checks/stale.hpp"

namespace assay::verify {

namespace {

struct RowPlace {
  RankId src;
  TokenId token;
};

// The token whose row of `payload` these bytes are; `dst` rows first, then all tokens of all ranks.
std::optional<RowPlace> find_token(const RoundView& view, std::size_t payload,
                                   const std::byte* bytes) {
  const auto size = static_cast<std::size_t>(view.payloads[payload].bytes_per_token);
  for (RankId src{0}; src.value() < view.ep_size(); src = src.next()) {
    for (TokenId token{0}; token.value() < view.routing->num_tokens(src); token = token.next()) {
      if (std::memcmp(bytes, view.source_row(payload, src, token), size) == 0)
        return RowPlace{src, token};
    }
  }
  return std::nullopt;
}

std::optional<SlotId> slot_of(const RoundView& view, RankId dst, const RowPlace& place) {
  for (const auto& row : view.joined->rows(dst, place.src))
    if (row.token == place.token) return row.slot;
  return std::nullopt;
}

std::string belongs(const RoundView& view, RankId dst, const RowPlace& place) {
  const auto slot = slot_of(view, dst, place);
  if (!slot) {
    return fmt::format("it is the row of source {} token {}, which sends nothing to rank {}",
                       place.src.value(), place.token.value(), dst.value());
  }
  return fmt::format("it is the row of source {} token {}, which belongs in slot {}",
                     place.src.value(), place.token.value(), slot->value());
}

// Where in the whole buffer the expected row lies, when it lies at the stride of another max.
std::optional<std::string> other_place(const RoundView& view, const WrongRow& wrong) {
  const OutputBuffer& buffer =
      view.recv[wrong.payload][static_cast<std::size_t>(wrong.dst.value())];
  const std::int64_t bytes = view.payloads[wrong.payload].bytes_per_token;
  if (bytes < 8 || buffer.sparse) return std::nullopt;
  const std::byte* expected = view.source_row(wrong.payload, wrong.src, wrong.token);
  const std::byte* found =
      std::search(buffer.data, buffer.data + buffer.size, expected, expected + bytes);
  if (found == buffer.data + buffer.size) return std::nullopt;
  const std::int64_t offset = found - buffer.data;
  std::string text =
      fmt::format("the row that belongs here starts at byte {} of the buffer", offset);
  if (offset % bytes != 0) return text;
  const std::int64_t row = offset / bytes;
  text += fmt::format(", source {} slot {}", row / view.max_tokens(), row % view.max_tokens());
  if (view.previous == nullptr || wrong.src.value() == 0) return text;
  const std::int64_t max_before = view.previous->max_tokens();
  if (max_before != view.max_tokens() &&
      row == wrong.src.value() * max_before + wrong.slot.value()) {
    text += fmt::format(": the stride of {} tokens per rank that round {} had", max_before,
                        view.previous->number);
  }
  return text;
}

// Every chunk of the row stands in its column in some row of the same block, in two rows or more.
std::optional<std::string> shuffled_columns(const RoundView& view, const WrongRow& wrong) {
  const std::int64_t bytes = view.payloads[wrong.payload].bytes_per_token;
  const std::byte* got = view.recv_row(wrong.payload, wrong.dst, wrong.src, wrong.slot);
  for (const std::int64_t chunk : {16, 8, 4, 2}) {
    if (bytes % chunk != 0 || bytes / chunk < 2) continue;
    std::vector<TokenId> from;
    for (std::int64_t at = 0; at < bytes; at += chunk) {
      for (const auto& row : view.joined->rows(wrong.dst, wrong.src)) {
        const std::byte* source = view.source_row(wrong.payload, wrong.src, row.token);
        if (std::memcmp(got + at, source + at, static_cast<std::size_t>(chunk)) == 0) {
          from.push_back(row.token);
          break;
        }
      }
      if (static_cast<std::int64_t>(from.size()) != at / chunk + 1) break;
    }
    if (static_cast<std::int64_t>(from.size()) != bytes / chunk) continue;
    std::vector<TokenId> distinct = from;
    std::sort(distinct.begin(), distinct.end());
    const auto rows = std::unique(distinct.begin(), distinct.end()) - distinct.begin();
    if (rows < 2) continue;
    return fmt::format(
        "rows are mixed by column: its {} chunks of {} bytes stand in their columns "
        "in {} different rows of this block",
        from.size(), chunk, rows);
  }
  return std::nullopt;
}

// A right head and something else behind it.
std::optional<std::string> lost_tail(const RoundView& view, const WrongRow& wrong) {
  const auto bytes = static_cast<std::size_t>(view.payloads[wrong.payload].bytes_per_token);
  const std::byte* got = view.recv_row(wrong.payload, wrong.dst, wrong.src, wrong.slot);
  const std::byte* expected = view.source_row(wrong.payload, wrong.src, wrong.token);
  std::size_t head = 0;
  while (head < bytes && got[head] == expected[head]) ++head;
  if (head == 0) return std::nullopt;
  const std::byte poison =
      view.recv[wrong.payload][static_cast<std::size_t>(wrong.dst.value())].poison;
  const std::span<const std::byte> tail(got + head, bytes - head);
  const char* what = all_equal(tail, poison)         ? "was never written"
                     : all_equal(tail, std::byte{0}) ? "is zero"
                                                     : nullptr;
  std::size_t different = 0;
  for (std::size_t b = head; b < bytes; ++b) different += got[b] != expected[b] ? 1 : 0;
  if (what == nullptr && different < tail.size())
    return fmt::format("{} of {} bytes differ, the first at byte {}", different, bytes, head);
  return fmt::format("tail bytes lost from byte {} on: the tail of {} bytes {}", head, tail.size(),
                     what == nullptr ? "holds other bytes" : what);
}

}  // namespace

std::vector<std::string> explain_row(const RoundView& view, const WrongRow& wrong) {
  std::vector<std::string> sentences;
  const auto add = [&](std::optional<std::string> sentence) {
    if (sentence) sentences.push_back(*std::move(sentence));
  };
  const std::int64_t bytes = view.payloads[wrong.payload].bytes_per_token;
  const std::span<const std::byte> got(
      view.recv_row(wrong.payload, wrong.dst, wrong.src, wrong.slot),
      static_cast<std::size_t>(bytes));
  const std::byte poison =
      view.recv[wrong.payload][static_cast<std::size_t>(wrong.dst.value())].poison;
  if (all_equal(got, poison))
    sentences.push_back("nothing was written there");
  else if (all_equal(got, std::byte{0}))
    sentences.push_back("it is all zero");
  if (bytes >= 4) {  // shorter rows are equal by chance
    if (const auto place = find_token(view, wrong.payload, got.data()))
      sentences.push_back(belongs(view, wrong.dst, *place));
  }
  add(find_stale_row(view, wrong));
  if (sentences.empty()) add(shuffled_columns(view, wrong));
  if (sentences.empty()) add(lost_tail(view, wrong));
  add(other_place(view, wrong));
  return sentences;
}

std::vector<std::string> explain_written_padding(const RoundView& view, std::size_t payload,
                                                 RankId dst, RankId src, SlotId slot) {
  std::vector<std::string> sentences;
  const std::int64_t bytes = view.payloads[payload].bytes_per_token;
  const std::span<const std::byte> got(view.recv_row(payload, dst, src, slot),
                                       static_cast<std::size_t>(bytes));
  if (all_equal(got, std::byte{0})) sentences.push_back("it is all zero");
  if (bytes < 4) return sentences;
  if (const auto place = find_token(view, payload, got.data()))
    sentences.push_back(belongs(view, dst, *place));
  if (const auto stale = find_earlier_row(view, payload, dst, got.data()))
    sentences.push_back(*stale);
  return sentences;
}

}  // namespace assay::verify
