// Dispatch: which token goes to which rank and into which slot, how many rows each pair of ranks
// exchanges, and what the receive buffers hold. It decides deduplication, slots, dead ranks and
// padding; it does not move bytes the way a kernel does, and it knows no flags or fences.
//
//   auto plan = plan_dispatch(placement, routing, SlotRule::kCounterAnyOrder);   // Expected
//   if (auto wrong = find_target_violation(*plan, observed)) ...                 // a wrong kernel
//   const DispatchPlan actual = with_observed_slots(*plan, observed);            // its permutation
//   build_recv(actual, RankId{dst}, payload, sources, invalid_id, arena);
//
// A receive buffer is rank-major: [src, slot, bytes_per_token] with max_tokens_per_rank slots per
// source, packed, no padding (SPEC MOE-2.6).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/core/expected.hpp"
#include "model/core/id.hpp"
#include "model/moe/placement.hpp"
#include "model/moe/rank_mask.hpp"
#include "model/moe/routing.hpp"

namespace assay::moe {

// Which slots are legal within one (source, destination) block of n rows (SPEC MOE-2.3).
enum class SlotRule : std::uint8_t {
  kCounterAnyOrder,  // any permutation of 0..n-1; a plan holds the canonical one
  kCanonical,        // ascending by token: the normal form in which a set of rows is written down
  kPrefixScan,       // a kernel's promise of the same slots, by an exclusive scan over its tokens
  kTokenIndex,       // the slot is the token's index: rows are sparse, counters only count
};
// "counter", "canonical", "prefix", "token_index".
std::string_view slot_rule_name(SlotRule rule);
Expected<SlotRule> parse_slot_rule(std::string_view name);

struct Target {
  RankId rank;
  SlotId slot;
  friend bool operator==(const Target&, const Target&) = default;
};

// All of a round's targets. Built by plan_dispatch, or by with_observed_slots from what a subject
// recorded. A value; it keeps no reference to what it was made from.
class DispatchPlan {
 public:
  std::int32_t ep_size() const { return ep_size_; }
  std::int32_t top_k() const { return top_k_; }
  std::int32_t max_tokens_per_rank() const { return max_tokens_per_rank_; }
  SlotRule slot_rule() const { return slot_rule_; }
  std::int32_t num_tokens(RankId src) const;
  bool alive(RankId rank) const { return alive_.alive(rank); }

  // Where pick k of a token went; nothing if it sent no row (a duplicate target, a pick without a
  // target, a dead rank at either end).
  std::optional<Target> target(RankId src, TokenId token, TopKIndex k) const;
  // The same in wire form, -1 for nothing: [t, k].
  std::span<const std::int32_t> target_rank(RankId src) const;
  std::span<const std::int32_t> target_slot(RankId src) const;

  // Rows that `dst` got from each source: [ep]; and from one.
  std::span<const std::int32_t> recv_counters(RankId dst) const;
  std::int32_t recv_counter(RankId dst, RankId src) const;

  // The token of `src` whose row is in that slot of `dst`; nothing if the slot holds no row. Any
  // slot value may be asked for. Cost: a binary search among the block's rows.
  std::optional<TokenId> source_of(RankId dst, RankId src, SlotId slot) const;
  // The rows of one block: slot and token, ascending by slot. Size: recv_counter(dst, src).
  struct Row {
    SlotId slot;
    TokenId token;
  };
  std::span<const Row> rows(RankId dst, RankId src) const;

  std::int64_t total_rows() const { return static_cast<std::int64_t>(rows_.size()); }

 private:
  friend Expected<DispatchPlan> plan_dispatch(const Placement&, const Routing&, SlotRule,
                                              const RankMask&);
  friend DispatchPlan with_observed_slots(const DispatchPlan&, const struct ObservedTargets&);
  DispatchPlan() = default;
  void index_rows();
  std::size_t pair(RankId dst, RankId src) const;

  std::int32_t ep_size_ = 1;
  std::int32_t top_k_ = 1;
  std::int32_t max_tokens_per_rank_ = 1;
  SlotRule slot_rule_ = SlotRule::kCanonical;
  RankMask alive_ = RankMask::all();
  std::vector<std::int64_t> first_token_;    // [ep + 1]
  std::vector<std::int32_t> target_rank_;    // [all tokens, k]
  std::vector<std::int32_t> target_slot_;    // [all tokens, k]
  std::vector<std::int32_t> recv_counters_;  // [dst, src]
  std::vector<std::int64_t> first_row_;      // [dst, src] + 1 into rows_
  std::vector<Row> rows_;                    // by (dst, src, slot)
};

// The plan of a round. Cost: a few operations per pick. Errors: placement and routing of different
// ep_size. Under kCounterAnyOrder the plan holds the canonical slots.
Expected<DispatchPlan> plan_dispatch(const Placement& placement, const Routing& routing,
                                     SlotRule rule, const RankMask& alive = RankMask::all());

// What a subject recorded, in wire form. Spans of dead ranks are not looked at.
struct ObservedTargets {
  std::vector<std::span<const std::int32_t>> target_rank;    // [src] -> [t, k]
  std::vector<std::span<const std::int32_t>> target_slot;    // [src] -> [t, k]
  std::vector<std::span<const std::int32_t>> recv_counters;  // [dst] -> [src]
};

// The first thing that is wrong with a subject's targets, in the order: target ranks, slots (by
// source, token, k), counters (by destination, source). For a counter, token and k are absent and
// `peer` is the source; for a slot, `peer` is the destination.
struct TargetViolation {
  enum class What : std::uint8_t {
    kSize,        // a span has the wrong number of elements
    kTargetRank,  // another rank than the only legal one, or a row where none is legal
    kSlotRange,   // a slot outside the block, or not -1 where nothing is sent
    kSlotTaken,   // two tokens of one source in one slot of one destination
    kSlotRule,    // in range and free, but not the slot that the rule demands
    kCounter,     // recv_counters is not the number of rows
  };
  What what;
  RankId rank;  // the rank whose array is wrong
  std::optional<RankId> peer;
  std::optional<TokenId> token;
  std::optional<TopKIndex> k;
  std::int64_t got = 0;
  std::int64_t expected = 0;
  std::string sentence;  // all of it, for people; ends without a full stop
};
std::optional<TargetViolation> find_target_violation(const DispatchPlan& plan,
                                                     const ObservedTargets& observed);

// The same plan with the subject's slots. `observed` must be without violation (CONTRACT).
DispatchPlan with_observed_slots(const DispatchPlan& plan, const ObservedTargets& observed);

// One payload: opaque packed rows. Its meaning matters only where rows hold no token: the id
// payload
// ([k] int32 per row) gets the invalid id there, all others stay untouched (SPEC MOE-2.7).
struct Payload {
  std::string name;  // "hidden", "scales", "topk_ids", "topk_weights", ...
  std::int64_t bytes_per_token = 0;
  bool holds_expert_ids = false;
};

// Bytes of one destination's receive buffer of a payload: [ep, max, bytes_per_token].
std::int64_t recv_bytes(const DispatchPlan& plan, const Payload& payload);
// Where the row of (src, slot) starts in it.
std::int64_t recv_row_offset(const DispatchPlan& plan, const Payload& payload, RankId src,
                             SlotId slot);

// Writes what `dst` received of one payload into `recv` (recv_bytes of it, no alignment needed).
// sources [src] -> [t, bytes_per_token]; null allowed for a source that sent nothing to dst. Rows
// that hold no token keep what was there, except those of an id payload, which become `invalid_id`.
// Every such row of every source is filled, dead sources included.
void build_recv(const DispatchPlan& plan, RankId dst, const Payload& payload,
                std::span<const std::byte* const> sources, std::int32_t invalid_id,
                std::span<std::byte> recv);

// The configured invalid id must not name an expert (SPEC MOE-1.4).
Status check_invalid_id(const Placement& placement, std::int32_t invalid_id);

}  // namespace assay::moe
