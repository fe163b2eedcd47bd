// Forwards to the example plugin and spoils what it left. State is global: the C interface has no
// room for a context in its table, and tests run one at a time.
#include "verify/subject/broken_subject.hpp"

#include <cstdio>
#include <vector>

#include "model/core/contract.hpp"

// The example is compiled into the tests once more, next to the plugin that is loaded.
extern "C" const assay_subject* assay_subject_v1(void);

namespace assay::verify::testing {

namespace {

struct State {
  Spoil spoil;
  assay_group_config config{};
  std::int64_t rounds_done = 0;
  // Of the run that is going on.
  std::span<const assay_round> rounds;
  std::vector<bool> dispatched;
  assay_experts experts = nullptr;
  void* context = nullptr;
};
State state;

int create(const assay_group_config* group_config, void** group, assay_message* message) {
  state.config = *group_config;
  state.rounds_done = 0;
  return assay_subject_v1()->create(group_config, group, message);
}

void experts(void*, std::int32_t round, std::int32_t rank) {
  const auto i = static_cast<std::size_t>(round);
  if (!state.dispatched[i]) {
    state.dispatched[i] = true;
    if (state.spoil.after_dispatch)
      state.spoil.after_dispatch(state.rounds[i], state.rounds_done + round);
  }
  for (int call = 0; call < state.spoil.calls_of_experts; ++call)
    state.experts(state.context, round, rank);
}

int run(void* group, const assay_round* rounds, std::int32_t num_rounds, assay_experts call,
        void* context, assay_message* message) {
  state.rounds = {rounds, static_cast<std::size_t>(num_rounds)};
  state.dispatched.assign(state.rounds.size(), false);
  state.experts = call;
  state.context = context;
  const int code = assay_subject_v1()->run(group, rounds, num_rounds, experts, nullptr, message);
  for (std::int32_t i = 0; i < num_rounds; ++i) {
    if (state.spoil.after_combine) state.spoil.after_combine(rounds[i], state.rounds_done + i);
  }
  state.rounds_done += num_rounds;
  if (state.spoil.return_code == ASSAY_OK) return code;
  std::snprintf(message->text, sizeof message->text, "%s", state.spoil.message);
  return state.spoil.return_code;
}

void destroy(void* group) { assay_subject_v1()->destroy(group); }

constexpr assay_subject kTable{
    ASSAY_SUBJECT_ABI_VERSION, sizeof(assay_subject), "broken", create, run, destroy};

}  // namespace

Subject broken_subject(Spoil spoil) {
  state.spoil = std::move(spoil);
  auto subject = Subject::wrap(&kTable, "broken");
  CONTRACT(subject.has_value());
  return *std::move(subject);
}

const assay_group_config& config() { return state.config; }

std::span<std::int32_t> targets(const assay_round& round, int rank, int top_k) {
  return {round.target_rank[rank], static_cast<std::size_t>(round.num_tokens[rank] * top_k)};
}

std::span<std::int32_t> slots(const assay_round& round, int rank, int top_k) {
  return {round.target_slot[rank], static_cast<std::size_t>(round.num_tokens[rank] * top_k)};
}

std::span<std::byte> recv_row(const assay_round& round, int payload, int dst, int src, int slot) {
  const auto bytes = static_cast<std::size_t>(round.payloads[payload].bytes_per_token);
  const auto row =
      static_cast<std::size_t>(src) * static_cast<std::size_t>(round.max_tokens_per_rank) +
      static_cast<std::size_t>(slot);
  return {static_cast<std::byte*>(round.recv[payload][dst]) + row * bytes, bytes};
}

}  // namespace assay::verify::testing
