// Joins what a subject received with the tokens it came from, then compares all rows once. Slots
// are the subject's choice, so the join comes first: by the slots that it recorded, and where those
// are illegal by the content of whole rows (SPEC VER-2.4). Columns are never matched on their own.
#include <algorithm>
#include <cstring>

#include "model/core/contract.hpp"
#include "verify/checks/checks.hpp"
#include "verify/checks/stale.hpp"

namespace assay::verify {

namespace {

std::size_t index(RankId rank) { return static_cast<std::size_t>(rank.value()); }

moe::ObservedTargets observed_targets(const RoundView& view) {
  // Counters have a check of their own: the legal ones stand in here, so that only targets and
  // slots decide how rows are joined.
  moe::ObservedTargets observed;
  for (RankId rank{0}; rank.value() < view.ep_size(); rank = rank.next()) {
    observed.target_rank.push_back(view.target_ranks_of(rank));
    observed.target_slot.push_back(view.target_slots_of(rank));
    observed.recv_counters.push_back(view.legal->recv_counters(rank));
  }
  return observed;
}

bool row_matches(const RoundView& view, RankId dst, RankId src, SlotId slot, TokenId token) {
  for (std::size_t p = 0; p < view.payloads.size(); ++p) {
    if (std::memcmp(view.recv_row(p, dst, src, slot), view.source_row(p, src, token),
                    static_cast<std::size_t>(view.payloads[p].bytes_per_token)) != 0)
      return false;
  }
  return true;
}

// The slot of every token of one block, found by content; tokens that are nowhere get the lowest
// slot that is left and are lost.
void place_by_content(RoundView& view, RankId dst, RankId src,
                      std::vector<std::int32_t>& slot_of_token) {
  const auto rows = view.legal->rows(dst, src);
  std::vector<bool> taken(rows.size(), false);
  std::vector<TokenId> missing;
  for (const auto& row : rows) {
    std::size_t slot = 0;
    // Legal slots are 0..n-1; rows that lie beyond are in nobody's slot.
    while (slot < rows.size() &&
           (taken[slot] ||
            !row_matches(view, dst, src, SlotId(static_cast<std::int32_t>(slot)), row.token)))
      ++slot;
    if (slot == rows.size()) {
      missing.push_back(row.token);
    } else {
      taken[slot] = true;
      slot_of_token[static_cast<std::size_t>(row.token.value())] = static_cast<std::int32_t>(slot);
    }
  }
  std::size_t slot = 0;
  for (const TokenId token : missing) {
    while (taken[slot]) ++slot;
    taken[slot] = true;
    slot_of_token[static_cast<std::size_t>(token.value())] = static_cast<std::int32_t>(slot);
    view.lost.push_back({dst, src, token});
  }
}

moe::DispatchPlan join_by_content(RoundView& view) {
  const moe::DispatchPlan& legal = *view.legal;
  if (legal.slot_rule() != moe::SlotRule::kCounterAnyOrder) return legal;
  const auto top_k = static_cast<std::size_t>(legal.top_k());
  std::vector<std::vector<std::int32_t>> slots(index(RankId(view.ep_size())));
  for (RankId src{0}; src.value() < view.ep_size(); src = src.next()) {
    const auto ranks = legal.target_rank(src);
    slots[index(src)].assign(ranks.size(), -1);
    const std::size_t tokens = ranks.size() / top_k;
    for (RankId dst{0}; dst.value() < view.ep_size(); dst = dst.next()) {
      std::vector<std::int32_t> slot_of_token(tokens, -1);
      place_by_content(view, dst, src, slot_of_token);
      for (std::size_t pick = 0; pick < ranks.size(); ++pick) {
        if (ranks[pick] == dst.value()) slots[index(src)][pick] = slot_of_token[pick / top_k];
      }
    }
  }
  moe::ObservedTargets found;
  for (RankId rank{0}; rank.value() < view.ep_size(); rank = rank.next()) {
    found.target_rank.push_back(legal.target_rank(rank));
    found.target_slot.push_back(slots[index(rank)]);
    found.recv_counters.push_back(legal.recv_counters(rank));
  }
  return moe::with_observed_slots(legal, found);
}

void compare_block(RoundView& view, std::size_t payload, RankId dst, RankId src) {
  const auto bytes = static_cast<std::size_t>(view.payloads[payload].bytes_per_token);
  for (const auto& row : view.joined->rows(dst, src)) {
    ++view.num_rows;
    const std::byte* got = view.recv_row(payload, dst, src, row.slot);
    if (std::memcmp(got, view.source_row(payload, src, row.token), bytes) == 0) continue;
    ++view.num_wrong_rows;
    if (view.wrong_rows.size() < kWrongMax)
      view.wrong_rows.push_back({payload, dst, src, row.slot, row.token, false});
  }
}

bool is_lost(const RoundView& view, RankId src, TokenId token) {
  return std::any_of(view.lost.begin(), view.lost.end(),
                     [&](const LostRow& lost) { return lost.src == src && lost.token == token; });
}

void compare_out(RoundView& view, RankId src) {
  const std::int32_t tokens = view.routing->num_tokens(src);
  if (tokens == 0) return;
  std::vector<const std::byte*> expert_out;
  for (const OutputBuffer& buffer : view.expert_out) expert_out.push_back(buffer.data);
  const auto row_bytes = static_cast<std::size_t>(view.out_row_bytes());
  static thread_local std::vector<std::byte> legal;
  legal.resize(row_bytes * static_cast<std::size_t>(tokens));
  view.combine->rank(*view.joined, src, expert_out, view.setup->hidden_size, legal.data());
  view.num_out += tokens;
  if (std::memcmp(legal.data(), view.out[index(src)].data, legal.size()) == 0) return;
  for (TokenId token{0}; token.value() < tokens; token = token.next()) {
    const std::byte* expected = legal.data() + row_bytes * static_cast<std::size_t>(token.value());
    if (std::memcmp(view.out_row(src, token), expected, row_bytes) == 0) continue;
    if (is_lost(view, src, token)) continue;  // which row it should have read is anybody's guess
    ++view.num_wrong_out;
    if (view.wrong_out.size() < kWrongMax) view.wrong_out.push_back({src, token, false});
  }
}

}  // namespace

void examine(RoundView& view, bool combined) {
  const moe::ObservedTargets observed = observed_targets(view);
  view.violation = moe::find_target_violation(*view.legal, observed);
  view.joined_by_content = view.violation.has_value();
  view.joined = view.joined_by_content ? join_by_content(view)
                                       : moe::with_observed_slots(*view.legal, observed);
  for (std::size_t payload = 0; payload < view.payloads.size(); ++payload) {
    for (RankId dst{0}; dst.value() < view.ep_size(); dst = dst.next()) {
      for (RankId src{0}; src.value() < view.ep_size(); src = src.next())
        compare_block(view, payload, dst, src);
    }
  }
  for (RankId src{0}; src.value() < view.ep_size(); src = src.next())
    if (combined && view.is_alive(src)) compare_out(view, src);
  for (WrongRow& wrong : view.wrong_rows) wrong.stale = find_stale_row(view, wrong).has_value();
  for (WrongOut& wrong : view.wrong_out) wrong.stale = find_stale_out(view, wrong).has_value();
}

}  // namespace assay::verify
