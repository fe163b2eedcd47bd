// Receive buffers and slot lists of random rounds against a search over all rows and picks.
#include <cstring>
#include <random>

#include "model/moe/dispatch_testing.hpp"
#include "model/moe/expert_lists.hpp"

namespace assay::moe {
namespace {

using assay::testing::prop;

// --- receive buffers ----------------------------------------------------------------------------

constexpr std::byte kPoison{0xA5};

TEST_CASE("receive buffers hold the senders' rows in their slots, everything else untouched",
          "[MOE-2.6][MOE-2.7]") {
  prop("rows, poison and invalid ids", [] {
    const Naive naive = arbitrary_round();
    const auto placement = Placement::contiguous(naive.ep, naive.experts);
    const auto routing = Routing::make(naive.k, naive.max, naive.ids);
    const auto rule = *rc::gen::element(SlotRule::kCounterAnyOrder, SlotRule::kTokenIndex);
    auto plan = plan_dispatch(*placement, *routing, rule, naive.alive).value();
    if (rule == SlotRule::kCounterAnyOrder) {
      Recorded got(plan);
      got.shuffle(plan, *rc::gen::arbitrary<std::uint32_t>());
      plan = with_observed_slots(plan, got.view());
    }
    const bool ids = *rc::gen::arbitrary<bool>();
    const Payload payload{"p", ids ? 4 * naive.k : *rc::gen::element(1, 2, 3, 6, 12, 20, 64), ids};
    const auto bytes = static_cast<std::size_t>(payload.bytes_per_token);
    std::vector<std::vector<std::byte>> rows;
    std::vector<const std::byte*> sources;
    std::mt19937 random(*rc::gen::arbitrary<std::uint32_t>());
    for (std::int32_t src = 0; src < naive.ep; ++src) {
      rows.emplace_back(static_cast<std::size_t>(plan.num_tokens(RankId{src})) * bytes);
      for (auto& byte : rows.back()) byte = static_cast<std::byte>(random());
    }
    for (const auto& r : rows) sources.push_back(r.data());
    const std::int32_t invalid_id = *rc::gen::element(-1, naive.experts, -77);
    const RankId dst{*in_range(0, naive.ep)};
    std::vector<std::byte> recv(static_cast<std::size_t>(recv_bytes(plan, payload)), kPoison);
    RC_ASSERT(recv.size() == static_cast<std::size_t>(naive.ep * naive.max) * bytes);
    build_recv(plan, dst, payload, sources, invalid_id, recv);
    std::byte invalid[4];
    std::memcpy(invalid, &invalid_id, 4);
    for (std::int32_t src = 0; src < naive.ep; ++src)
      for (std::int32_t slot = 0; slot < naive.max; ++slot) {
        const auto token = plan.source_of(dst, RankId{src}, SlotId{slot});
        for (std::size_t b = 0; b < bytes; ++b) {
          std::byte expected = ids ? invalid[b % 4] : kPoison;
          if (token)
            expected = rows[static_cast<std::size_t>(src)]
                           [static_cast<std::size_t>(token->value()) * bytes + b];
          RC_ASSERT(recv[static_cast<std::size_t>(src * naive.max + slot) * bytes + b] == expected);
        }
      }
  });
}

TEST_CASE("row offsets do not overflow 32 bits", "[MOE-2.6]") {
  const auto placement = Placement::contiguous(2, 2);
  const auto routing = Routing::make(1, 150000, {{0}, {0}});
  const auto plan = plan_dispatch(*placement, *routing, SlotRule::kCanonical).value();
  const Payload hidden{"hidden", 14336, false};
  CHECK(recv_row_offset(plan, hidden, RankId{1}, SlotId{149999}) == 299999ll * 14336);
  CHECK(recv_bytes(plan, hidden) == 300000ll * 14336);
}

TEST_CASE("an invalid id that names an expert is refused", "[MOE-1.4]") {
  const auto placement = Placement::contiguous(2, 4);
  CHECK(check_invalid_id(*placement, -1));
  CHECK(check_invalid_id(*placement, 4));
  CHECK(check_invalid_id(*placement, 3).error().sentence ==
        "the invalid expert id is 3, which names an expert; allowed are ids outside 0 to 3");
}

// --- slots per local expert ---------------------------------------------------------------------

TEST_CASE("the list of an expert holds its picks by source, slot and k", "[MOE-2.8]") {
  prop("lists equal a search over all picks", [] {
    const Naive naive = arbitrary_round();
    const auto placement = Placement::contiguous(naive.ep, naive.experts);
    const auto routing = Routing::make(naive.k, naive.max, naive.ids);
    auto plan =
        plan_dispatch(*placement, *routing, SlotRule::kCounterAnyOrder, naive.alive).value();
    Recorded got(plan);
    got.shuffle(plan, *rc::gen::arbitrary<std::uint32_t>());
    plan = with_observed_slots(plan, got.view());
    const RankId dst{*in_range(0, naive.ep)};
    const auto lists = list_expert_slots(*placement, *routing, plan, dst);
    RC_ASSERT(lists.offsets.front() == 0);
    RC_ASSERT(lists.offsets.back() == static_cast<std::int64_t>(lists.entries.size()));
    for (std::int32_t local = 0; local < lists.experts.count; ++local) {
      std::vector<ExpertSlot> expected;
      for (std::int32_t src = 0; src < naive.ep; ++src)
        for (std::int32_t slot = 0; slot < naive.max; ++slot) {
          const auto token = plan.source_of(dst, RankId{src}, SlotId{slot});
          if (!token) continue;
          for (std::int32_t k = 0; k < naive.k; ++k)
            if (naive.ids[static_cast<std::size_t>(src)][static_cast<std::size_t>(
                    token->value() * naive.k + k)] == lists.experts.first.value() + local)
              expected.push_back({RankId{src}, SlotId{slot}, TopKIndex{k}});
        }
      const auto list = lists.of(LocalExpertId{local});
      RC_ASSERT(std::equal(list.begin(), list.end(), expected.begin(), expected.end()));
    }
  });
}

TEST_CASE("one row serves every local pick of its token, duplicates included",
          "[MOE-2.1][MOE-2.8]") {
  const auto placement = Placement::contiguous(2, 4);
  const auto routing = Routing::make(4, 1, {{2, 3, 2, 0}, {}});
  const auto plan = plan_dispatch(*placement, *routing, SlotRule::kCanonical).value();
  CHECK(plan.recv_counter(RankId{1}, RankId{0}) == 1);
  const auto lists = list_expert_slots(*placement, *routing, plan, RankId{1});
  CHECK(lists.of(LocalExpertId{0}).size() == 2);  // expert 2 at k 0 and k 2, one slot
  CHECK(lists.of(LocalExpertId{1}).size() == 1);
  CHECK(lists.entries[1] == ExpertSlot{RankId{0}, SlotId{0}, TopKIndex{2}});
}

}  // namespace
}  // namespace assay::moe
