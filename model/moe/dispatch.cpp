// Plans of dispatch, the judgement of what a subject recorded, and receive buffers. Decides
// SPEC MOE-2; everything public is described in dispatch.hpp.
#include "model/moe/dispatch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace assay::moe {

namespace {

constexpr std::array<std::string_view, 4> kSlotRuleNames = {"counter", "canonical", "prefix",
                                                            "token_index"};

std::size_t index_of(RankId rank) { return static_cast<std::size_t>(rank.value()); }

}  // namespace

std::string_view slot_rule_name(SlotRule rule) {
  return kSlotRuleNames[static_cast<std::size_t>(rule)];
}

Expected<SlotRule> parse_slot_rule(std::string_view name) {
  for (std::size_t i = 0; i < kSlotRuleNames.size(); ++i)
    if (kSlotRuleNames[i] == name) return static_cast<SlotRule>(i);
  return bad_input(
      fmt::format("slot_rule is \"{}\"; allowed are counter, canonical, prefix and "
                  "token_index",
                  name));
}

// --- the plan -----------------------------------------------------------------------------------

Expected<DispatchPlan> plan_dispatch(const Placement& placement, const Routing& routing,
                                     SlotRule rule, const RankMask& alive) {
  if (placement.ep_size() != routing.ep_size())
    return bad_input(fmt::format("experts are placed on {} ranks but tokens come from {}",
                                 placement.ep_size(), routing.ep_size()));
  DispatchPlan plan;
  plan.ep_size_ = routing.ep_size();
  plan.top_k_ = routing.top_k();
  plan.max_tokens_per_rank_ = routing.max_tokens_per_rank();
  plan.slot_rule_ = rule;
  plan.alive_ = alive;
  const auto ep = static_cast<std::size_t>(plan.ep_size_);
  const auto picks =
      static_cast<std::size_t>(routing.total_tokens()) * static_cast<std::size_t>(plan.top_k_);
  plan.target_rank_.assign(picks, -1);
  plan.target_slot_.assign(picks, -1);
  plan.recv_counters_.assign(ep * ep, 0);
  plan.first_token_.push_back(0);
  std::size_t pick = 0;
  // A rank without tokens is a source like any other, with empty lists (SPEC MOE-2.9).
  for (RankId src{0}; src.value() < plan.ep_size_; src = src.next()) {
    plan.first_token_.push_back(plan.first_token_.back() + routing.num_tokens(src));
    if (!alive.alive(src)) {  // a dead rank sends nothing (SPEC MOE-2.2)
      pick += routing.topk_ids(src).size();
      continue;
    }
    for (TokenId token{0}; token.value() < routing.num_tokens(src); token = token.next()) {
      const auto first = plan.target_rank_.begin() + static_cast<std::ptrdiff_t>(pick);
      for (const std::int32_t id : routing.topk_ids(src, token)) {
        const std::size_t here = pick++;
        const auto place = placement.place_of_wire(id);
        if (!place) continue;  // a pick without a target (SPEC MOE-1.4)
        const RankId dst = *placement.rank_of(*place);
        if (!alive.alive(dst)) continue;  // (SPEC MOE-2.2)
        // The lowest k of a token that aims at a rank sends the row (SPEC MOE-2.1).
        const auto now = plan.target_rank_.begin() + static_cast<std::ptrdiff_t>(here);
        if (std::find(first, now, dst.value()) != now) continue;
        std::int32_t& counter = plan.recv_counters_[plan.pair(dst, src)];
        plan.target_rank_[here] = dst.value();
        plan.target_slot_[here] = rule == SlotRule::kTokenIndex ? token.value() : counter;
        ++counter;  // (SPEC MOE-2.3, MOE-2.4)
      }
    }
  }
  plan.index_rows();
  return plan;
}

std::size_t DispatchPlan::pair(RankId dst, RankId src) const {
  CONTRACT(dst.value() >= 0 && dst.value() < ep_size_, dst, ep_size_);
  CONTRACT(src.value() >= 0 && src.value() < ep_size_, src, ep_size_);
  return index_of(dst) * static_cast<std::size_t>(ep_size_) + index_of(src);
}

// Sorts the rows of every block by slot: a counting sort by block, then by slot where the slots are
// not already ascending.
void DispatchPlan::index_rows() {
  first_row_.assign(recv_counters_.size() + 1, 0);
  for (std::size_t i = 0; i < recv_counters_.size(); ++i)
    first_row_[i + 1] = first_row_[i] + recv_counters_[i];
  rows_.resize(static_cast<std::size_t>(first_row_.back()));
  auto next = first_row_;
  for (RankId src{0}; src.value() < ep_size_; src = src.next()) {
    const auto ranks = target_rank(src);
    const auto slots = target_slot(src);
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (ranks[i] < 0) continue;
      const auto row = static_cast<std::size_t>(next[pair(RankId{ranks[i]}, src)]++);
      const auto token = static_cast<std::int32_t>(i / static_cast<std::size_t>(top_k_));
      rows_[row] = {SlotId{slots[i]}, TokenId{token}};
    }
  }
  const auto by_slot = [](const Row& a, const Row& b) { return a.slot < b.slot; };
  for (std::size_t i = 0; i + 1 < first_row_.size(); ++i) {
    const auto begin = rows_.begin() + first_row_[i];
    const auto end = rows_.begin() + first_row_[i + 1];
    if (!std::is_sorted(begin, end, by_slot)) std::sort(begin, end, by_slot);
  }
}

std::int32_t DispatchPlan::num_tokens(RankId src) const {
  CONTRACT(src.value() >= 0 && src.value() < ep_size_, src, ep_size_);
  return static_cast<std::int32_t>(first_token_[index_of(src) + 1] - first_token_[index_of(src)]);
}

std::span<const std::int32_t> DispatchPlan::target_rank(RankId src) const {
  const auto k = static_cast<std::size_t>(top_k_);
  const auto tokens = static_cast<std::size_t>(num_tokens(src));
  return std::span(target_rank_)
      .subspan(static_cast<std::size_t>(first_token_[index_of(src)]) * k, tokens * k);
}

std::span<const std::int32_t> DispatchPlan::target_slot(RankId src) const {
  const auto k = static_cast<std::size_t>(top_k_);
  const auto tokens = static_cast<std::size_t>(num_tokens(src));
  return std::span(target_slot_)
      .subspan(static_cast<std::size_t>(first_token_[index_of(src)]) * k, tokens * k);
}

std::optional<Target> DispatchPlan::target(RankId src, TokenId token, TopKIndex k) const {
  CONTRACT(token.value() >= 0 && token.value() < num_tokens(src), src, token, num_tokens(src));
  CONTRACT(k.value() >= 0 && k.value() < top_k_, k, top_k_);
  const auto pick = static_cast<std::size_t>(token.value()) * static_cast<std::size_t>(top_k_) +
                    static_cast<std::size_t>(k.value());
  const std::int32_t rank = target_rank(src)[pick];
  if (rank < 0) return std::nullopt;
  return Target{RankId{rank}, SlotId{target_slot(src)[pick]}};
}

std::span<const std::int32_t> DispatchPlan::recv_counters(RankId dst) const {
  return std::span(recv_counters_)
      .subspan(pair(dst, RankId{0}), static_cast<std::size_t>(ep_size_));
}

std::int32_t DispatchPlan::recv_counter(RankId dst, RankId src) const {
  return recv_counters_[pair(dst, src)];
}

std::span<const DispatchPlan::Row> DispatchPlan::rows(RankId dst, RankId src) const {
  const std::size_t block = pair(dst, src);
  const auto begin = static_cast<std::size_t>(first_row_[block]);
  return std::span(rows_).subspan(begin, static_cast<std::size_t>(first_row_[block + 1]) - begin);
}

std::optional<TokenId> DispatchPlan::source_of(RankId dst, RankId src, SlotId slot) const {
  const auto block = rows(dst, src);
  const auto row = std::lower_bound(block.begin(), block.end(), slot,
                                    [](const Row& r, SlotId s) { return r.slot < s; });
  if (row == block.end() || row->slot != slot) return std::nullopt;
  return row->token;
}

// --- what a subject recorded --------------------------------------------------------------------

namespace {

using What = TargetViolation::What;

struct Where {
  RankId rank;
  std::optional<RankId> peer;
  std::optional<TokenId> token;
  std::optional<TopKIndex> k;
};

TargetViolation violation(What what, const Where& where, std::int64_t got, std::int64_t expected,
                          const std::string& rest) {
  std::string place = fmt::format("rank {}", where.rank.value());
  if (where.token) place += fmt::format(" token {}", where.token->value());
  if (where.k) place += fmt::format(" pick {}", where.k->value());
  return {what, where.rank, where.peer, where.token, where.k, got, expected, place + ": " + rest};
}

Where pick_place(RankId src, std::size_t pick, std::int32_t top_k) {
  const auto k = static_cast<std::size_t>(top_k);
  return {src, std::nullopt, TokenId{static_cast<std::int32_t>(pick / k)},
          TopKIndex{static_cast<std::int32_t>(pick % k)}};
}

std::optional<TargetViolation> wrong_size(RankId rank, const char* name, std::size_t got,
                                          std::size_t expected) {
  if (got == expected) return std::nullopt;
  return violation(What::kSize, {rank, {}, {}, {}}, static_cast<std::int64_t>(got),
                   static_cast<std::int64_t>(expected),
                   fmt::format("{} has {} elements, must have {}", name, got, expected));
}

std::optional<TargetViolation> wrong_rank(const DispatchPlan& plan, RankId src,
                                          std::span<const std::int32_t> got) {
  const auto expected = plan.target_rank(src);
  if (auto wrong = wrong_size(src, "target_rank", got.size(), expected.size())) return wrong;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] == expected[i]) continue;
    const char* why = expected[i] < 0 ? "nothing may be sent for this pick"
                      : got[i] < 0    ? "a row must be sent for this pick"
                                      : "the expert lives elsewhere";
    return violation(What::kTargetRank, pick_place(src, i, plan.top_k()), got[i], expected[i],
                     fmt::format("target_rank is {}, must be {} ({})", got[i], expected[i], why));
  }
  return std::nullopt;
}

// `owner` [dst, slot] holds the last token that took a slot, tagged with its source by `stamp`.
std::optional<TargetViolation> wrong_slot(const DispatchPlan& plan, RankId src,
                                          std::span<const std::int32_t> got,
                                          std::vector<std::int64_t>& owner) {
  const auto ranks = plan.target_rank(src);
  const auto expected = plan.target_slot(src);
  if (auto wrong = wrong_size(src, "target_slot", got.size(), expected.size())) return wrong;
  const std::int64_t max = plan.max_tokens_per_rank();
  const std::int64_t stamp = (std::int64_t{src.value()} + 1) * max;  // tokens are below max
  for (std::size_t i = 0; i < got.size(); ++i) {
    Where where = pick_place(src, i, plan.top_k());
    if (ranks[i] < 0) {
      if (got[i] == -1) continue;
      return violation(
          What::kSlotRange, where, got[i], -1,
          fmt::format("target_slot is {}, must be -1: this pick sent nothing", got[i]));
    }
    where.peer = RankId{ranks[i]};
    const bool by_token = plan.slot_rule() == SlotRule::kTokenIndex;
    const std::int64_t slots = by_token ? max : plan.recv_counter(*where.peer, src);
    if (got[i] < 0 || got[i] >= slots)
      return violation(What::kSlotRange, where, got[i], expected[i],
                       fmt::format("target_slot is {}; rank {} has slots 0 to {} for it", got[i],
                                   ranks[i], slots - 1));
    std::int64_t& taken = owner[static_cast<std::size_t>(ranks[i] * max + got[i])];
    if (taken >= stamp)
      return violation(What::kSlotTaken, where, got[i], expected[i],
                       fmt::format("slot {} of rank {} already holds token {} of this rank", got[i],
                                   ranks[i], taken - stamp));
    taken = stamp + where.token->value();
    if (plan.slot_rule() != SlotRule::kCounterAnyOrder && got[i] != expected[i])
      return violation(What::kSlotRule, where, got[i], expected[i],
                       fmt::format("target_slot is {}, must be {} under slot rule {}", got[i],
                                   expected[i], slot_rule_name(plan.slot_rule())));
  }
  return std::nullopt;
}

std::optional<TargetViolation> wrong_counter(const DispatchPlan& plan, RankId dst,
                                             std::span<const std::int32_t> got) {
  const auto expected = plan.recv_counters(dst);
  if (auto wrong = wrong_size(dst, "recv_counters", got.size(), expected.size())) return wrong;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] == expected[i]) continue;
    const RankId src{static_cast<std::int32_t>(i)};
    return violation(What::kCounter, {dst, src, {}, {}}, got[i], expected[i],
                     fmt::format("recv_counters[{}] is {}, must be {}: rank {} sent it {} rows", i,
                                 got[i], expected[i], i, expected[i]));
  }
  return std::nullopt;
}

}  // namespace

// (SPEC MOE-2.5)
std::optional<TargetViolation> find_target_violation(const DispatchPlan& plan,
                                                     const ObservedTargets& observed) {
  const auto ep = static_cast<std::size_t>(plan.ep_size());
  CONTRACT(observed.target_rank.size() == ep, observed.target_rank.size(), ep);
  CONTRACT(observed.target_slot.size() == ep, observed.target_slot.size(), ep);
  CONTRACT(observed.recv_counters.size() == ep, observed.recv_counters.size(), ep);
  const auto first = [&](auto&& check) -> std::optional<TargetViolation> {
    for (RankId rank{0}; rank.value() < plan.ep_size(); rank = rank.next())
      if (plan.alive(rank))
        if (auto wrong = check(rank)) return wrong;
    return std::nullopt;
  };
  if (auto wrong = first(
          [&](RankId src) { return wrong_rank(plan, src, observed.target_rank[index_of(src)]); }))
    return wrong;
  std::vector<std::int64_t> owner(ep * static_cast<std::size_t>(plan.max_tokens_per_rank()), 0);
  if (auto wrong = first([&](RankId src) {
        return wrong_slot(plan, src, observed.target_slot[index_of(src)], owner);
      }))
    return wrong;
  return first(
      [&](RankId dst) { return wrong_counter(plan, dst, observed.recv_counters[index_of(dst)]); });
}

DispatchPlan with_observed_slots(const DispatchPlan& plan, const ObservedTargets& observed) {
  const auto wrong = find_target_violation(plan, observed);
  CONTRACT(!wrong, wrong->sentence);
  DispatchPlan actual = plan;
  auto out = actual.target_slot_.begin();
  for (RankId src{0}; src.value() < plan.ep_size(); src = src.next()) {
    const auto slots =
        plan.alive(src) ? observed.target_slot[index_of(src)] : plan.target_slot(src);
    out = std::copy(slots.begin(), slots.end(), out);
  }
  actual.index_rows();
  return actual;
}

// --- receive buffers ----------------------------------------------------------------------------

std::int64_t recv_bytes(const DispatchPlan& plan, const Payload& payload) {
  return std::int64_t{plan.ep_size()} * plan.max_tokens_per_rank() * payload.bytes_per_token;
}

// [src, slot, byte], packed; all in 64 bits: 256 ranks of 149,797 tokens overflow 32 (SPEC
// MOE-2.6).
std::int64_t recv_row_offset(const DispatchPlan& plan, const Payload& payload, RankId src,
                             SlotId slot) {
  return (std::int64_t{src.value()} * plan.max_tokens_per_rank() + slot.value()) *
         payload.bytes_per_token;
}

namespace {

// Fills rows [first, last) of one source's block with the invalid id.
void fill_invalid(std::span<std::byte> block, std::int64_t bytes_per_token, std::int64_t first,
                  std::int64_t last, std::int32_t invalid_id) {
  std::byte* to = block.data() + first * bytes_per_token;
  std::byte* const end = block.data() + last * bytes_per_token;
  for (; to < end; to += sizeof invalid_id) std::memcpy(to, &invalid_id, sizeof invalid_id);
}

}  // namespace

void build_recv(const DispatchPlan& plan, RankId dst, const Payload& payload,
                std::span<const std::byte* const> sources, std::int32_t invalid_id,
                std::span<std::byte> recv) {
  const std::int64_t bytes = payload.bytes_per_token;
  CONTRACT(bytes >= 1, payload.name, bytes);
  CONTRACT(static_cast<std::int64_t>(recv.size()) == recv_bytes(plan, payload), recv.size(),
           recv_bytes(plan, payload));
  CONTRACT(sources.size() == static_cast<std::size_t>(plan.ep_size()), sources.size());
  CONTRACT(!payload.holds_expert_ids || bytes == std::int64_t{4} * plan.top_k(), bytes);
  const std::int64_t max = plan.max_tokens_per_rank();
  for (RankId src{0}; src.value() < plan.ep_size(); src = src.next()) {
    const auto block =
        recv.subspan(static_cast<std::size_t>(recv_row_offset(plan, payload, src, SlotId{0})),
                     static_cast<std::size_t>(max * bytes));
    const std::byte* const from = sources[index_of(src)];
    std::int64_t next = 0;  // the first slot that is not yet decided
    for (const auto& row : plan.rows(dst, src)) {
      CONTRACT(from != nullptr, src, "a source with rows has no payload");
      if (payload.holds_expert_ids) fill_invalid(block, bytes, next, row.slot.value(), invalid_id);
      std::memcpy(block.data() + std::int64_t{row.slot.value()} * bytes,
                  from + std::int64_t{row.token.value()} * bytes, static_cast<std::size_t>(bytes));
      next = std::int64_t{row.slot.value()} + 1;
    }
    // Padding rows: only ids are written (SPEC MOE-2.7).
    if (payload.holds_expert_ids) fill_invalid(block, bytes, next, max, invalid_id);
  }
}

Status check_invalid_id(const Placement& placement, std::int32_t invalid_id) {
  if (!placement.place_of_wire(invalid_id)) return Done{};
  return bad_input(
      fmt::format("the invalid expert id is {}, which names an expert; allowed are ids "
                  "outside 0 to {}",
                  invalid_id, placement.num_experts() - 1));
}

}  // namespace assay::moe
