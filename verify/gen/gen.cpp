// Sizes, masks, payload sets and bytes of the rounds of a scenario.
#include "verify/gen/gen.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "model/core/contract.hpp"
#include "model/core/prng.hpp"
#include "verify/gen/routing_gen.hpp"

namespace assay::verify {

namespace {

using Payloads = std::vector<moe::Payload>;

// Rows that no vector width fits, and one that only some fit (SPEC VER-6.3). Two sets, because six
// payloads are what known kernels take.
Payloads odd_payloads(std::int32_t top_k, bool second) {
  const moe::Payload ids{"topk_ids", 4 * std::int64_t{top_k}, true};
  const moe::Payload weights{"topk_weights", 4 * std::int64_t{top_k}, false};
  if (second) return {{"b5328", 5328, false}, {"b6", 6, false}, ids, {"b2", 2, false}, weights};
  return {{"b1", 1, false}, {"b20", 20, false}, ids, {"b3", 3, false}, weights, {"b12", 12, false}};
}

Expected<Payloads> payloads_of(const Scenario& scenario, std::int32_t round) {
  const MoeCase& c = scenario.moe_case;
  const auto recipe = [&] { return moe::recipe_payloads(scenario.recipe, c.hidden, c.top_k); };
  switch (scenario.axes.payloads) {
    case Axes::Payloads::kRecipe:
      return recipe();
    case Axes::Payloads::kOdd:
      return odd_payloads(c.top_k, c.seed % 2 == 1);
    case Axes::Payloads::kLarge:
      return Payloads{{"b5328", 5328, false}, {"topk_ids", 4 * std::int64_t{c.top_k}, true}};
    case Axes::Payloads::kChanging: {
      const auto which = (c.seed + static_cast<std::uint64_t>(round)) % 3;
      if (which == 0) return recipe();
      return odd_payloads(c.top_k, which == 1);
    }
  }
  CONTRACT(false, static_cast<int>(scenario.axes.payloads));
}

moe::RankMask mask_of(const Scenario& scenario, std::int32_t round) {
  const std::int32_t ep = scenario.moe_case.ep;
  moe::RankMask alive = moe::RankMask::all();
  if (scenario.axes.masks == Axes::Masks::kNone || ep == 1) return alive;
  // A permutation of the ranks fixes in which order they die; somebody always lives.
  std::vector<std::int32_t> order = shuffled_ranks(ep, scenario.moe_case.seed);
  std::int32_t dead = 0;
  switch (scenario.axes.masks) {
    case Axes::Masks::kNone:
      break;
    case Axes::Masks::kFixed:
      dead = std::max(1, ep / 3);
      break;
    case Axes::Masks::kShrinking:
      dead = std::min(round, ep - 1);
      break;
  }
  for (std::int32_t i = 0; i < dead; ++i)
    alive.set_alive(RankId(order[static_cast<std::size_t>(i)]), false);
  return alive;
}

std::int32_t max_of(const Scenario& scenario, std::int32_t round, std::uint64_t key) {
  const std::int32_t max = scenario.moe_case.max_tokens;
  if (!scenario.axes.changing_max || round % 2 == 0) return max;
  // Down in every odd round, and up again after it.
  return 1 + static_cast<std::int32_t>(
                 random_below(hash(key, 0xA5), static_cast<std::uint64_t>(std::max(1, max - 1))));
}

std::int32_t tokens_of(const Scenario& scenario, RankId src, std::int32_t max, std::uint64_t key) {
  const std::int32_t tokens =
      std::min(max, scenario.moe_case.tokens[static_cast<std::size_t>(src.value())]);
  const auto rank = static_cast<std::uint64_t>(src.value());
  if (scenario.axes.zero_token_ranks && random_below(hash(key, 0x70 + rank), 3) == 0) return 0;
  return tokens;
}

std::uint64_t round_key(const Scenario& scenario, std::int32_t round) {
  return hash(scenario.moe_case.seed, static_cast<std::uint64_t>(round) + 1);
}

// A word that protocols may mistake for "nothing here yet" takes the place of one in sixteen.
std::uint64_t with_sentinels(std::uint64_t word) {
  switch (word >> 58) {
    case 0:
      return ~std::uint64_t{0};
    case 1:
      return 0x8000800080008000u;  // -0 in bf16
    case 2:
      return 0;
    case 3:
      return 0x8000000080000000u;  // -0 in f32
    default:
      return word;
  }
}

// Of every three rows one is all ones, and one holds the complements of 0, 1, 2 ... so that XOR
// with any small number makes some word all ones (SPEC VER-6.5).
void fill_with_ones(std::int64_t bytes_per_token, std::vector<std::byte>& rows) {
  const auto bytes = static_cast<std::size_t>(bytes_per_token);
  for (std::size_t token = 0; (token + 1) * bytes <= rows.size(); ++token) {
    if (token % 3 == 2) continue;
    for (std::size_t at = 0; at < bytes; at += 4) {
      const std::uint32_t word = ~(token % 3 == 0 ? 0u : static_cast<std::uint32_t>(at / 4));
      std::memcpy(rows.data() + token * bytes + at, &word, std::min<std::size_t>(4, bytes - at));
    }
  }
}

// Another number of words in every round, none in every third; any bits.
void fill_statistics(const Scenario& scenario, std::int32_t index, std::uint64_t key,
                     Round& round) {
  round.statistics.clear();
  if (!scenario.axes.statistics || index % 3 == 2) return;
  const MoeCase& c = scenario.moe_case;
  const std::size_t count =
      1 + random_below(hash(key, 0x57A7), static_cast<std::uint64_t>(c.experts));
  round.statistics.resize(static_cast<std::size_t>(c.ep));
  for (std::size_t src = 0; src < round.statistics.size(); ++src)
    for (std::size_t i = 0; i < count; ++i)
      round.statistics[src].push_back(
          static_cast<std::int32_t>(hash(hash(key, 0x57A8 + src), i) >> 32));
}

}  // namespace

Expected<Scenario> make_scenario(const MoeCase& moe_case, const Axes& axes, moe::Recipe recipe,
                                 const moe::CombineProfile* profile) {
  ASSAY_CHECK(check_case(moe_case));
  Scenario scenario;
  scenario.moe_case = moe_case;
  scenario.axes = axes;
  scenario.recipe = recipe;
  scenario.num_rounds = moe_case.rounds;
  GroupSetup& setup = scenario.setup;
  setup.ep_size = moe_case.ep;
  setup.num_experts = moe_case.experts;
  setup.top_k = moe_case.top_k;
  setup.hidden_size = moe_case.hidden;
  setup.max_tokens_per_rank = moe_case.max_tokens;
  setup.invalid_expert_id = axes.invalid_is_num_experts ? moe_case.experts : axes.invalid_id;
  setup.combine_dtype = axes.dtype;
  setup.low_precision_combine = axes.low_precision;
  setup.profile = profile == nullptr ? &moe::default_combine_profile() : profile;
  setup.options = std::string(axes.options);
  setup.seed = moe_case.seed;
  setup.experts_key = moe_case.seed;
  setup.nan_and_inf = axes.nan_and_inf;
  setup.num_statistics = axes.statistics ? moe_case.experts : 0;
  setup.expert_lists = axes.expert_lists;
  for (std::int32_t round = 0; round < std::min(scenario.num_rounds, 3); ++round) {
    ASSAY_TRY(const Payloads payloads, payloads_of(scenario, round));
    std::int64_t bytes = 0;
    for (const moe::Payload& payload : payloads) bytes += payload.bytes_per_token;
    setup.max_payload_bytes_total =
        std::max(setup.max_payload_bytes_total, static_cast<std::int32_t>(bytes));
  }
  ASSAY_CHECK(check_setup(setup));
  return scenario;
}

void fill_round(const Scenario& scenario, std::int32_t index, Round& round) {
  const MoeCase& c = scenario.moe_case;
  const std::uint64_t key = round_key(scenario, index);
  const auto ep = static_cast<std::size_t>(c.ep);
  round.max_tokens_per_rank = max_of(scenario, index, key);
  round.alive = mask_of(scenario, index);
  fill_statistics(scenario, index, key, round);
  round.topk_ids.resize(ep);
  for (RankId src{0}; src.value() < c.ep; src = src.next()) {
    const std::int32_t tokens = tokens_of(scenario, src, round.max_tokens_per_rank, key);
    fill_routing(scenario, index, key, src, tokens,
                 round.topk_ids[static_cast<std::size_t>(src.value())]);
  }
  const auto payloads = payloads_of(scenario, index);
  CONTRACT(payloads.has_value());  // make_scenario asked before
  round.payloads.resize(payloads->size());
  for (std::size_t p = 0; p < payloads->size(); ++p) {
    RoundPayload& entry = round.payloads[p];
    entry.payload = (*payloads)[p];
    entry.rows.resize(entry.payload.holds_expert_ids ? 0 : ep);
    for (std::size_t src = 0; src < entry.rows.size(); ++src) {
      const RankId rank(static_cast<std::int32_t>(src));
      const std::int32_t tokens = round.num_tokens(rank, c.top_k);
      if (entry.payload.name == "topk_weights") {
        keyed_weights(key, rank, tokens, c.top_k, entry.rows[src]);
      } else {
        keyed_rows(key, static_cast<std::int32_t>(p), rank, tokens, entry.payload.bytes_per_token,
                   entry.rows[src]);
        if (scenario.axes.all_ones) fill_with_ones(entry.payload.bytes_per_token, entry.rows[src]);
      }
    }
  }
}

void keyed_rows(std::uint64_t key, std::int32_t payload, RankId src, std::int32_t num_tokens,
                std::int64_t bytes_per_token, std::vector<std::byte>& out) {
  out.resize(static_cast<std::size_t>(num_tokens * bytes_per_token));
  std::byte* to = out.data();
  const std::uint64_t rank_key =
      hash(hash(key, static_cast<std::uint64_t>(payload)), static_cast<std::uint64_t>(src.value()));
  for (std::int32_t token = 0; token < num_tokens; ++token) {
    const std::uint64_t row_key = hash(rank_key, static_cast<std::uint64_t>(token));
    std::uint64_t counter = row_key;
    for (std::int64_t at = 0; at < bytes_per_token; at += 8) {
      const std::uint64_t word = with_sentinels(hash(counter += kSplitmix64Step, row_key));
      std::memcpy(to + at, &word,
                  static_cast<std::size_t>(std::min<std::int64_t>(8, bytes_per_token - at)));
    }
    to += bytes_per_token;
  }
}

void keyed_weights(std::uint64_t key, RankId src, std::int32_t num_tokens, std::int32_t top_k,
                   std::vector<std::byte>& out) {
  const auto count = static_cast<std::size_t>(num_tokens) * static_cast<std::size_t>(top_k);
  out.resize(4 * count);
  const std::uint64_t rank_key = hash(hash(key, 0x77), static_cast<std::uint64_t>(src.value()));
  for (std::size_t i = 0; i < count; ++i) {
    // 24 random bits over 2^24, never 0: exact in f32, and 1 - w is exact as well.
    const float weight =
        static_cast<float>((hash(rank_key, i) >> 40) | 1) / static_cast<float>(1 << 24);
    std::memcpy(out.data() + 4 * i, &weight, 4);
  }
}

}  // namespace assay::verify
