// The launcher on GPUs: groups emulated on one device and, where there are more, one rank per
// device. Without a device there is nothing to run, and the program says so to Meson (exit code
// 77).
#define CATCH_CONFIG_RUNNER
#include <algorithm>

#include "cuda/launch/small_rounds.hpp"

#include "model/core/testing.hpp"
#if __has_include(<catch2/catch_session.hpp>)
#include <catch2/catch_session.hpp>
#endif

namespace assay::cuda {
namespace {

using testing::SmallRounds;

constexpr std::uint64_t kLong = 5'000'000'000, kShort = 30'000'000;

std::string sentence(const Status& status) { return status ? "" : status.error().sentence; }

// The groups that this machine can make.
std::vector<Communicator> communicators() {
  std::vector<Communicator> all;
  for (const std::int32_t ep : {1, 4, 8}) all.push_back(*Communicator::emulated(ep, 0));
  std::vector<int> devices;
  for (int device = 0; device < device_count(); ++device) devices.push_back(device);
  if (devices.size() > 1) all.push_back(*Communicator::one_process(devices));
  return all;
}

TEST_CASE("rounds of any group give legal rows and sums", "[CUD-1.3][CUD-2.2]") {
  for (const Communicator& communicator : communicators()) {
    auto rounds = SmallRounds::make(communicator);
    INFO((rounds ? "" : rounds.error().sentence));
    REQUIRE(rounds.has_value());
    for (std::int32_t round = 0; round < 5; ++round) {
      const std::int32_t tokens = round % 2 == 0 ? 8 - round : round;
      REQUIRE(sentence(rounds->write(tokens, round)) == "");
      REQUIRE(sentence(rounds->enqueue(tokens, 0, communicator.local_ranks().size(), kLong)) == "");
      REQUIRE(sentence(rounds->wait()) == "");
      CHECK(sentence(rounds->group().check()) == "");
      CHECK(sentence(rounds->check(tokens, round)) == "");
    }
  }
}

TEST_CASE("any number of threads gives legal rounds, overlapping or not", "[CUD-3.3][CUD-3.4]") {
  for (const Communicator& communicator : communicators()) {
    auto rounds = SmallRounds::make(communicator);
    REQUIRE(rounds.has_value());
    std::int32_t shift = 0;  // another one each time: what the last rounds left is wrong
    for (const std::uint32_t threads : {0u, 32u, 96u, 256u})
      for (const int way : {0, 1, 2, 3}) {
        rounds->how.threads = threads;
        rounds->how.overlaps = way % 2 != 0;
        const std::int32_t tokens = way / 2 != 0 ? 8 : 1;
        REQUIRE(sentence(rounds->write(tokens, ++shift)) == "");
        for (int round = 0; round < 20; ++round)  // back to back, each in the last one's tail
          REQUIRE(sentence(rounds->enqueue(tokens, 0, communicator.local_ranks().size(), kLong)) ==
                  "");
        REQUIRE(sentence(rounds->wait()) == "");
        CHECK(sentence(rounds->group().check()) == "");
        CHECK(sentence(rounds->check(tokens, shift)) == "");
      }
  }
}

TEST_CASE("a rank that does not come is told by all, and the group goes on after recovery",
          "[CUD-4.1][CUD-4.3][CUD-4.4]") {
  for (const Communicator& communicator : communicators()) {
    const std::size_t ranks = communicator.local_ranks().size();
    if (ranks == 1) continue;
    auto rounds = SmallRounds::make(communicator);
    REQUIRE(rounds.has_value());
    for (int time = 0; time < 3; ++time) {
      REQUIRE(sentence(rounds->write(3, time)) == "");
      REQUIRE(sentence(rounds->enqueue(3, 0, ranks - 1, kShort)) == "");
      REQUIRE(sentence(rounds->wait()) == "");
      const std::string told = sentence(rounds->group().check());
      CHECK(told.find(std::to_string(ranks - 1) + " of " + std::to_string(ranks) +
                      " ranks gave up") == 0);
      CHECK(told.find("rank 0 gave up in the dispatch of round 0: no word in time from rank " +
                      std::to_string(ranks - 1)) != std::string::npos);
      REQUIRE(sentence(rounds->group().recover()) == "");
      REQUIRE(sentence(rounds->group().check()) == "");
      REQUIRE(sentence(rounds->enqueue(3, 0, ranks, kLong)) == "");
      REQUIRE(sentence(rounds->wait()) == "");
      CHECK(sentence(rounds->group().check()) == "");
      CHECK(sentence(rounds->check(3, time)) == "");
      REQUIRE(sentence(rounds->group().recover()) == "");
    }
  }
}

TEST_CASE("ranks that disagree on a round's sizes say so instead of waiting", "[CUD-2.1]") {
  for (const Communicator& communicator : communicators()) {
    const std::size_t ranks = communicator.local_ranks().size();
    if (ranks == 1 || communicator.is_emulated()) continue;
    auto rounds = SmallRounds::make(communicator);
    REQUIRE(rounds.has_value());
    REQUIRE(sentence(rounds->write(2, 0)) == "");
    REQUIRE(sentence(rounds->enqueue(2, 0, 1, kShort, 4)) == "");
    REQUIRE(sentence(rounds->enqueue(2, 1, ranks, kShort)) == "");
    REQUIRE(sentence(rounds->wait()) == "");
    const std::string told = sentence(rounds->group().check());
    CHECK(told.find("other sizes, payloads, statistics or living ranks at rank") !=
          std::string::npos);
    CHECK(told.find(std::to_string(ranks) + " of " + std::to_string(ranks)) == 0);
  }
}

TEST_CASE("a recorded round is replayed with other routing, and updated to other sizes",
          "[CUD-3.1][CUD-3.2]") {
  for (const Communicator& communicator : communicators()) {
    const std::size_t ranks = communicator.local_ranks().size();
    auto rounds = SmallRounds::make(communicator);
    REQUIRE(rounds.has_value());
    const std::size_t graphs_needed = communicator.is_emulated() ? 1 : ranks;
    std::vector<Graph> graphs(graphs_needed);
    for (std::int32_t round = 0; round < 6; ++round) {
      const std::int32_t tokens = 1 + round % 3 * 3;
      for (std::size_t g = 0; g < graphs.size(); ++g) {
        DeviceScope scope(communicator.local_ranks()[g].device);
        REQUIRE(sentence(graphs[g].record(rounds->stream(g), [&] {
                  return communicator.is_emulated() ? rounds->enqueue(tokens, 0, ranks, kLong)
                                                    : rounds->enqueue(tokens, g, g + 1, kLong);
                })) == "");
      }
      for (std::int32_t shift = 0; shift < 4; ++shift) {
        REQUIRE(sentence(rounds->write(tokens, shift)) == "");
        for (int replay = 0; replay < 100; ++replay)
          for (std::size_t g = 0; g < graphs.size(); ++g) {
            DeviceScope scope(communicator.local_ranks()[g].device);
            REQUIRE(sentence(graphs[g].launch(rounds->stream(g))) == "");
          }
        REQUIRE(sentence(rounds->wait()) == "");
        CHECK(sentence(rounds->group().check()) == "");
        CHECK(sentence(rounds->check(tokens, shift)) == "");
      }
    }
    for (const Graph& graph : graphs) CHECK(graph.instantiations() == 1);
  }
}

TEST_CASE("ranks whose blocks cannot all be resident are refused", "[CUD-1.3]") {
  auto kernels = OneSidedKernels::find(SmallRounds::request());
  REQUIRE(kernels.has_value());
  REQUIRE(sentence(kernels->load(0)) == "");
  const std::uint32_t resident = kernels->resident_blocks(Step::kCombine, 2, 256);
  CHECK(resident > 0);
  std::vector<LaunchedRank> ranks{{RankId(0), 0}, {RankId(1), 0}};
  std::vector<one_sided::CombineParams> params(2);
  params[0].num_tokens = resident;
  params[1].num_tokens = 1;
  const Status status = kernels->combine(ranks, params, {});
  REQUIRE_FALSE(status.has_value());
  CHECK(status.error().sentence.find("threads that wait for each other") != std::string::npos);
}

// Rounds by Sentinel of one rank alone: every token picks its one expert twice, whose rows are 1 in
// every element, so all sums are 1.
class SentinelAlone {
 public:
  static constexpr std::int32_t kHidden = SmallRounds::kHidden;
  static constexpr std::uint32_t kRowBytes = SmallRounds::kRowBytes;
  LaunchConfig how;

  static KernelRequest request() {
    KernelRequest request = SmallRounds::request();
    request.sum = one_sided::Sum::kF32;  // the one that every build has by Sentinel
    request.sentinel = true;
    return request;
  }
  static Expected<SentinelAlone> make(std::int32_t tokens) {
    one_sided::GroupCapacity capacity = SmallRounds::capacity(1);
    capacity.max_tokens_per_rank = capacity.sentinel_max_tokens = tokens;
    ASSAY_TRY(const one_sided::Workspace workspace, one_sided::Workspace::make(capacity));
    ASSAY_TRY(const Communicator communicator, Communicator::emulated(1, 0));
    ASSAY_TRY(OneSidedGroup group, OneSidedGroup::make(communicator, workspace, request()));
    SentinelAlone made(std::move(group), tokens);
    const std::size_t rows = made.num_tokens() * kRowBytes;
    ASSAY_TRY(made.stream_, OwnStream::make());
    ASSAY_TRY(made.ids_, DeviceMemory::make(made.num_tokens() * SmallRounds::kTopK * 4, "ids"));
    ASSAY_TRY(made.rows_, DeviceMemory::make(rows, "rows"));
    ASSAY_TRY(made.out_, DeviceMemory::make(rows, "out"));
    ASSAY_CUDA(cudaMemset(made.ids_.data(), 0, made.ids_.bytes()), "ids");
    ASSAY_CUDA(cudaMemset(made.rows_.data(), 0x5A, rows), "rows");
    const std::vector<std::uint16_t> ones(made.num_tokens() * kHidden, kOne);
    ASSAY_CHECK(copy_to_device(pointer(made.group_.own(0).at(workspace.rows_offset())), ones.data(),
                               ones.size() * 2, "expert rows"));
    ASSAY_CUDA(cudaDeviceSynchronize(), "inputs");
    return Expected<SentinelAlone>(std::move(made));
  }

  const OneSidedKernels& kernels() const { return group_.kernels(); }
  Status dispatch(std::uint32_t waiters) const {
    const LaunchedRank rank{RankId(0), 0};
    one_sided::SentinelDispatchParams params{};
    params.dispatch.group = group_params();
    params.dispatch.experts = one_sided::split_experts(1, 1);
    params.dispatch.num_tokens = static_cast<std::uint32_t>(tokens_);
    params.dispatch.num_payloads = 1;
    params.dispatch.topk_ids = ids_.address();
    params.dispatch.payload[0] = {rows_.address(), group_.workspace().payload_offsets(shape())[0],
                                  kRowBytes, 16};
    one_sided::describe_token(params.dispatch);
    params.sentinel = group_.workspace().sentinel_params();
    params.sentinel.waiters = waiters;
    params.ids_payload = one_sided::kMaxPayloads;
    params.top_k = SmallRounds::kTopK;
    params.invalid_expert_id = -1;
    return kernels().dispatch(std::span(&rank, 1), std::span(&params, 1), launch());
  }
  Status combine(std::uint32_t waiters) const {
    const LaunchedRank rank{RankId(0), 0};
    one_sided::SentinelCombineParams params{};
    params.combine.group = group_params();
    params.combine.num_tokens = static_cast<std::uint32_t>(tokens_);
    params.combine.hidden_size = kHidden;
    params.combine.vector_bytes = params.pull_bytes = 16;
    params.combine.rows_offset = group_.workspace().rows_offset();
    params.combine.out = out_.address();
    params.sentinel = group_.workspace().sentinel_params();
    params.sentinel.waiters = waiters;
    params.rows = one_sided::RowFormat::kBf16;
    params.top_k = SmallRounds::kTopK;
    return kernels().combine(std::span(&rank, 1), std::span(&params, 1), launch());
  }
  // Of a round whose kernels have been enqueued.
  Status check() const {
    ASSAY_CHECK(wait_for(stream_, std::chrono::seconds(10), "a round by Sentinel"));
    ASSAY_CHECK(group_.check());
    std::vector<std::uint16_t> out(num_tokens() * kHidden);
    ASSAY_CUDA(cudaMemcpy(out.data(), out_.data(), out_.bytes(), cudaMemcpyDeviceToHost), "out");
    for (std::size_t i = 0; i < out.size(); ++i)
      if (out[i] != kOne) return bad_input("element " + std::to_string(i) + " is not the sum 1");
    ASSAY_CUDA(cudaMemset(out_.data(), 0xDB, out_.bytes()), "out");
    ASSAY_CUDA(cudaDeviceSynchronize(), "out");
    return Done{};
  }

 private:
  static constexpr std::uint16_t kOne = 0x3F80;

  SentinelAlone(OneSidedGroup group, std::int32_t tokens)
      : tokens_(tokens), group_(std::move(group)) {}
  std::size_t num_tokens() const { return static_cast<std::size_t>(tokens_); }
  one_sided::RoundShape shape() const {
    one_sided::RoundShape shape;
    shape.max_tokens_per_rank = tokens_;
    shape.payload_bytes = {kRowBytes};
    shape.alive.word[0] = 1;
    return shape;
  }
  one_sided::GroupParams group_params() const {
    one_sided::GroupParams params{};
    params.window = group_.windows()[0];
    params.at = group_.workspace().offsets();
    params.alive = shape().alive;
    params.ep_size = 1;
    params.layout_digest = group_.workspace().round_digest(shape());
    params.max_tokens_per_rank = static_cast<std::uint32_t>(tokens_);
    return params;
  }
  LaunchConfig launch() const {
    LaunchConfig launch = how;
    launch.timeout_ns = kLong;
    launch.stream = stream_.stream();
    return launch;
  }

  std::int32_t tokens_;
  OneSidedGroup group_;
  OwnStream stream_;
  DeviceMemory ids_, rows_, out_;
};

// The device's own word for it: with as many waiters as are said to be resident a round of more
// blocks ends, and nothing is enqueued with one more.
TEST_CASE("a rank alone waits by Sentinel in as many blocks as are resident, and in no more",
          "[CUD-1.4]") {
  for (const std::uint32_t threads : {128u, 256u}) {
    auto kernels = OneSidedKernels::find(SentinelAlone::request());
    REQUIRE(kernels.has_value());
    REQUIRE(sentence(kernels->load(threads)) == "");
    const std::uint32_t received = kernels->resident_blocks(Step::kSentinelDispatch, 1, threads);
    const std::uint32_t summed = kernels->resident_blocks(Step::kSentinelCombine, 1, threads);
    REQUIRE(received > 0);
    REQUIRE(summed > 0);
    const std::uint32_t tokens = std::max(received, summed) + 100;
    auto round = SentinelAlone::make(static_cast<std::int32_t>(tokens));
    INFO((round ? "" : round.error().sentence));
    REQUIRE(round.has_value());
    round->how.threads = threads;
    const auto refusal = [&](const char* step, std::uint32_t waiters, std::uint32_t resident) {
      return std::string(step) + " is to wait in " + std::to_string(waiters) + " blocks of " +
             std::to_string(threads) + " threads; the device holds " + std::to_string(resident) +
             " at once";
    };
    CHECK(sentence(round->dispatch(received + 1)) ==
          refusal("Sentinel dispatch", received + 1, received));
    CHECK(sentence(round->combine(summed + 1)) == refusal("Sentinel combine", summed + 1, summed));
    CHECK(sentence(round->dispatch(tokens + 1)) ==
          "Sentinel dispatch is to wait in " + std::to_string(tokens + 1) +
              " blocks; its launch has " + std::to_string(tokens) + " for the rank");
    for (const bool most : {true, false, true}) {
      REQUIRE(sentence(round->dispatch(most ? received : 0)) == "");
      REQUIRE(sentence(round->combine(most ? summed : 0)) == "");
      CHECK(sentence(round->check()) == "");
    }
  }
}

}  // namespace
}  // namespace assay::cuda

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  if (assay::cuda::device_count() == 0) return kSkipped;
  return Catch::Session().run(argc, argv);
}
