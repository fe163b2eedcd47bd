// The spec route, once per program, and the rounds of a case.
#include "verify/explore/truth.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "model/core/contract.hpp"
#include "verify/gen/gen.hpp"
#include "verify/gen/routing_gen.hpp"

namespace assay::verify {

namespace {

std::size_t index(RankId rank) { return static_cast<std::size_t>(rank.value()); }

std::int64_t row_bytes(const GroupSetup& setup) {
  return setup.hidden_size * moe::dtype_bytes(setup.combine_dtype);
}

// The experts' stand-in over canonical receive buffers: what arrives, and what becomes of it.
Status fill_expert_rows(const GroupSetup& setup, const moe::Placement& placement,
                        RoundTruth& truth) {
  std::optional<std::size_t> weights;
  for (std::size_t p = 0; p < truth.payloads.size(); ++p)
    if (truth.payloads[p].name == "topk_weights") weights = p;
  for (RankId dst{0}; dst.value() < setup.ep_size; dst = dst.next()) {
    std::vector<std::vector<std::byte>> recv(truth.payloads.size());
    std::vector<moe::ReceivedPayload> received;
    for (std::size_t p = 0; p < truth.payloads.size(); ++p) {
      std::vector<const std::byte*> sources;
      for (RankId src{0}; src.value() < setup.ep_size; src = src.next())
        sources.push_back(
            truth.payloads[p].holds_expert_ids
                ? reinterpret_cast<const std::byte*>(truth.round.topk_ids[index(src)].data())
                : truth.round.payloads[p].rows[index(src)].data());
      recv[p].resize(static_cast<std::size_t>(moe::recv_bytes(truth.plan, truth.payloads[p])));
      moe::build_recv(truth.plan, dst, truth.payloads[p], sources, setup.invalid_expert_id,
                      recv[p]);
      received.push_back({truth.payloads[p], recv[p]});
    }
    std::vector<std::byte>& rows = truth.expert_out.emplace_back();
    rows.resize(static_cast<std::size_t>(std::int64_t{setup.ep_size} *
                                         truth.round.max_tokens_per_rank * row_bytes(setup)));
    moe::stand_in_rank({.key = setup.experts_key,
                        .dtype = setup.combine_dtype,
                        .hidden_size = setup.hidden_size,
                        .nan_and_inf = setup.nan_and_inf},
                       placement, dst, truth.round.max_tokens_per_rank, truth.plan.slot_rule(),
                       received, weights, truth.plan.recv_counters(dst), rows);
  }
  return Done{};
}

std::uint32_t tagged_word(std::uint32_t round, std::uint32_t src, std::uint32_t token,
                          std::uint32_t word) {
  const std::uint32_t tag = (token % 64) << 16 | (round % 256) << 8 | src % 256;
  if (word == 1) return token % 2 == 1 ? 0xFFFFFFFFu : 0xFFC00000u | tag;
  return (word + 1) % 128 << 24 | tag;
}

}  // namespace

std::span<const std::byte> RoundTruth::sent_row(std::size_t payload, RankId src,
                                                TokenId token) const {
  const auto bytes = static_cast<std::size_t>(payloads[payload].bytes_per_token);
  const std::byte* rows =
      payloads[payload].holds_expert_ids
          ? reinterpret_cast<const std::byte*>(round.topk_ids[index(src)].data())
          : round.payloads[payload].rows[index(src)].data();
  return {rows + static_cast<std::size_t>(token.value()) * bytes, bytes};
}

std::span<const std::byte> RoundTruth::expert_row(RankId dst, RankId src, TokenId token) const {
  const std::size_t rows = static_cast<std::size_t>(plan.ep_size()) *
                           static_cast<std::size_t>(plan.max_tokens_per_rank());
  const std::size_t bytes = expert_out[index(dst)].size() / rows;
  for (const auto& row : plan.rows(dst, src)) {
    if (row.token != token) continue;
    const std::size_t at = index(src) * static_cast<std::size_t>(plan.max_tokens_per_rank()) +
                           static_cast<std::size_t>(row.slot.value());
    return {expert_out[index(dst)].data() + at * bytes, bytes};
  }
  CONTRACT(false, "the token has no row at this rank", dst, src, token);
}

Expected<std::vector<RoundTruth>> make_truth(const GroupSetup& setup, std::vector<Round> rounds,
                                             std::span<const moe::SlotRule> slot_rules) {
  ASSAY_CHECK(check_setup(setup));
  CONTRACT(slot_rules.size() == rounds.size(), slot_rules.size(), rounds.size());
  ASSAY_TRY(const moe::Placement placement,
            moe::Placement::contiguous(setup.ep_size, setup.num_experts));
  const moe::CombineProfile& profile =
      setup.profile == nullptr ? moe::default_combine_profile() : *setup.profile;
  ASSAY_TRY(const moe::Combine combine,
            moe::Combine::make(profile.arithmetic, {.top_k = setup.top_k,
                                                    .dtype = setup.combine_dtype,
                                                    .low_precision = setup.low_precision_combine}));
  std::vector<RoundTruth> truths;
  for (Round& round : rounds) {
    ASSAY_CHECK(check_round(setup, round));
    ASSAY_TRY(const moe::Routing routing,
              moe::Routing::make(setup.top_k, round.max_tokens_per_rank, round.topk_ids));
    ASSAY_TRY(moe::DispatchPlan plan,
              moe::plan_dispatch(placement, routing, slot_rules[truths.size()], round.alive));
    RoundTruth truth{std::move(round), {}, 0, std::move(plan), {}, {}};
    for (const RoundPayload& entry : truth.round.payloads) {
      if (entry.payload.holds_expert_ids)
        truth.ids_payload = static_cast<std::int32_t>(truth.payloads.size());
      truth.payloads.push_back(entry.payload);
    }
    ASSAY_CHECK(fill_expert_rows(setup, placement, truth));
    std::vector<const std::byte*> expert_out;
    for (const auto& rows : truth.expert_out) expert_out.push_back(rows.data());
    for (RankId src{0}; src.value() < setup.ep_size; src = src.next()) {
      std::vector<std::byte>& out = truth.out.emplace_back();
      out.resize(static_cast<std::size_t>(truth.plan.num_tokens(src) * setup.hidden_size *
                                          moe::dtype_bytes(combine.out_dtype())));
      combine.rank(truth.plan, src, expert_out, setup.hidden_size, out.data());
    }
    truths.push_back(std::move(truth));
  }
  return truths;
}

std::optional<RowOrigin> origin_of(std::span<const RoundTruth> rounds, std::size_t payload,
                                   std::span<const std::byte> row) {
  for (std::size_t r = 0; r < rounds.size(); ++r) {
    const RoundTruth& truth = rounds[r];
    if (payload >= truth.payloads.size()) continue;
    for (RankId src{0}; src.value() < truth.plan.ep_size(); src = src.next())
      for (TokenId token{0}; token.value() < truth.plan.num_tokens(src); token = token.next()) {
        const auto sent = truth.sent_row(payload, src, token);
        if (sent.size() == row.size() && std::equal(sent.begin(), sent.end(), row.begin()))
          return RowOrigin{r, src, token};
      }
  }
  return std::nullopt;
}

Expected<CaseRounds> rounds_of_case(const MoeCase& moe_case, bool changing_max) {
  if (moe_case.hidden % 2 != 0)
    return bad_input(
        fmt::format("hidden is {}; explored rows are 32-bit words of two elements, so "
                    "allowed are even numbers",
                    moe_case.hidden));
  ASSAY_TRY(const Scenario scenario, make_scenario(moe_case));
  CaseRounds made{scenario.setup, {}};
  const std::int64_t bytes = row_bytes(made.setup);
  made.setup.max_payload_bytes_total = static_cast<std::int32_t>(bytes + 4 * moe_case.top_k);
  for (std::int32_t r = 0; r < moe_case.rounds; ++r) {
    Round& round = made.rounds.emplace_back();
    round.max_tokens_per_rank = changing_max && r % 2 == 0 ? 1 : moe_case.max_tokens;
    RoundPayload rows{{"hidden", bytes, false}, {}};
    for (RankId src{0}; src.value() < moe_case.ep; src = src.next()) {
      const std::int32_t tokens = std::min(moe_case.tokens[index(src)], round.max_tokens_per_rank);
      fill_routing(scenario, r, hash(moe_case.seed, static_cast<std::uint64_t>(r) + 1), src, tokens,
                   round.topk_ids.emplace_back());
      std::vector<std::byte>& packed = rows.rows.emplace_back();
      packed.resize(static_cast<std::size_t>(tokens * bytes));
      const auto row = static_cast<std::size_t>(bytes);
      for (std::size_t at = 0; at < packed.size(); at += 4) {
        const std::uint32_t word = tagged_word(
            static_cast<std::uint32_t>(r), static_cast<std::uint32_t>(src.value()),
            static_cast<std::uint32_t>(at / row), static_cast<std::uint32_t>(at % row) / 4);
        std::memcpy(packed.data() + at, &word, sizeof word);
      }
    }
    round.payloads = {std::move(rows), {{"topk_ids", 4 * std::int64_t{moe_case.top_k}, true}, {}}};
  }
  return made;
}

}  // namespace assay::verify
