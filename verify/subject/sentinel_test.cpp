// Sentinel where no suite reaches: which words are left behind, generations that are too few, peers
// that disagree or stay silent, recovery, keys that are hard to find, rows of experts full of the
// sentinel. What bytes arrive otherwise is tested by the suites.
#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "cuda/kernels/one_sided/matrix.hpp"
#include "cuda/kernels/one_sided/workspace_layout.hpp"
#include "model/core/testing.hpp"
#include "model/machine/machine.hpp"
#include "verify/subject/driver.hpp"
#include "verify/suites/suites.hpp"

using namespace assay;
using namespace assay::one_sided;
using machine::Fill;
using machine::Machine;
using machine::MachineConfig;
using machine::SimOps;

namespace {

constexpr RankId kRank0{0}, kRank1{1};
constexpr std::int32_t kMax = 3;
constexpr std::uint32_t kRowBytes = 12;
constexpr std::uint32_t kHidden = 10;  // bf16: a tail of four bytes in the second vector

GroupCapacity capacity(std::uint32_t payload_bytes, std::int32_t generations) {
  GroupCapacity c;
  c.ep_size = 2;
  c.top_k = 2;
  c.max_tokens_per_rank = kMax;
  c.payload_bytes_total = payload_bytes;
  c.row_bytes = kHidden * 2;
  c.sentinel_max_tokens = kMax;
  c.dispatch_generations = generations;
  return c;
}

// Two ranks with one payload, top_k 2, four experts: rank 0 owns 0 and 1, rank 1 owns 2 and 3.
class TwoRanks {
 public:
  explicit TwoRanks(MachineConfig config = {}, std::uint32_t payload_bytes = kRowBytes,
                    std::int32_t generations = GroupCapacity::kDispatchGenerations)
      : bytes_(payload_bytes),
        workspace_(*Workspace::make(capacity(payload_bytes, generations))),
        machine_([&] {
          config.num_ranks = 2;
          waiters_ = std::min(config.resident_ctas, kGroups);
          return config;
        }()) {
    window_ = machine_.allocate_window("workspace", workspace_.window_bytes(), 128, Fill::kPoison);
    for (RankId rank{0}; rank.value() < 2; rank = rank.next()) {
      ids_.push_back(machine_.allocate(rank, "ids", kMax * 8, 4, Fill::kPoison));
      rows_.push_back(machine_.allocate(rank, "rows", kMax * payload_bytes, 16, Fill::kPoison));
      out_.push_back(machine_.allocate(rank, "out", kMax * kHidden * 2, 16, Fill::kPoison));
      machine_.fill(rows_.back(), kMax * payload_bytes, std::byte{0x10});
      machine_.fill(window_.of(rank).at(workspace_.rows_offset()), 2 * kMax * kHidden * 2,
                    std::byte{0xFF});
    }
    initialise();
  }

  // What a collective initialisation and a recovery do.
  void initialise() {
    for (RankId rank{0}; rank.value() < 2; rank = rank.next()) {
      for (const WindowRange& range : workspace_.zeroed_ranges())
        machine_.fill(window_.of(rank).at(range.offset_bytes), range.bytes, std::byte{0});
      for (const WindowRange& range : workspace_.armed_ranges())
        machine_.fill(window_.of(rank).at(range.offset_bytes), range.bytes, std::byte{0xFF});
    }
  }

  void dispatch(RankId rank, std::vector<std::int32_t> ids, std::int32_t max = kMax) {
    const auto r = static_cast<std::size_t>(rank.value());
    const auto write = [this, r, ids] {
      if (!ids.empty()) machine_.write(ids_[r], std::as_bytes(std::span(ids)));
    };
    machine_.enqueue_host(rank, machine::kDefaultStream, "ids", write);
    SentinelDispatchParams params{};
    params.dispatch.group = group(max);
    params.dispatch.experts = split_experts(4, 2);
    params.dispatch.num_tokens = static_cast<std::uint32_t>(ids.size() / 2);
    params.dispatch.num_payloads = 1;
    params.dispatch.topk_ids = ids_[r];
    params.dispatch.payload[0] = {rows_[r], workspace_.payload_offsets(shape(max))[0], bytes_, 4};
    describe_token(params.dispatch);
    params.sentinel = sentinel();
    params.ids_payload = kMaxPayloads;
    const auto body = [params](SimOps& ops) { sentinel_dispatch<2>(ops, params); };
    machine_.enqueue(rank, machine::kDefaultStream, {"dispatch", kGroups, body});
  }
  void combine(RankId rank, std::uint32_t tokens, std::int32_t max = kMax) {
    SentinelCombineParams params{};
    params.combine.group = group(max);
    params.combine.num_tokens = tokens;
    params.combine.hidden_size = kHidden;
    params.combine.vector_bytes = 2;
    params.combine.rows_offset = workspace_.rows_offset();
    params.combine.out = out_[static_cast<std::size_t>(rank.value())];
    params.sentinel = sentinel();
    params.rows = RowFormat::kBf16;
    params.pull_bytes = 4;
    params.top_k = 2;
    const auto body = [params](SimOps& ops) {
      sentinel_combine<SumTraits<Sum::kF32>, Bf16, Bf16, 2>(ops, params);
    };
    machine_.enqueue(rank, machine::kDefaultStream, {"combine", kGroups, body});
  }

  machine::RunResult run() { return machine_.run(); }
  Machine& machine() { return machine_; }
  std::uint32_t word(RankId rank, std::uint64_t offset) {
    std::uint32_t value = 0;
    machine_.peek(window_.of(rank).at(offset), {reinterpret_cast<std::byte*>(&value), 4});
    return value;
  }
  std::uint32_t status(RankId rank, std::uint64_t field) {
    return word(rank, workspace_.offsets().status + field);
  }
  bool all_armed(RankId rank) {
    for (const WindowRange& range : workspace_.armed_ranges())
      for (std::uint64_t at = 0; at < range.bytes; at += 4)
        if (word(rank, range.offset_bytes + at) != kSentinel) return false;
    return true;
  }
  // Row [source, slot] of the only payload, as received.
  std::vector<std::byte> received(RankId rank, std::uint64_t source, std::uint64_t slot) {
    std::vector<std::byte> row(bytes_);
    machine_.peek(window_.of(rank).at(workspace_.payload_offsets(shape(kMax))[0] +
                                      (source * kMax + slot) * bytes_),
                  row);
    return row;
  }
  Address rows(RankId rank) const { return rows_[static_cast<std::size_t>(rank.value())]; }
  const Workspace& workspace() const { return workspace_; }
  std::uint32_t waiters() const { return waiters_; }
  RoundShape shape(std::int32_t max) const {
    RoundShape round;
    round.num_experts = 4;
    round.max_tokens_per_rank = max;
    round.payload_bytes = {bytes_};
    round.alive.word[0] = 3;
    return round;
  }

  static constexpr std::uint32_t kGroups = 3;

 private:
  GroupParams group(std::int32_t max) const {
    GroupParams params{};
    params.window = window_;
    params.at = workspace_.offsets();
    params.alive = shape(max).alive;
    params.ep_size = 2;
    params.layout_digest = workspace_.round_digest(shape(max));
    params.max_tokens_per_rank = static_cast<std::uint32_t>(max);
    return params;
  }
  SentinelParams sentinel() const {
    SentinelParams params = workspace_.sentinel_params();
    params.waiters = waiters_;
    return params;
  }

  std::uint32_t bytes_;
  std::uint32_t waiters_ = kGroups;
  Workspace workspace_;
  Machine machine_;
  Window window_;
  std::vector<Address> ids_, rows_, out_;
};

std::uint32_t number_of(Failure failure) { return static_cast<std::uint32_t>(failure); }

}  // namespace

TEST_CASE("Sentinel ends with as many resident groups as wait, and leaves every word armed",
          "[KER-6.4][KER-6.5][KER-6.6]") {
  testing::prop("four rounds of several sizes", [](std::uint64_t seed) {
    MachineConfig config;
    config.seed = seed;
    config.resident_ctas = 1 + static_cast<std::uint32_t>(seed % 3);
    config.group_size = 1 + static_cast<std::uint32_t>(seed / 3 % 4);
    TwoRanks ranks(config);
    for (const std::int32_t max : {3, 2, 3, 3}) {
      const bool full = max == 3;
      ranks.dispatch(
          kRank0,
          full ? std::vector<std::int32_t>{0, 2, 3, 1, -1, 3} : std::vector<std::int32_t>{2, 2},
          max);
      ranks.dispatch(kRank1, {}, max);
      ranks.combine(kRank0, full ? 3 : 1, max);
      ranks.combine(kRank1, 0, max);
    }
    const auto result = ranks.run();
    RC_ASSERT(result.report == "");
    for (const RankId rank : {kRank0, kRank1}) {
      const SentinelOffsets at = ranks.workspace().offsets().sentinel;
      RC_ASSERT(ranks.status(rank, StatusWord::kFailure) == 0u);
      RC_ASSERT(ranks.word(rank, at.dispatch_phase) == 8u);
      RC_ASSERT(ranks.word(rank, at.dispatch_ticket) == 0u);
      RC_ASSERT(ranks.word(rank, at.recv_counters) == 0u);
      RC_ASSERT(ranks.all_armed(rank));
    }
  });
}

TEST_CASE("one generation of slots is too few, two are enough", "[KER-6.4]") {
  // Rank 0 sends to itself only, so nothing but a header of the next round tells it about rank 1.
  const auto fails = [](std::int32_t generations) {
    int failures = 0;
    for (std::uint64_t seed = 1; seed <= 60; ++seed) {
      MachineConfig config;
      config.seed = seed;
      config.group_size = 1;
      TwoRanks ranks(config, kRowBytes, generations);
      for (int round = 0; round < 4; ++round)
        for (const RankId rank : {kRank0, kRank1}) {
          ranks.dispatch(rank, {0, 0});
          ranks.combine(rank, 1);
        }
      const auto result = ranks.run();
      const bool sound =
          result.ok() && ranks.status(kRank0, 0) == 0 && ranks.status(kRank1, 0) == 0;
      failures += sound ? 0 : 1;
    }
    return failures;
  };
  CHECK(fails(1) > 0);
  CHECK(fails(2) == 0);
}

TEST_CASE("a header word is never the sentinel and tells rounds and phases apart", "[KER-6.2]") {
  testing::prop("any digest and phase", [](std::uint32_t digest, std::uint32_t phase) {
    for (const std::uint32_t contents : {0u, 1u, 22u, 31u}) {
      const std::uint32_t word = HeaderWord::make(digest, phase, contents);
      RC_ASSERT(word != kSentinel);
      RC_ASSERT(HeaderWord::contents(word) == contents);
      RC_ASSERT(HeaderWord::same_round(word, HeaderWord::make(digest, phase, 0)));
      RC_ASSERT(!HeaderWord::same_round(word, HeaderWord::make(digest, phase + 1, contents)));
    }
  });
}

TEST_CASE("Sentinel: ranks that disagree about a round's sizes find out, and name the peer",
          "[KER-6.2]") {
  MachineConfig config;
  config.timeouts_fire = true;  // the larger round also waits for slots that nobody fills
  TwoRanks ranks(config);
  ranks.dispatch(kRank0, {0, 2}, 3);
  ranks.dispatch(kRank1, {0, 2}, 2);
  CHECK(ranks.run().ok());
  for (const RankId rank : {kRank0, kRank1}) {
    CHECK(ranks.status(rank, StatusWord::kFailure) == number_of(Failure::kOtherLayout));
    CHECK(ranks.status(rank, StatusWord::kEpoch) == 1u);
    CHECK(ranks.status(rank, StatusWord::kPeer) == 1u - static_cast<unsigned>(rank.value()));
  }
}

TEST_CASE("Sentinel: a silent peer ends the wait at its budget; recovery makes a new start",
          "[KER-6.7][KER-3.3]") {
  MachineConfig config;
  config.timeouts_fire = true;
  TwoRanks ranks(config);
  ranks.dispatch(kRank0, {0, 2});
  CHECK(ranks.run().ok());
  CHECK(ranks.status(kRank0, StatusWord::kFailure) == number_of(Failure::kTimeOut));
  CHECK(ranks.status(kRank0, StatusWord::kPeer) == 1u);
  CHECK(ranks.status(kRank0, StatusWord::kEpoch) == 1u);
  CHECK(ranks.status(kRank0, StatusWord::kSeen) == kSentinel);

  // Nobody sends or waits in a workspace that has failed.
  const std::uint32_t header = ranks.word(kRank1, ranks.workspace().offsets().sentinel.slots);
  ranks.dispatch(kRank0, {2, 3});
  ranks.combine(kRank0, 1);
  const auto after = ranks.run();
  CHECK(after.ok());
  CHECK(after.counters.timeouts == 0);
  CHECK(ranks.word(kRank1, ranks.workspace().offsets().sentinel.slots) == header);

  ranks.initialise();
  for (int round = 0; round < 3; ++round) {
    for (const RankId rank : {kRank0, kRank1}) ranks.dispatch(rank, {0, 2});
    for (const RankId rank : {kRank0, kRank1}) ranks.combine(rank, 1);
  }
  const auto again = ranks.run();
  CHECK(again.report == "");
  CHECK(again.counters.timeouts == 0);
  for (const RankId rank : {kRank0, kRank1}) {
    CHECK(ranks.status(rank, StatusWord::kFailure) == 0u);
    CHECK(ranks.all_armed(rank));
  }
}

TEST_CASE("Sentinel: a row that does not come back is a time-out that names its rank",
          "[KER-6.6][KER-3.1]") {
  MachineConfig config;
  config.timeouts_fire = true;
  TwoRanks ranks(config);
  ranks.dispatch(kRank0, {2, 0});  // to both ranks
  ranks.dispatch(kRank1, {});
  ranks.combine(kRank0, 1);  // and rank 1 has no combine
  CHECK(ranks.run().ok());
  CHECK(ranks.status(kRank0, StatusWord::kFailure) == number_of(Failure::kTimeOut));
  CHECK(ranks.status(kRank0, StatusWord::kPeer) == 1u);
  CHECK(ranks.status(kRank0, StatusWord::kEpoch) == 2u);
  CHECK(ranks.status(kRank1, StatusWord::kFailure) == 0u);
}

TEST_CASE("every row has a key, and arrives as it was sent", "[KER-6.1][KER-6.3]") {
  // Words that spoil the first 32, 64 and 96 keys, in rows with a tail.
  testing::prop("rows that spoil many keys", [](std::uint64_t seed) {
    const auto spoiled = static_cast<std::uint32_t>(seed % 4 * 32);
    const std::uint32_t bytes = spoiled * 4 + 4 * static_cast<std::uint32_t>(1 + seed / 4 % 5);
    MachineConfig config;
    config.seed = seed;
    TwoRanks ranks(config, bytes);
    std::vector<std::uint32_t> row(bytes / 4, kSentinel);
    for (std::uint32_t i = 0; i < spoiled; ++i) row[i] = ~i;
    ranks.machine().write(ranks.rows(kRank0), std::as_bytes(std::span(row)));
    ranks.dispatch(kRank0, {0, 3});
    ranks.dispatch(kRank1, {});
    const auto result = ranks.run();
    RC_ASSERT(result.report == "");
    for (const RankId rank : {kRank0, kRank1}) {
      const std::vector<std::byte> got = ranks.received(rank, 0, 0);
      RC_ASSERT(std::memcmp(got.data(), row.data(), bytes) == 0);
    }
  });
}

TEST_CASE("slots lie where capacity puts them, whatever a round's sizes", "[KER-6.1][KER-6.8]") {
  const Workspace workspace = *Workspace::make(capacity(kRowBytes, 2));
  const SentinelParams params = workspace.sentinel_params();
  CHECK(params.slot_bytes % 16 == 0);
  CHECK(params.slot_bytes >= 16 + 16 * kMaxPayloads * ((kRowBytes + 15) / 16 - 1) + kRowBytes);
  CHECK(params.cell_bytes == 16 + 32);
  CHECK(workspace.protocol_of(kMax) == Protocol::kSentinel);
  CHECK(workspace.protocol_of(kMax + 1) == Protocol::kFence);
  // No byte belongs to both protocols' receive buffers, and only slots and cells are armed.
  for (const WindowRange& armed : workspace.armed_ranges())
    for (const WindowRange& zeroed : workspace.zeroed_ranges())
      CHECK((armed.offset_bytes + armed.bytes <= zeroed.offset_bytes ||
             zeroed.offset_bytes + zeroed.bytes <= armed.offset_bytes));
  GroupCapacity three = capacity(kRowBytes, 3);
  CHECK(!Workspace::make(three).has_value());
  three.dispatch_generations = 2;
  three.sentinel_max_tokens = kMax + 1;
  CHECK(!Workspace::make(three).has_value());
}

TEST_CASE("generated rows of ones spoil every small key", "[VER-6.5]") {
  auto c =
      parse_moe_case("ep=1 experts=1 top_k=1 hidden=80 max_tokens=3 tokens=3 rounds=1", MoeCase{});
  verify::Axes axes;
  axes.all_ones = true;
  const auto scenario = verify::make_scenario(*c, axes);
  REQUIRE(scenario.has_value());
  verify::Round round;
  verify::fill_round(*scenario, 0, round);
  const std::vector<std::byte>& rows = round.payloads[0].rows[0];
  REQUIRE(rows.size() == 3 * 160);
  std::uint32_t words[80];
  std::memcpy(words, rows.data(), sizeof words);
  for (std::uint32_t i = 0; i < 40; ++i) {
    CHECK(words[i] == kSentinel);
    CHECK((words[40 + i] ^ i) == kSentinel);
  }
}

TEST_CASE("experts' rows full of the sentinel come back as they are", "[KER-6.3][KER-6.6]") {
  // One pick and f32: combine copies, so every bit of a row is seen at home.
  verify::Suite suite = **verify::find_suite("sentinel");
  auto c = parse_moe_case(
      "ep=3 experts=6 top_k=1 hidden=37 max_tokens=4 tokens=4,0,3 rounds=4 seed=3", MoeCase{});
  REQUIRE(c.has_value());
  suite.axes.dtype = moe::Dtype::kF32;
  const auto scenario = verify::make_scenario(*c, suite.axes);
  REQUIRE(scenario.has_value());
  const auto subject = verify::load_subject("sim");
  verify::DriverOptions options;
  options.experts = [](const verify::ExpertsCall& call) {
    auto* words = reinterpret_cast<std::uint32_t*>(call.expert_out.data());
    for (std::size_t i = 0; i < call.expert_out.size() / 4; ++i)
      words[i] = i % 3 == 0 ? kSentinel : ~static_cast<std::uint32_t>(i % 37);
  };
  auto driver = verify::Driver::make(*subject, scenario->setup, options);
  REQUIRE(driver.has_value());
  std::vector<verify::Round> rounds(4);
  for (std::int32_t r = 0; r < 4; ++r)
    verify::fill_round(*scenario, r, rounds[static_cast<std::size_t>(r)]);
  const auto outcome = driver->run(rounds);
  REQUIRE(outcome.has_value());
  INFO((outcome->mismatches.empty() ? std::string() : outcome->mismatches.front().sentence));
  CHECK(outcome->state == verify::Outcome::State::kConforms);
  CHECK(outcome->coverage.combine_elements > 0);
}
