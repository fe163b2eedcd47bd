// dispatch.targets: every pick goes to the only legal rank, duplicates and picks without a target
// go nowhere, slots are a permutation of 0..n-1 per (source, destination). The rules are
// model/moe's (find_target_violation); this file decides which known confusions are told apart
// (SPEC VER-2.6).
#include <fmt/format.h>

#include <functional>
#include <map>
#include <utility>

#include "verify/checks/checks.hpp"

namespace assay::verify {

namespace {

using What = moe::TargetViolation::What;

// Another rule for one token: target ranks [k], -1 for nothing.
using Rule = std::function<std::vector<std::int32_t>(const RoundView&, RankId, TokenId)>;

// The rank that owns a wire id under a rule of ownership; -1 for none.
using Owner = std::function<std::int32_t(const RoundView&, std::int32_t)>;

std::int32_t legal_owner(const RoundView& view, std::int32_t id) {
  const auto place = view.placement->place_of_wire(id);
  if (!place) return -1;
  return view.placement->rank_of(*place)->value();
}

std::vector<std::int32_t> first_wins(const RoundView& view, RankId src, TokenId token,
                                     const Owner& owner, bool mask) {
  std::vector<std::int32_t> ranks;
  for (const std::int32_t id : view.routing->topk_ids(src, token)) {
    const std::int32_t rank = owner(view, id);
    const bool known = rank >= 0 && rank < view.ep_size();
    bool sends = known && (!mask || view.is_alive(RankId(rank)));
    for (const std::int32_t earlier : ranks) sends &= earlier != rank;
    ranks.push_back(sends ? rank : -1);
  }
  return ranks;
}

std::vector<std::int32_t> last_wins(const RoundView& view, RankId src, TokenId token) {
  std::vector<std::int32_t> ranks;
  for (const std::int32_t id : view.routing->topk_ids(src, token)) {
    const std::int32_t rank = legal_owner(view, id);
    for (std::int32_t& earlier : ranks)
      if (earlier == rank) earlier = -1;
    ranks.push_back(rank >= 0 && view.is_alive(RankId(rank)) ? rank : -1);
  }
  return ranks;
}

std::vector<std::int32_t> no_dedup(const RoundView& view, RankId src, TokenId token) {
  std::vector<std::int32_t> ranks;
  for (const std::int32_t id : view.routing->topk_ids(src, token)) {
    const std::int32_t rank = legal_owner(view, id);
    ranks.push_back(rank >= 0 && view.is_alive(RankId(rank)) ? rank : -1);
  }
  return ranks;
}

// How a kernel without a range check splits: C++ division rounds towards zero, so -1 becomes 0.
std::int32_t unchecked_owner(const RoundView& view, std::int32_t id) {
  const std::int32_t base = view.setup->num_experts / view.ep_size();
  const std::int32_t more = view.setup->num_experts % view.ep_size();
  const std::int32_t boundary = more * (base + 1);
  return id < boundary ? id / (base + 1) : more + (id - boundary) / base;
}

std::int32_t even_owner(const RoundView& view, std::int32_t id) {
  if (id < 0 || id >= view.setup->num_experts) return -1;
  return std::min(id / (view.setup->num_experts / view.ep_size()), view.ep_size() - 1);
}

std::int32_t ceil_owner(const RoundView& view, std::int32_t id) {
  if (id < 0 || id >= view.setup->num_experts) return -1;
  return id / ((view.setup->num_experts + view.ep_size() - 1) / view.ep_size());
}

struct Guess {
  const char* sentence;
  Rule rule;
};

const std::vector<Guess>& guesses() {
  static const auto owned = [](Owner owner, bool mask) {
    return [owner = std::move(owner), mask](const RoundView& v, RankId src, TokenId token) {
      return first_wins(v, src, token, owner, mask);
    };
  };
  static const std::vector<Guess> list{
      {"all targets fit when the last of several picks at one rank sends the row, not the first",
       last_wins},
      {"all targets fit when every pick sends a row: duplicates are not removed", no_dedup},
      {"all targets fit when ids are not range-checked: -1 goes to rank 0",
       owned(unchecked_owner, true)},
      {"all targets fit when the mask of dead ranks is ignored", owned(legal_owner, false)},
      {"all targets fit when the remainder of num_experts / ep is given to the last rank",
       owned(even_owner, true)},
      {"all targets fit when every rank is taken to own ceil(num_experts / ep) experts",
       owned(ceil_owner, true)}};
  return list;
}

bool fits(const RoundView& view, const Rule& rule) {
  for (RankId src{0}; src.value() < view.ep_size(); src = src.next()) {
    if (!view.is_alive(src)) continue;
    const auto got = view.target_ranks_of(src);
    const auto top_k = static_cast<std::size_t>(view.routing->top_k());
    for (TokenId token{0}; token.value() < view.num_tokens(src); token = token.next()) {
      const auto expected = rule(view, src, token);
      for (std::size_t k = 0; k < top_k; ++k)
        if (got[static_cast<std::size_t>(token.value()) * top_k + k] != expected[k]) return false;
    }
  }
  return true;
}

// What is the same in all slots of the round that are no legal slot.
void explain_slots(const RoundView& view, std::vector<std::string>& sentences) {
  bool one_up = true;
  bool after_before = view.previous != nullptr;
  bool any = false;
  for (RankId src{0}; src.value() < view.ep_size(); src = src.next()) {
    if (!view.is_alive(src)) continue;
    std::map<std::int32_t, std::pair<std::int32_t, std::int32_t>> range;  // per destination
    const auto ranks = view.target_ranks_of(src);
    const auto slots = view.target_slots_of(src);
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (ranks[i] < 0 || ranks[i] >= view.ep_size()) continue;
      const auto [it, fresh] = range.try_emplace(ranks[i], slots[i], slots[i]);
      if (!fresh)
        it->second = {std::min(it->second.first, slots[i]), std::max(it->second.second, slots[i])};
    }
    for (const auto& [dst, slot] : range) {
      any = true;
      const std::int32_t rows = view.legal->recv_counter(RankId(dst), src);
      const std::int32_t before =
          view.previous == nullptr ? 0 : view.previous->legal->recv_counter(RankId(dst), src);
      one_up &= slot.first == 1 && slot.second == rows;
      after_before &= slot.first == before && slot.second == before + rows - 1;
    }
  }
  if (any && one_up) sentences.push_back("all slots are one too large");
  if (any && after_before && !one_up) {
    sentences.push_back(
        fmt::format("slots go on where those of round {} ended: counters were not "
                    "reset",
                    view.previous->number));
  }
}

std::int64_t wrong_entries(const RoundView& view, std::int64_t& total) {
  std::int64_t wrong = 0;
  for (RankId src{0}; src.value() < view.ep_size(); src = src.next()) {
    if (!view.is_alive(src)) continue;
    const auto got = view.target_ranks_of(src);
    const auto expected = view.legal->target_rank(src);
    const auto slots = view.target_slots_of(src);
    total += static_cast<std::int64_t>(got.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      const std::int32_t rows =
          expected[i] < 0 ? 0 : view.legal->recv_counter(RankId(expected[i]), src);
      const bool slot_ok = expected[i] < 0 ? slots[i] == -1 : slots[i] >= 0 && slots[i] < rows;
      wrong += got[i] == expected[i] && slot_ok ? 0 : 1;
    }
  }
  return wrong;
}

}  // namespace

void check_dispatch_targets(const RoundView& view, std::vector<Mismatch>& found) {
  if (!view.violation) return;
  const moe::TargetViolation& what = *view.violation;
  Mismatch mismatch = mismatch_of("dispatch.targets", what.sentence,
                                  {{"round", view.number}, {"rank", what.rank.value()}});
  if (what.what == What::kSlotRange || what.what == What::kSlotTaken ||
      what.what == What::kSlotRule)
    mismatch.clause = "MOE-2.3";
  if (what.token) mismatch.where.push_back({"token", what.token->value()});
  if (what.k) mismatch.where.push_back({"k", what.k->value()});
  if (what.peer) mismatch.where.push_back({"target_rank", what.peer->value()});
  mismatch.values = Values{ElementFormat::kInt32, static_cast<std::uint32_t>(what.got),
                           static_cast<std::uint32_t>(what.expected)};
  mismatch.total = 0;
  mismatch.wrong = std::max(std::int64_t{1}, wrong_entries(view, mismatch.total));
  mismatch.unit = "picks";
  const OutputBuffer& buffer = view.target_rank[static_cast<std::size_t>(what.rank.value())];
  if (buffer.size > 0 && all_equal(buffer.bytes(), buffer.poison))
    mismatch.diagnoses.push_back("target_rank of this rank was never written");
  if (what.what == What::kTargetRank) {
    for (const Guess& guess : guesses())
      if (fits(view, guess.rule)) mismatch.diagnoses.push_back(guess.sentence);
  } else {
    explain_slots(view, mismatch.diagnoses);
  }
  found.push_back(std::move(mismatch));
}

}  // namespace assay::verify
