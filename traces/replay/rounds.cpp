// See rounds.hpp.
#include "traces/replay/rounds.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "model/core/prng.hpp"
#include "verify/gen/gen.hpp"

namespace assay::traces {
namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

// Both ends within 0..count, or a sentence.
Expected<Selection> clip(const char* what, const Selection& selection, std::int64_t count) {
  const std::int64_t end = selection.end.value_or(count);
  if (selection.begin < 0 || selection.begin >= end || end > count) {
    return bad_input(fmt::format("{} are {}:{}; the trace has {} 0 to {}", what, selection.begin,
                                 selection.end ? std::to_string(*selection.end) : "", what,
                                 count - 1));
  }
  return Selection{selection.begin, end};
}

}  // namespace

Expected<Rounds> Rounds::make(const Trace& trace, const RoundsSetup& setup) {
  Rounds rounds;
  rounds.trace_ = &trace;
  rounds.setup_ = setup;
  ASSAY_TRY(const Selection layers, clip("layers", setup.layers, trace.num_layers()));
  rounds.first_layer_ = static_cast<std::int32_t>(layers.begin);
  rounds.last_layer_ = static_cast<std::int32_t>(*layers.end);

  verify::GroupSetup& group = rounds.group_;
  group.ep_size = setup.ep_size;
  group.num_experts = trace.num_experts();
  group.top_k = trace.top_k();
  group.hidden_size = setup.hidden_size.value_or(trace.hidden_size());
  group.profile = setup.profile;
  group.options = setup.subject_options;
  group.seed = setup.seed;
  group.experts_key = setup.seed;
  ASSAY_CHECK(moe::Placement::contiguous(group.ep_size, group.num_experts));
  ASSAY_TRY(rounds.payloads_, moe::recipe_payloads(setup.recipe, group.hidden_size, group.top_k));
  for (const moe::Payload& payload : rounds.payloads_)
    group.max_payload_bytes_total += static_cast<std::int32_t>(payload.bytes_per_token);
  ASSAY_CHECK(rounds.collect_steps());
  ASSAY_CHECK(verify::check_setup(group));
  return rounds;
}

std::int32_t Rounds::step_number(std::int64_t step) const { return steps_[at(step)].number; }

void Rounds::fill(std::int64_t step_index, std::int32_t layer_index, verify::Round& round) const {
  const Step& step = steps_[at(step_index)];
  const std::int32_t layer = layer_number(layer_index);
  const std::uint64_t key = mix(setup_.seed, step.number, layer);
  round.max_tokens_per_rank = step.max_tokens_per_rank;
  round.alive = moe::RankMask::all();
  round.topk_ids.resize(at(group_.ep_size));
  for (std::int32_t rank = 0; rank < group_.ep_size; ++rank) {
    std::vector<std::int32_t>& ids = round.topk_ids[at(rank)];
    ids.clear();
    for (const std::int64_t token : step.tokens[at(rank)]) {
      for (std::int32_t k = 0; k < group_.top_k; ++k)
        ids.push_back(trace_->topk_id(token, layer, k));
    }
  }
  round.payloads.resize(payloads_.size());
  for (std::size_t p = 0; p < payloads_.size(); ++p) {
    verify::RoundPayload& rows = round.payloads[p];
    const auto payload = static_cast<std::int32_t>(p);
    rows.payload = payloads_[p];
    if (rows.payload.holds_expert_ids) continue;
    rows.rows.resize(at(group_.ep_size));
    if (rows.payload.name == "topk_weights") {
      fill_weights(step, layer, key, rows);
      continue;
    }
    for (std::int32_t rank = 0; rank < group_.ep_size; ++rank) {
      verify::keyed_rows(key, payload, RankId{rank},
                         static_cast<std::int32_t>(step.tokens[at(rank)].size()),
                         rows.payload.bytes_per_token, rows.rows[at(rank)]);
    }
  }
}

std::uint64_t mix(std::uint64_t seed, std::int64_t a, std::int64_t b) {
  const std::uint64_t x =
      scrambled(scrambled(seed + kSplitmix64Step) ^ static_cast<std::uint64_t>(a));
  return scrambled(x + kSplitmix64Step + static_cast<std::uint64_t>(b));
}

Status Rounds::collect_steps() {
  std::vector<std::int32_t> requests = trace_->tensors().request;
  std::sort(requests.begin(), requests.end());
  requests.erase(std::unique(requests.begin(), requests.end()), requests.end());
  const std::vector<TokenGroup>& groups = trace_->groups();
  const std::int64_t end_of_steps = groups.empty() ? 0 : std::int64_t{groups.back().step} + 1;
  ASSAY_TRY(const Selection selected, clip("steps", setup_.steps, end_of_steps));
  for (const TokenGroup& group : groups) {
    Step step = place_step(group.step, group.tokens, requests);
    // Capacity is the whole trace's: a group for some steps is the group that all steps have.
    group_.max_tokens_per_rank = std::max(group_.max_tokens_per_rank, step.max_tokens_per_rank);
    if (group.step < selected.begin || group.step >= *selected.end) continue;
    ASSAY_CHECK(check_fits(step));
    steps_.push_back(std::move(step));
  }
  if (steps_.empty()) {
    return bad_input(fmt::format("steps are {}:{}; the trace has no token in any of them",
                                 selected.begin, *selected.end));
  }
  return Done{};
}

Rounds::Step Rounds::place_step(std::int32_t number, std::span<const std::int64_t> tokens,
                                std::span<const std::int32_t> requests) const {
  std::vector<std::int32_t> request;
  for (const std::int64_t token : tokens) request.push_back(trace_->request(token));
  const auto rank = place_tokens(setup_.placement, setup_.ep_size, request, requests);
  Step step;
  step.number = number;
  step.tokens.resize(at(setup_.ep_size));
  for (std::size_t i = 0; i < tokens.size(); ++i) step.tokens[at(rank[i])].push_back(tokens[i]);
  std::size_t most = 1;
  for (const auto& of_rank : step.tokens) most = std::max(most, of_rank.size());
  step.max_tokens_per_rank = setup_.max_tokens_per_rank.value_or(static_cast<std::int32_t>(most));
  return step;
}

Status Rounds::check_fits(const Step& step) const {
  for (std::size_t rank = 0; rank < step.tokens.size(); ++rank) {
    const auto tokens = static_cast<std::int64_t>(step.tokens[rank].size());
    if (tokens <= step.max_tokens_per_rank) continue;
    return bad_input(fmt::format(
        "max_tokens is {}, but step {} puts {} tokens on rank {}; allowed are {} and more for it",
        step.max_tokens_per_rank, step.number, tokens, rank, tokens));
  }
  return Done{};
}

// f32 [t, k]: the trace's weights widened, or made-up ones where it has none (SPEC TRC-3.3).
void Rounds::fill_weights(const Step& step, std::int32_t layer, std::uint64_t key,
                          verify::RoundPayload& rows) const {
  for (std::int32_t rank = 0; rank < group_.ep_size; ++rank) {
    const std::vector<std::int64_t>& tokens = step.tokens[at(rank)];
    std::vector<std::byte>& out = rows.rows[at(rank)];
    if (!trace_->has_weights()) {
      verify::keyed_weights(key, RankId{rank}, static_cast<std::int32_t>(tokens.size()),
                            group_.top_k, out);
      continue;
    }
    out.resize(tokens.size() * at(group_.top_k) * sizeof(F32));
    std::byte* next = out.data();
    for (const std::int64_t token : tokens) {
      for (std::int32_t k = 0; k < group_.top_k; ++k, next += sizeof(F32)) {
        const F32 weight = trace_->topk_weight(token, layer, k);
        std::memcpy(next, &weight.bits, sizeof weight.bits);
      }
    }
  }
}

}  // namespace assay::traces
