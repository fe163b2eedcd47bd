// The order of a run: prepare, call the subject, stand in for experts, examine, check.
#include "verify/subject/driver.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <optional>

#include "model/moe/moe.hpp"
#include "model/numerics/numerics.hpp"
#include "verify/checks/checks.hpp"
#include "verify/subject/abi_round.hpp"
#include "verify/subject/buffers.hpp"
#include "verify/subject/coverage.hpp"

namespace assay::verify {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::size_t index(RankId rank) { return static_cast<std::size_t>(rank.value()); }

// Another byte every round, so that poison of one round never passes for that of another; never the
// guards' byte, and never 0, 0xFF or an expert id's most common bytes.
std::byte poison_of_round(std::int64_t number) {
  return static_cast<std::byte>(0xA1 + 2 * (number % 23));
}

// The rounds of one run with everything that hangs on them. Two take turns, so that the last round
// of a run is still there when the next one is checked.
struct Batch {
  BufferArena arena;
  std::vector<RoundView> views;
  std::vector<AbiRound> abi;
  std::vector<std::optional<std::size_t>> weights;  // the payload of router weights, per round
  std::vector<bool> asked;  // per round: whether the subject asked what more there is
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
    case moe::Dtype::kBf16:
      return fill(numerics::canonical_nan<Bf16>());
    case moe::Dtype::kF16:
      return fill(numerics::canonical_nan<F16>());
    case moe::Dtype::kF32:
      return fill(numerics::canonical_nan<F32>());
    case moe::Dtype::kE4m3:
      break;  // check_setup refuses it
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
  std::atomic<std::int64_t> wild_calls{0};  // for a round or rank that does not exist

  Batch& batch() { return batches[current]; }

  Expected<Outcome> run(std::span<const Round> rounds);
  Group::Result create_group(std::span<const Round> rounds);
  Status prepare(std::span<const Round> rounds);
  void check(Group::Result result, Outcome& outcome);
  std::optional<Mismatch> find_lack_of_progress(const Group::Result& result) const;
  bool was_received(const RoundView& view) const;
  bool wants_more() const { return setup.num_statistics > 0 || setup.expert_lists; }
  const assay_round_more* more_of(std::int32_t round);
  void call_experts(std::int32_t round, std::int32_t local_rank);
};

Expected<Driver> Driver::make(const Subject& subject, const GroupSetup& setup,
                              DriverOptions options) {
  ASSAY_CHECK(check_setup(setup));
  GroupSetup own = setup;
  if (own.profile == nullptr) own.profile = &moe::default_combine_profile();
  ASSAY_TRY(moe::Placement placement, moe::Placement::contiguous(own.ep_size, own.num_experts));
  ASSAY_TRY(moe::Combine combine, moe::Combine::make(own.profile->arithmetic,
                                                     {.top_k = own.top_k,
                                                      .dtype = own.combine_dtype,
                                                      .low_precision = own.low_precision_combine}));
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
  for (const Round& round : rounds) {
    ASSAY_CHECK(check_round(setup, round));
    if (!(round.alive == rounds.front().alive))  // (SPEC KER-2.6)
      return bad_input(
          "the rounds of one run have different rank masks; ranks come and go between "
          "runs only");
  }
  if (!created) {
    const Group::Result result = create_group(rounds);
    if (result.state == Group::State::kUnsupported) {
      outcome.state = Outcome::State::kUnsupported;
      outcome.unsupported = result.message;
      return outcome;
    }
    if (result.state == Group::State::kBadOptions) return bad_input(result.message);
    if (result.state == Group::State::kFailed) {
      outcome.state = Outcome::State::kMismatch;
      outcome.mismatches.push_back(mismatch_of("progress", "create failed: " + result.message, {}));
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
  Group::Result result = group.run(abi.data(), static_cast<std::int32_t>(abi.size()), call, this);
  const auto& asked = batch().asked;
  if (result.state == Group::State::kOk && wants_more() &&
      std::find(asked.begin(), asked.end(), false) != asked.end())
    result = {
        Group::State::kUnsupported,
        "the subject did not ask what its rounds want beyond dispatch and combine (statistics, "
        "slot lists): it serves neither"};
  outcome.experts_seconds = static_cast<double>(experts_ns) * 1e-9;
  outcome.subject_seconds = seconds_since(before_run) - outcome.experts_seconds;
  check(std::move(result), outcome);
  outcome.check_seconds = seconds_since(start) - outcome.subject_seconds - outcome.experts_seconds;
  return outcome;
}

Group::Result Driver::Impl::create_group(std::span<const Round> rounds) {
  if (setup.max_payload_bytes_total == 0) {
    for (const Round& round : rounds) {
      setup.max_payload_bytes_total = std::max(
          setup.max_payload_bytes_total, static_cast<std::int32_t>(payload_bytes_total(round)));
    }
  }
  assay_group_config config = abi_config(setup);
  if (wants_more()) {
    config.more = [](void* self, std::int32_t round) {
      return static_cast<Impl*>(self)->more_of(round);
    };
    config.more_context = this;
  }
  return group.create(subject, config);
}

Status Driver::Impl::prepare(std::span<const Round> rounds) {
  current = 1 - current;
  Batch& now = batch();
  now.arena.reset();
  now.views.clear();
  now.abi.clear();
  now.weights.clear();
  now.asked.assign(rounds.size(), false);
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
    ASSAY_TRY(view.routing,
              moe::Routing::make(setup.top_k, rounds[r].max_tokens_per_rank, rounds[r].topk_ids));
    ASSAY_TRY(const moe::SlotRule rule, group.slot_rule(rounds[r].max_tokens_per_rank));
    ASSAY_TRY(view.legal, moe::plan_dispatch(placement, *view.routing, rule, view.alive));
    take_buffers(view, now.arena, poison_of_round(view.number));
    point_at(view, now.abi[r]);
    now.weights.push_back(weights_payload(setup, view.payloads));
  }
  return Done{};
}

// (SPEC VER-1.7)
const assay_round_more* Driver::Impl::more_of(std::int32_t round) {
  Batch& now = batch();
  if (round < 0 || static_cast<std::size_t>(round) >= now.abi.size()) {
    ++wild_calls;
    return nullptr;
  }
  now.asked[static_cast<std::size_t>(round)] = true;
  return &now.abi[static_cast<std::size_t>(round)].more;
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
                       placement, rank, view.max_tokens(), view.legal->slot_rule(), received,
                       now.weights[static_cast<std::size_t>(round)], counters, out.bytes());
  }
  ++view.expert_calls[index(rank)];
  view.expert_digest[index(rank)] = digest(out);
  experts_ns += std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
}

std::optional<Mismatch> Driver::Impl::find_lack_of_progress(const Group::Result& result) const {
  if (result.state == Group::State::kFailed)
    return mismatch_of("progress", result.message, {{"round", rounds_done}});
  if (wild_calls > 0) {
    return mismatch_of(
        "progress",
        fmt::format("the subject called back {} times for a round or rank that does not exist",
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

// Whether every living rank had received its rows: experts are called for a rank when it has.
bool Driver::Impl::was_received(const RoundView& view) const {
  for (RankId rank{0}; rank.value() < setup.ep_size; rank = rank.next())
    if (view.is_alive(rank) && view.expert_calls[index(rank)] == 0) return false;
  return true;
}

void Driver::Impl::check(Group::Result result, Outcome& outcome) {
  if (result.state == Group::State::kUnsupported) {
    outcome.state = Outcome::State::kUnsupported;
    outcome.unsupported = result.message;
    last = nullptr;
    return;
  }
  const auto progress = find_lack_of_progress(result);
  for (RoundView& view : batch().views) {
    std::vector<Mismatch> found;
    if (progress && !was_received(view)) {
      // Outputs that were not finished say nothing; what lies outside of them still does.
      check_memory_bounds(view, found);
    } else {
      // A run that fails after dispatch often fails because of it: the cause is told first.
      examine(view, !progress);
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
  if (progress) outcome.mismatches.push_back(*progress);
  if (!outcome.mismatches.empty()) outcome.state = Outcome::State::kMismatch;
  for (RoundView& view : batch().views) view.round = nullptr;
  last = progress ? nullptr : &batch().views.back();
  // Nobody looks back further than one round, and the round before this one will be overwritten.
  batch().views.back().previous = nullptr;
  rounds_done += static_cast<std::int64_t>(batch().views.size());
}

}  // namespace assay::verify
