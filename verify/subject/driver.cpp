#include "verify/subject/driver.hpp"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <optional>

#include "model/moe/moe.hpp"
#include "model/numerics/numerics.hpp"
#include "verify/checks/checks.hpp"
#include "verify/checks/input_digest.hpp"
#include "verify/subject/buffers.hpp"
#include "verify/subject/coverage.hpp"

namespace assay::verify {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::size_t index(RankId rank) { return static_cast<std::size_t>(rank.value()); }

int32_t abi_dtype(moe::Dtype dtype) {
  switch (dtype) {
    case moe::Dtype::kBf16: return ASSAY_DTYPE_BF16;
    case moe::Dtype::kF16: return ASSAY_DTYPE_F16;
    case moe::Dtype::kF32: return ASSAY_DTYPE_F32;
    case moe::Dtype::kE4m3: break;  // check_setup refuses it
  }
  CONTRACT(false, static_cast<int>(dtype));
}

// Another byte every round, so that poison of one round never passes for that of another; never the
// guards' byte, and never 0, 0xFF or an expert id's most common bytes.
std::byte poison_of_round(std::int64_t number) {
  return static_cast<std::byte>(0xA1 + 2 * (number % 23));
}

// The arrays of pointers that the C interface wants, for one round.
struct AbiRound {
  assay_round round{};
  std::vector<assay_payload> payloads;
  std::vector<std::int32_t> num_tokens;
  std::vector<const std::int32_t*> topk_ids;
  std::vector<std::vector<const void*>> rows;  // [payload][rank]
  std::vector<const void* const*> rows_of;
  std::vector<std::vector<void*>> recv;
  std::vector<void* const*> recv_of;
  std::vector<std::int32_t*> recv_counters, target_rank, target_slot;
  std::vector<const void*> expert_out;
  std::vector<void*> out;
};

// The rounds of one run with everything that hangs on them. Two take turns, so that the last round
// of a run is still there when the next one is checked.
struct Batch {
  BufferArena arena;
  std::vector<RoundView> views;
  std::vector<AbiRound> abi;
  std::vector<std::optional<std::size_t>> weights;  // the payload of router weights, per round
};

std::optional<std::size_t> weights_payload(const GroupSetup& setup,
                                           const std::vector<moe::Payload>& payloads) {
  for (std::size_t p = 0; p < payloads.size(); ++p) {
    if (payloads[p].name == "topk_weights" && payloads[p].bytes_per_token == 4 * setup.top_k)
      return p;
  }
  return std::nullopt;
}

// All of `buffer` to the canonical NaN of `dtype`.
void fill_with_nan(const OutputBuffer& buffer, moe::Dtype dtype) {
  const auto fill = [&](auto nan) {
    for (std::int64_t at = 0; at < buffer.size; at += static_cast<std::int64_t>(sizeof nan.bits))
      std::memcpy(buffer.data + at, &nan.bits, sizeof nan.bits);
  };
  switch (dtype) {
    case moe::Dtype::kBf16: return fill(numerics::canonical_nan<Bf16>());
    case moe::Dtype::kF16: return fill(numerics::canonical_nan<F16>());
    case moe::Dtype::kF32: return fill(numerics::canonical_nan<F32>());
    case moe::Dtype::kE4m3: break;  // check_setup refuses it
  }
}

}  // namespace

struct Driver::Impl {
  Impl(Subject s, GroupSetup g, DriverOptions o, moe::Placement p, moe::Combine c)
      : subject(std::move(s)),
        setup(std::move(g)),
        options(std::move(o)),
        placement(std::move(p)),
        combine(std::move(c)) {}

  Subject subject;
  GroupSetup setup;
  DriverOptions options;
  moe::Placement placement;
  moe::Combine combine;
  Group group;
  bool created = false;
  Batch batches[2];
  int current = 0;
  const RoundView* last = nullptr;
  std::int64_t rounds_done = 0;
  std::atomic<std::int64_t> experts_ns{0};
  std::atomic<std::int64_t> wild_calls{0};  // of experts, for a round or rank that does not exist

  Batch& batch() { return batches[current]; }

  Expected<Outcome> run(std::span<const Round> rounds);
  Group::Result create_group(std::span<const Round> rounds);
  Status prepare(std::span<const Round> rounds);
  void prepare_buffers(RoundView& view, AbiRound& abi);
  void check(Group::Result result, Outcome& outcome);
  std::optional<Mismatch> find_lack_of_progress(const Group::Result& result) const;
  void call_experts(std::int32_t round, std::int32_t local_rank);
};

Expected<Driver> Driver::make(const Subject& subject, const GroupSetup& setup,
                              DriverOptions options) {
  ASSAY_CHECK(check_setup(setup));
  GroupSetup own = setup;
  if (own.profile == nullptr) own.profile = &moe::default_combine_profile();
  ASSAY_TRY(moe::Placement placement,
            moe::Placement::contiguous(own.ep_size, own.num_experts));
  ASSAY_TRY(moe::Combine combine,
            moe::Combine::make(own.profile->arithmetic, {.top_k = own.top_k,
                                                         .dtype = own.combine_dtype,
                                                         .low_precision =
                                                             own.low_precision_combine}));
  return Driver(std::make_unique<Impl>(subject, std::move(own), std::move(options),
                                       std::move(placement), std::move(combine)));
}

Driver::Driver(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Driver::Driver(Driver&&) noexcept = default;
Driver& Driver::operator=(Driver&&) noexcept = default;
Driver::~Driver() = default;

const GroupSetup& Driver::setup() const { return impl_->setup; }

Expected<Outcome> Driver::run(std::span<const Round> rounds) { return impl_->run(rounds); }

Expected<Outcome> Driver::Impl::run(std::span<const Round> rounds) {
  const auto start = Clock::now();
  Outcome outcome;
  if (rounds.empty()) return outcome;
  for (const Round& round : rounds) ASSAY_CHECK(check_round(setup, round));
  if (!created) {
    const Group::Result result = create_group(rounds);
    if (result.state == Group::State::kUnsupported) {
      outcome.state = Outcome::State::kUnsupported;
      outcome.unsupported = result.message;
      return outcome;
    }
    if (result.state == Group::State::kFailed) {
      outcome.state = Outcome::State::kMismatch;
      outcome.mismatches.push_back(
          mismatch_of("progress", "create failed: " + result.message, {}));
      outcome.mismatching_rounds = 1;
      return outcome;
    }
    created = true;
  }
  ASSAY_CHECK(prepare(rounds));
  experts_ns = 0;
  const auto before_run = Clock::now();
  std::vector<assay_round> abi;
  for (const AbiRound& round : batch().abi) abi.push_back(round.round);
  const auto call = [](void* self, std::int32_t round, std::int32_t rank) {
    static_cast<Impl*>(self)->call_experts(round, rank);
  };
  Group::Result result =
      group.run(abi.data(), static_cast<std::int32_t>(abi.size()), call, this);
  outcome.experts_seconds = static_cast<double>(experts_ns) * 1e-9;
  outcome.subject_seconds = seconds_since(before_run) - outcome.experts_seconds;
  check(std::move(result), outcome);
  outcome.check_seconds =
      seconds_since(start) - outcome.subject_seconds - outcome.experts_seconds;
  return outcome;
}

Group::Result Driver::Impl::create_group(std::span<const Round> rounds) {
  if (setup.max_payload_bytes_total == 0) {
    for (const Round& round : rounds) {
      setup.max_payload_bytes_total =
          std::max(setup.max_payload_bytes_total,
                   static_cast<std::int32_t>(payload_bytes_total(round)));
    }
  }
  const std::string profile(setup.profile->name);
  assay_group_config config{};
  config.struct_size = sizeof config;
  config.ep_size = setup.ep_size;
  config.first_rank = 0;
  config.num_local_ranks = setup.ep_size;
  config.num_experts = setup.num_experts;
  config.top_k = setup.top_k;
  config.hidden_size = setup.hidden_size;
  config.max_tokens_per_rank = setup.max_tokens_per_rank;
  config.max_payload_bytes_total = setup.max_payload_bytes_total;
  config.invalid_expert_id = setup.invalid_expert_id;
  config.combine_dtype = abi_dtype(setup.combine_dtype);
  config.low_precision_combine = setup.low_precision_combine ? 1 : 0;
  config.profile = profile.c_str();
  config.options = setup.options.c_str();
  config.seed = setup.seed;
  return group.create(subject, config);
}

Status Driver::Impl::prepare(std::span<const Round> rounds) {
  current = 1 - current;
  Batch& now = batch();
  now.arena.reset();
  now.views.clear();
  now.abi.clear();
  now.weights.clear();
  now.views.resize(rounds.size());
  now.abi.resize(rounds.size());
  wild_calls = 0;
  for (std::size_t r = 0; r < rounds.size(); ++r) {
    RoundView& view = now.views[r];
    view.setup = &setup;
    view.placement = &placement;
    view.combine = &combine;
    view.round = &rounds[r];
    view.number = rounds_done + static_cast<std::int64_t>(r);
    view.previous = r == 0 ? last : &now.views[r - 1];
    view.alive = rounds[r].alive;
    for (const RoundPayload& entry : rounds[r].payloads) view.payloads.push_back(entry.payload);
    ASSAY_TRY(view.routing, moe::Routing::make(setup.top_k, rounds[r].max_tokens_per_rank,
                                               rounds[r].topk_ids));
    ASSAY_TRY(view.legal,
              moe::plan_dispatch(placement, *view.routing, setup.slot_rule, view.alive));
    prepare_buffers(view, now.abi[r]);
    now.weights.push_back(weights_payload(setup, view.payloads));
  }
  return Done{};
}

void Driver::Impl::prepare_buffers(RoundView& view, AbiRound& abi) {
  BufferArena& arena = batch().arena;
  const std::int32_t ep = setup.ep_size;
  const std::byte poison = poison_of_round(view.number);
  const std::size_t payloads = view.payloads.size();
  view.recv.resize(payloads);
  abi.rows.resize(payloads);
  abi.recv.resize(payloads);
  for (std::size_t p = 0; p < payloads; ++p) {
    const moe::Payload& payload = view.payloads[p];
    abi.payloads.push_back({payload.name.c_str(),
                            static_cast<std::uint32_t>(payload.bytes_per_token),
                            payload.holds_expert_ids ? 1 : 0});
    for (RankId rank{0}; rank.value() < ep; rank = rank.next()) {
      view.recv[p].push_back(arena.take(moe::recv_bytes(*view.legal, payload), poison));
      abi.recv[p].push_back(view.recv[p].back().data);
      abi.rows[p].push_back(view.source_rows(p, rank));
    }
    abi.rows_of.push_back(abi.rows[p].data());
    abi.recv_of.push_back(abi.recv[p].data());
  }
  for (RankId rank{0}; rank.value() < ep; rank = rank.next()) {
    const std::int64_t tokens = view.num_tokens(rank);
    const std::int64_t picks = tokens * setup.top_k * 4;
    view.recv_counters.push_back(arena.take(std::int64_t{ep} * 4, poison));
    view.target_rank.push_back(arena.take(picks, poison));
    view.target_slot.push_back(arena.take(picks, poison));
    // The experts fill it as a whole.
    view.expert_out.push_back(
        arena.take(std::int64_t{ep} * view.max_tokens() * view.expert_row_bytes(), poison, false));
    view.out.push_back(arena.take(tokens * view.out_row_bytes(), poison));
    view.expert_calls.push_back(0);
    view.expert_digest.push_back(0);
    view.input_digest.push_back(input_digest(view, rank));
    abi.num_tokens.push_back(static_cast<std::int32_t>(tokens));
    abi.topk_ids.push_back(view.round->topk_ids[index(rank)].data());
    abi.recv_counters.push_back(reinterpret_cast<std::int32_t*>(view.recv_counters.back().data));
    abi.target_rank.push_back(reinterpret_cast<std::int32_t*>(view.target_rank.back().data));
    abi.target_slot.push_back(reinterpret_cast<std::int32_t*>(view.target_slot.back().data));
    abi.expert_out.push_back(view.expert_out.back().data);
    abi.out.push_back(view.out.back().data);
  }
  assay_round& round = abi.round;
  round.struct_size = sizeof round;
  round.max_tokens_per_rank = view.max_tokens();
  round.num_payloads = static_cast<std::int32_t>(payloads);
  round.payloads = abi.payloads.data();
  round.rank_mask = view.alive == moe::RankMask::all() ? nullptr : view.alive.words().data();
  round.num_tokens = abi.num_tokens.data();
  round.topk_ids = abi.topk_ids.data();
  round.payload_rows = abi.rows_of.data();
  round.recv = abi.recv_of.data();
  round.recv_counters = abi.recv_counters.data();
  round.target_rank = abi.target_rank.data();
  round.target_slot = abi.target_slot.data();
  round.expert_out = abi.expert_out.data();
  round.out = abi.out.data();
}

void Driver::Impl::call_experts(std::int32_t round, std::int32_t local_rank) {
  const auto start = Clock::now();
  Batch& now = batch();
  if (round < 0 || static_cast<std::size_t>(round) >= now.views.size() || local_rank < 0 ||
      local_rank >= setup.ep_size) {
    ++wild_calls;
    return;
  }
  RoundView& view = now.views[static_cast<std::size_t>(round)];
  const RankId rank(local_rank);
  std::vector<moe::ReceivedPayload> received;
  for (std::size_t p = 0; p < view.payloads.size(); ++p)
    received.push_back({view.payloads[p], view.recv[p][index(rank)].bytes()});
  // A wrong counter is dispatch.counters' finding; here it must not lead out of the buffer.
  std::vector<std::int32_t> counters;
  for (const std::int32_t counter : view.counters_of(rank))
    counters.push_back(std::min(std::max(counter, 0), view.max_tokens()));
  const OutputBuffer& out = view.expert_out[index(rank)];
  if (options.experts) {
    fill_with_nan(out, setup.combine_dtype);
    options.experts({round, rank, view.max_tokens(), received, counters, out.bytes()});
  } else {
    moe::stand_in_rank({.key = setup.experts_key,
                        .dtype = setup.combine_dtype,
                        .hidden_size = setup.hidden_size,
                        .nan_and_inf = setup.nan_and_inf},
                       placement, rank, view.max_tokens(), setup.slot_rule, received,
                       now.weights[static_cast<std::size_t>(round)], counters, out.bytes());
  }
  ++view.expert_calls[index(rank)];
  view.expert_digest[index(rank)] = digest(out);
  experts_ns +=
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
}

std::optional<Mismatch> Driver::Impl::find_lack_of_progress(const Group::Result& result) const {
  if (result.state == Group::State::kFailed)
    return mismatch_of("progress", result.message, {{"round", rounds_done}});
  if (wild_calls > 0) {
    return mismatch_of(
        "progress",
        fmt::format("the experts were called {} times for a round or rank that does not exist",
                    wild_calls.load()),
        {{"round", rounds_done}});
  }
  for (const RoundView& view : batches[current].views) {
    for (RankId rank{0}; rank.value() < setup.ep_size; rank = rank.next()) {
      const std::int32_t calls = view.expert_calls[index(rank)];
      if (calls == 1 || (calls == 0 && !view.is_alive(rank))) continue;
      return mismatch_of("progress",
                         fmt::format("the experts of rank {} were called {} times in round {}; "
                                     "they must be called once",
                                     rank.value(), calls, view.number),
                         {{"round", view.number}, {"rank", rank.value()}});
    }
  }
  return std::nullopt;
}

void Driver::Impl::check(Group::Result result, Outcome& outcome) {
  if (result.state == Group::State::kUnsupported) {
    outcome.state = Outcome::State::kUnsupported;
    outcome.unsupported = result.message;
    last = nullptr;
    return;
  }
  const auto progress = find_lack_of_progress(result);
  if (progress) outcome.mismatches.push_back(*progress);
  for (RoundView& view : batch().views) {
    std::vector<Mismatch> found;
    if (progress) {
      // Outputs of a run that did not end say nothing; what lies outside of them still does.
      check_memory_bounds(view, found);
    } else {
      examine(view);
      for (const Check& one : checks())
        if (one.run != nullptr) one.run(view, found);
      add_coverage(view, outcome.coverage);
    }
    if (!found.empty() || progress) ++outcome.mismatching_rounds;
    for (Mismatch& mismatch : found) {
      if (outcome.mismatches.size() < static_cast<std::size_t>(options.mismatches_max))
        outcome.mismatches.push_back(std::move(mismatch));
    }
  }
  if (!outcome.mismatches.empty()) outcome.state = Outcome::State::kMismatch;
  for (RoundView& view : batch().views) view.round = nullptr;
  last = progress ? nullptr : &batch().views.back();
  // Nobody looks back further than one round, and the round before this one will be overwritten.
  batch().views.back().previous = nullptr;
  rounds_done += static_cast<std::int64_t>(batch().views.size());
}

}  // namespace assay::verify
