// Searches the buffers of the round before for the bytes at hand. Decides what cannot be a
// coincidence.
#include "verify/checks/stale.hpp"

#include <fmt/format.h>

#include <cstring>
#include <vector>

namespace assay::verify {

namespace {

// Fewer bytes than this can be equal by chance: 2^-64 for 8.
constexpr std::int64_t kStaleBytesMin = 8;

std::size_t index(RankId rank) { return static_cast<std::size_t>(rank.value()); }

// The payload of the round before that has the same name and size.
std::optional<std::size_t> same_payload(const RoundView& before, const moe::Payload& payload) {
  for (std::size_t p = 0; p < before.payloads.size(); ++p) {
    if (before.payloads[p].name == payload.name &&
        before.payloads[p].bytes_per_token == payload.bytes_per_token)
      return p;
  }
  return std::nullopt;
}

// The row that lay where `row` of the expert_out buffer of `dst` lies now, if it held a token.
const std::byte* expert_row_before(const RoundView& view, RankId dst, RankId src, SlotId slot) {
  const RoundView& before = *view.previous;
  const std::int64_t row = std::int64_t{src.value()} * view.max_tokens() + slot.value();
  const std::int64_t max = before.max_tokens();
  if (row / max >= before.ep_size()) return nullptr;
  const RankId src_before(static_cast<std::int32_t>(row / max));
  const SlotId slot_before(static_cast<std::int32_t>(row % max));
  if (!before.joined->source_of(dst, src_before, slot_before)) return nullptr;
  return before.expert_row(dst, src_before, slot_before);
}

bool out_equals(const RoundView& view, const WrongOut& wrong,
                const std::vector<const std::byte*>& terms) {
  std::vector<std::byte> row(static_cast<std::size_t>(view.out_row_bytes()));
  view.combine->row(terms, view.setup->hidden_size, row.data());
  return std::memcmp(row.data(), view.out_row(wrong.src, wrong.token), row.size()) == 0;
}

// Terms of the round before in place of one, of all remote ones, of all.
std::optional<std::string> stale_terms(const RoundView& view, const WrongOut& wrong) {
  const std::vector<const std::byte*> terms = view.terms_of(wrong.src, wrong.token);
  std::vector<const std::byte*> all = terms;
  std::vector<const std::byte*> remote = terms;
  for (std::size_t k = 0; k < terms.size(); ++k) {
    const auto target =
        view.joined->target(wrong.src, wrong.token, TopKIndex(static_cast<std::int32_t>(k)));
    if (!target) continue;
    const std::byte* row = expert_row_before(view, target->rank, wrong.src, target->slot);
    if (row == nullptr) continue;
    std::vector<const std::byte*> one = terms;
    one[k] = all[k] = row;
    if (target->rank != wrong.src) remote[k] = row;
    if (out_equals(view, wrong, one)) {
      return fmt::format("it fits when term k{} of rank {} is the row that lay there in round {}",
                         k, target->rank.value(), view.previous->number);
    }
  }
  if (remote != terms && out_equals(view, wrong, remote)) {
    return fmt::format("it fits when all rows of other ranks are those of round {}",
                       view.previous->number);
  }
  if (all != terms && out_equals(view, wrong, all))
    return fmt::format("it fits when all terms are those of round {}", view.previous->number);
  return std::nullopt;
}

}  // namespace

std::optional<std::string> find_earlier_row(const RoundView& view, std::size_t payload, RankId dst,
                                            const std::byte* got) {
  if (view.previous == nullptr) return std::nullopt;
  const auto match = same_payload(*view.previous, view.payloads[payload]);
  const std::int64_t bytes = view.payloads[payload].bytes_per_token;
  if (bytes < kStaleBytesMin || !match) return std::nullopt;
  for (RankId src{0}; src.value() < view.ep_size(); src = src.next()) {
    for (const auto& row : view.previous->joined->rows(dst, src)) {
      const std::byte* old = view.previous->recv_row(*match, dst, src, row.slot);
      if (std::memcmp(got, old, static_cast<std::size_t>(bytes)) != 0) continue;
      return fmt::format("stale: it is the row of source {} token {} slot {} of round {}",
                         src.value(), row.token.value(), row.slot.value(), view.previous->number);
    }
  }
  return std::nullopt;
}

std::optional<std::string> find_stale_row(const RoundView& view, const WrongRow& wrong) {
  const std::byte* got = view.recv_row(wrong.payload, wrong.dst, wrong.src, wrong.slot);
  const OutputBuffer& now = view.recv[wrong.payload][index(wrong.dst)];
  const auto bytes = static_cast<std::size_t>(view.payloads[wrong.payload].bytes_per_token);
  if (view.previous == nullptr || all_equal({got, bytes}, now.poison)) return std::nullopt;
  if (auto earlier = find_earlier_row(view, wrong.payload, wrong.dst, got)) return earlier;
  const auto match = same_payload(*view.previous, view.payloads[wrong.payload]);
  if (!match) return std::nullopt;
  // A new head and an old tail, in the same place.
  const OutputBuffer& before = view.previous->recv[*match][index(wrong.dst)];
  const std::int64_t offset = got - now.data;
  if (offset + static_cast<std::int64_t>(bytes) > before.size) return std::nullopt;
  const std::byte* expected = view.source_row(wrong.payload, wrong.src, wrong.token);
  const std::byte* old = before.data + offset;
  std::size_t fresh = 0;
  while (fresh < bytes && got[fresh] == expected[fresh]) ++fresh;
  if (bytes - fresh >= static_cast<std::size_t>(kStaleBytesMin) &&
      !all_equal({old + fresh, bytes - fresh}, before.poison) &&
      std::memcmp(got + fresh, old + fresh, bytes - fresh) == 0) {
    return fmt::format("stale: from byte {} on it is what lay there in round {}", fresh,
                       view.previous->number);
  }
  return std::nullopt;
}

std::optional<std::string> find_stale_out(const RoundView& view, const WrongOut& wrong) {
  if (view.previous == nullptr || view.out_row_bytes() < kStaleBytesMin) return std::nullopt;
  const std::byte* got = view.out_row(wrong.src, wrong.token);
  const OutputBuffer& before = view.previous->out[index(wrong.src)];
  const std::int64_t bytes = view.out_row_bytes();
  for (std::int64_t offset = 0; offset + bytes <= before.size; offset += bytes) {
    // Sums of nothing are all zero in any round.
    if (all_equal({got, static_cast<std::size_t>(bytes)}, std::byte{0})) break;
    if (std::memcmp(got, before.data + offset, static_cast<std::size_t>(bytes)) == 0) {
      return fmt::format("stale: it is the row of token {} of round {}", offset / bytes,
                         view.previous->number);
    }
  }
  return stale_terms(view, wrong);
}

}  // namespace assay::verify
