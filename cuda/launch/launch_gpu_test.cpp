// The launcher on GPUs: groups emulated on one device and, where there are more, one rank per
// device. Without a device there is nothing to run, and the program says so to Meson (exit code
// 77).
#define CATCH_CONFIG_RUNNER
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
  const auto kernels = OneSidedKernels::find(SmallRounds::request());
  REQUIRE(kernels.has_value());
  const auto resident = kernels->resident_blocks(Step::kCombine, 256);
  REQUIRE(resident.has_value());
  CHECK(*resident > 0);
  std::vector<LaunchedRank> ranks{{RankId(0), 0}, {RankId(1), 0}};
  std::vector<one_sided::CombineParams> params(2);
  params[0].num_tokens = *resident;
  params[1].num_tokens = 1;
  const Status status = kernels->combine(ranks, params, {});
  REQUIRE_FALSE(status.has_value());
  CHECK(status.error().sentence.find("blocks that wait for each other") != std::string::npos);
}

}  // namespace
}  // namespace assay::cuda

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  if (assay::cuda::device_count() == 0) return kSkipped;
  return Catch::Session().run(argc, argv);
}
