// The kernels' protocol where no subject interface reaches: ranks that disagree, peers that stay
// silent, workspaces that have failed, epochs that wrap. What bytes arrive is tested by the suites.
#include <algorithm>
#include <cstring>
#include <vector>

#include "cuda/kernels/one_sided/matrix.hpp"
#include "cuda/kernels/one_sided/workspace_layout.hpp"
#include "model/core/testing.hpp"
#include "model/machine/machine.hpp"

using namespace assay;
using namespace assay::one_sided;
using machine::Fill;
using machine::Machine;
using machine::MachineConfig;
using machine::SimOps;

namespace {

// Two ranks with one 20-byte payload, top_k 2, four experts: rank 0 owns 0 and 1, rank 1 owns 2, 3.
class TwoRanks {
 public:
  explicit TwoRanks(MachineConfig config = {}, std::uint32_t first_phase = 0)
      : workspace_(*Workspace::make({2, 2, kMax, kBytes, kRowBytes, 0})), machine_([&] {
          config.num_ranks = 2;
          return config;
        }()) {
    window_ = machine_.allocate_window("workspace", workspace_.window_bytes(), 128, Fill::kPoison);
    for (RankId rank{0}; rank.value() < 2; rank = rank.next()) {
      for (const WindowRange& range : workspace_.zeroed_ranges())
        machine_.fill(window_.of(rank).at(range.offset_bytes), range.bytes, std::byte{0});
      write32(window_.of(rank).at(workspace_.offsets().phase), first_phase);
      for (const auto& cell : workspace_.flags_after(first_phase))
        machine_.write(window_.of(rank).at(cell.offset_bytes),
                       std::as_bytes(std::span(&cell.flag, 1)));
      ids_.push_back(machine_.allocate(rank, "ids", kMax * 8, 4, Fill::kPoison));
      rows_.push_back(machine_.allocate(rank, "rows", kMax * kBytes, 16, Fill::kPoison));
      out_.push_back(machine_.allocate(rank, "out", kMax * kRowBytes, 16, Fill::kPoison));
      machine_.fill(rows_.back(), kMax * kBytes, static_cast<std::byte>(0x10 + rank.value()));
      machine_.fill(window_.of(rank).at(workspace_.rows_offset()), 2 * kMax * kRowBytes,
                    std::byte{0});
    }
  }

  // `max` may differ between ranks: that is what a digest is for.
  void dispatch(RankId rank, std::vector<std::int32_t> ids, std::int32_t max = kMax) {
    const auto r = static_cast<std::size_t>(rank.value());
    if (!ids.empty()) machine_.write(ids_[r], std::as_bytes(std::span(ids)));
    DispatchParams params{};
    params.group = group(max);
    params.experts = split_experts(4, 2);
    params.num_tokens = static_cast<std::uint32_t>(ids.size() / 2);
    params.num_payloads = 1;
    params.topk_ids = ids_[r];
    params.payload[0] = {rows_[r], workspace_.payload_offsets(shape(max))[0], kBytes, 4};
    describe_token(params);
    machine_.enqueue(rank, machine::kDefaultStream,
                     {"dispatch", std::max(params.num_tokens, 1u),
                      [params](SimOps& ops) { one_sided::dispatch<2>(ops, params); }});
  }
  void combine(RankId rank, std::uint32_t tokens, std::int32_t max = kMax,
               std::uint32_t parts_log2 = 0) {
    CombineParams params{};
    params.group = group(max);
    params.num_tokens = tokens;
    params.parts_log2 = parts_log2;
    params.hidden_size = kRowBytes / 2;
    params.vector_bytes = 2;
    params.rows_offset = workspace_.rows_offset();
    params.out = out_[static_cast<std::size_t>(rank.value())];
    machine_.enqueue(rank, machine::kDefaultStream,
                     {"combine", groups_of(params), [params](SimOps& ops) {
                        one_sided::combine<SumTraits<Sum::kF32>, Bf16, Bf16, 2>(ops, params);
                      }});
  }

  machine::RunResult run() { return machine_.run(); }
  std::uint32_t word(RankId rank, std::uint64_t offset) {
    std::uint32_t value = 0;
    machine_.peek(window_.of(rank).at(offset), {reinterpret_cast<std::byte*>(&value), 4});
    return value;
  }
  std::uint32_t status(RankId rank, std::uint64_t field) {
    return word(rank, workspace_.offsets().status + field);
  }
  std::uint32_t phase(RankId rank) { return word(rank, workspace_.offsets().phase); }
  std::uint32_t received(RankId dst, std::int32_t src) {
    return word(dst, workspace_.offsets().recv_counters + 4u * static_cast<std::uint32_t>(src));
  }
  const Workspace& workspace() const { return workspace_; }
  RoundShape shape(std::int32_t max) const {
    RoundShape round;
    round.num_experts = 4;
    round.max_tokens_per_rank = max;
    round.payload_bytes = {kBytes};
    round.alive.word[0] = 3;
    return round;
  }

  static constexpr std::int32_t kMax = 3;
  static constexpr std::uint32_t kBytes = 20;
  static constexpr std::uint32_t kRowBytes = 8;

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
  void write32(Address to, std::uint32_t value) {
    machine_.write(to, std::as_bytes(std::span(&value, 1)));
  }

  Workspace workspace_;
  Machine machine_;
  Window window_;
  std::vector<Address> ids_, rows_, out_;
};

constexpr RankId kRank0{0}, kRank1{1};

}  // namespace

TEST_CASE("a round ends at any residency and order of admission, and leaves its words ready",
          "[KER-2.4][KER-2.5][KER-2.7]") {
  testing::prop("three rounds", [](std::uint64_t seed) {
    MachineConfig config;
    config.seed = seed;
    config.resident_ctas = 1 + static_cast<std::uint32_t>(seed % 3);
    config.group_size = 1 + static_cast<std::uint32_t>(seed / 3 % 4);
    const auto parts_log2 = static_cast<std::uint32_t>(seed / 12 % 3);
    TwoRanks ranks(config);
    for (int round = 0; round < 3; ++round) {
      ranks.dispatch(kRank0, {0, 2, 3, 1, 2, 3});
      ranks.dispatch(kRank1, {});
      ranks.combine(kRank0, 3, TwoRanks::kMax, parts_log2);
      ranks.combine(kRank1, 0, TwoRanks::kMax, parts_log2);
    }
    const auto result = ranks.run();
    RC_ASSERT(result.report == "");
    for (const RankId rank : {kRank0, kRank1}) {
      const WorkspaceOffsets at = ranks.workspace().offsets();
      RC_ASSERT(ranks.phase(rank) == 6u);
      for (const std::uint64_t ticket : {at.dispatch_ticket, at.send_counters})
        RC_ASSERT(ranks.word(rank, ticket) == 0u);
      const std::uint32_t groups = (rank == kRank0 ? 3u : 1u) << parts_log2;
      RC_ASSERT(ranks.word(rank, at.combine_ticket) == (groups == 1 ? 0u : groups));
    }
    RC_ASSERT(ranks.received(kRank0, 0) == 2u);
    RC_ASSERT(ranks.received(kRank1, 0) == 3u);
    RC_ASSERT(ranks.received(kRank1, 1) == 0u);
  });
}

TEST_CASE("epochs wrap through zero", "[KER-2.2]") {
  TwoRanks ranks({}, 0xFFFFFFFEu);
  for (int round = 0; round < 3; ++round) {
    for (const RankId rank : {kRank0, kRank1}) ranks.dispatch(rank, {0, 2});
    for (const RankId rank : {kRank0, kRank1}) ranks.combine(rank, 1);
  }
  const auto result = ranks.run();
  CHECK(result.report == "");
  CHECK(ranks.phase(kRank0) == 4u);
}

TEST_CASE("ranks that disagree about a round's sizes find out, and name the peer",
          "[KER-2.2][KER-3.2]") {
  TwoRanks ranks;
  ranks.dispatch(kRank0, {0, 2}, 3);
  ranks.dispatch(kRank1, {0, 2}, 2);
  CHECK(ranks.run().ok());
  for (const RankId rank : {kRank0, kRank1}) {
    CHECK(ranks.status(rank, StatusWord::kFailure) ==
          static_cast<std::uint32_t>(Failure::kOtherLayout));
    CHECK(ranks.status(rank, StatusWord::kEpoch) == 1u);
    CHECK(ranks.status(rank, StatusWord::kPeer) == 1u - static_cast<unsigned>(rank.value()));
    CHECK(ranks.status(rank, StatusWord::kSeen + 4) !=
          ranks.status(rank, StatusWord::kExpected + 4));
  }
}

TEST_CASE("a silent peer ends the wait at its budget, with its name and what was expected",
          "[KER-3.1][KER-3.2]") {
  MachineConfig config;
  config.timeouts_fire = true;
  TwoRanks ranks(config);
  ranks.dispatch(kRank0, {0, 2});
  const auto result = ranks.run();
  CHECK(result.ok());
  CHECK(result.counters.timeouts == 1);
  CHECK(ranks.status(kRank0, StatusWord::kFailure) ==
        static_cast<std::uint32_t>(Failure::kTimeOut));
  CHECK(ranks.status(kRank0, StatusWord::kPeer) == 1u);
  CHECK(ranks.status(kRank0, StatusWord::kEpoch) == 1u);
  CHECK(ranks.status(kRank0, StatusWord::kSeen) == 0xFFFFFFFFu);  // the epoch before the first
  CHECK(ranks.status(kRank0, StatusWord::kExpected) == 1u);

  MachineConfig patient;
  TwoRanks waiting(patient);
  waiting.dispatch(kRank0, {0, 2});
  const auto stuck = waiting.run();
  CHECK(stuck.status == machine::RunStatus::kDeadlock);
  CHECK(stuck.report.find("DispatchWait") != std::string::npos);
  CHECK(stuck.report.find("peer 1") != std::string::npos);
}

TEST_CASE("after a failure dispatch sends nothing and combine pulls nothing", "[KER-3.3]") {
  MachineConfig config;
  config.timeouts_fire = true;
  TwoRanks ranks(config);
  ranks.dispatch(kRank0, {0, 2});
  CHECK(ranks.run().ok());
  ranks.dispatch(kRank0, {2, 3});
  ranks.combine(kRank0, 1);
  const auto after = ranks.run();
  CHECK(after.ok());
  CHECK(after.counters.timeouts == 0);     // nobody waits in a failed workspace
  CHECK(ranks.received(kRank1, 0) == 1u);  // the first dispatch's count, not the second's
  CHECK(ranks.status(kRank0, StatusWord::kFailure) ==
        static_cast<std::uint32_t>(Failure::kTimeOut));
}

TEST_CASE("regions are fixed by capacity: no round's size moves one", "[KER-2.1]") {
  const auto offsets = [](std::int32_t max, std::int64_t bytes) {
    const Workspace workspace = *Workspace::make({4, 2, max, bytes, 64, 32});
    return std::vector<std::uint64_t>{workspace.rows_offset(), workspace.staged_offset()};
  };
  CHECK(offsets(8, 100) != offsets(16, 100));  // capacity moves them
  testing::prop("payloads of a round stay below the experts' rows", [] {
    const auto ep = *rc::gen::inRange(1, 9);
    const auto capacity = *rc::gen::inRange(1, 40);
    const auto count = *rc::gen::inRange<std::size_t>(1, kMaxPayloads + 1);
    RoundShape round;
    round.max_tokens_per_rank = *rc::gen::inRange(1, capacity + 1);
    std::int64_t total = 0;
    for (std::size_t i = 0; i < count; ++i) {
      round.payload_bytes.push_back(static_cast<std::uint64_t>(*rc::gen::inRange(1, 300)));
      total += static_cast<std::int64_t>(round.payload_bytes.back());
    }
    const Workspace workspace = *Workspace::make({ep, 1, capacity, total, 16, 0});
    const auto at = workspace.payload_offsets(round);
    for (std::size_t i = 0; i < count; ++i) {
      RC_ASSERT(at[i] % 16 == 0);
      const std::uint64_t end = at[i] + static_cast<std::uint64_t>(ep) *
                                            static_cast<std::uint64_t>(round.max_tokens_per_rank) *
                                            round.payload_bytes[i];
      RC_ASSERT(end <= (i + 1 < count ? at[i + 1] : workspace.rows_offset()));
    }
  });
}

TEST_CASE("the digest tells rounds apart", "[KER-2.2]") {
  TwoRanks ranks;
  const Workspace& workspace = ranks.workspace();
  const RoundShape base = ranks.shape(3);
  const std::uint32_t digest = workspace.round_digest(base);
  RoundShape other = base;
  other.max_tokens_per_rank = 2;
  CHECK(workspace.round_digest(other) != digest);
  other = base;
  other.payload_bytes = {10, 10};
  CHECK(workspace.round_digest(other) != digest);
  other = base;
  other.alive.word[0] = 1;
  CHECK(workspace.round_digest(other) != digest);
  other = base;
  other.num_experts = 5;
  CHECK(workspace.round_digest(other) != digest);
}
