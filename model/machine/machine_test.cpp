// Interleavings, groups, streams, and how a run ends.
#include "model/machine/machine.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <thread>

#include "model/machine/machine_testing.hpp"

namespace assay::machine {
namespace {

using assay::testing::prop;
using testing::enqueue;
using testing::for_every_schedule;
using testing::host_u32;
using testing::pass_message;
using testing::small_config;

TEST_CASE("a message published by a flag arrives whole under every seed and group size",
          "[MAC-2.1][MAC-2.2]") {
  prop("any seed, group size and run length", [](std::uint64_t seed) {
    MachineConfig config = small_config(seed, 2, *rc::gen::element(1u, 4u, 32u));
    config.longest_run = *rc::gen::element(1u, 3u, 64u);
    std::uint32_t wrong_words = 0;
    const RunResult result = pass_message(config, false, wrong_words);
    RC_ASSERT(result.report == "");
    RC_ASSERT(wrong_words == 0u);
  });
}

TEST_CASE("a flag stored before its data is caught as a read of poison under many seeds",
          "[MAC-1.2][MAC-4.1]") {
  std::uint32_t caught = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    std::uint32_t wrong_words = 0;
    const RunResult result = pass_message(small_config(seed, 2, 4), true, wrong_words);
    CHECK(wrong_words == 0);
    if (result.ok()) continue;
    ++caught;
    CHECK(result.status == RunStatus::kFault);
    CHECK(result.report.find("at CombinePull: load of") != std::string::npos);
    CHECK(result.report.find("nobody has written: 'inbox' of rank 1 + ") != std::string::npos);
  }
  CHECK(caught >= 20);
  CHECK(caught <= 199);
}

// Every interleaving of two threads that each store a word and load the other's.
TEST_CASE("store buffering shows exactly the three sequentially consistent outcomes",
          "[MAC-2.1][MAC-4.1]") {
  std::set<std::pair<std::uint32_t, std::uint32_t>> outcomes;
  for_every_schedule([&](std::unique_ptr<Scheduler> scheduler) {
    Machine machine(small_config(1), MachineParts{std::move(scheduler), nullptr});
    const Window window = machine.allocate_window("words", 4, 4, Fill::kZero);
    std::uint32_t seen[2] = {};
    for (std::int32_t r = 0; r < 2; ++r)
      enqueue(machine, r, "sb", 1, [&, r](SimOps& ops) {
        ops.store(relaxed_sys, Site::kDispatchFlag, window.of(RankId(r)), 1u);
        seen[r] =
            ops.load(as<std::uint32_t>, relaxed_sys, Site::kDispatchWait, window.of(RankId(1 - r)));
      });
    REQUIRE(machine.run().ok());
    outcomes.emplace(seen[0], seen[1]);
  });
  CHECK(outcomes == std::set<std::pair<std::uint32_t, std::uint32_t>>{{0, 1}, {1, 0}, {1, 1}});
}

TEST_CASE("the words of a 16-byte access arrive in any order, those of 8 bytes together",
          "[MAC-1.4]") {
  std::set<std::uint32_t> vector_patterns;
  std::set<std::uint64_t> long_patterns;
  for_every_schedule([&](std::unique_ptr<Scheduler> scheduler) {
    Machine machine(small_config(1), MachineParts{std::move(scheduler), nullptr});
    const Window window = machine.allocate_window("row", 16, 16, Fill::kZero);
    enqueue(machine, 0, "store", 1, [&](SimOps& ops) {
      ops.store(relaxed_sys, Site::kDispatchStorePayload, window.of(RankId(1)),
                Vec16{{1, 1, 1, 1}});
    });
    std::uint32_t pattern = 0;
    enqueue(machine, 1, "load", 1, [&](SimOps& ops) {
      const Vec16 got = ops.load(as<Vec16>, relaxed_sys, Site::kCombinePull, window.of(RankId(1)));
      for (std::uint32_t w = 0; w < 4; ++w) pattern |= got.word[w] << w;
    });
    REQUIRE(machine.run().ok());
    vector_patterns.insert(pattern);
  });
  CHECK(vector_patterns.size() == 16);
  for_every_schedule([&](std::unique_ptr<Scheduler> scheduler) {
    Machine machine(small_config(1), MachineParts{std::move(scheduler), nullptr});
    const Window window = machine.allocate_window("word", 8, 8, Fill::kZero);
    enqueue(machine, 0, "store", 1, [&](SimOps& ops) {
      ops.store(relaxed_sys, Site::kDispatchStorePayload, window.of(RankId(1)), ~std::uint64_t{0});
    });
    enqueue(machine, 1, "load", 1, [&](SimOps& ops) {
      long_patterns.insert(
          ops.load(as<std::uint64_t>, relaxed_sys, Site::kCombinePull, window.of(RankId(1))));
    });
    REQUIRE(machine.run().ok());
  });
  CHECK(long_patterns == std::set<std::uint64_t>{0, ~std::uint64_t{0}});
}

TEST_CASE("threads that race on atomic_add get distinct values", "[MAC-2.1]") {
  prop("any seed, CTAs and group size", [](std::uint64_t seed) {
    const auto num_ctas = *rc::gen::inRange<std::uint32_t>(1, 20);
    const auto group_size = *rc::gen::element(1u, 4u, 32u);
    Machine machine(small_config(seed, 2, group_size));
    const Window window = machine.allocate_window("counter", 8, 8, Fill::kZero);
    std::vector<std::uint32_t> taken;
    for (std::int32_t r = 0; r < 2; ++r)
      enqueue(machine, r, "take", num_ctas, [&](SimOps& ops) {
        taken.push_back(ops.atomic_add(relaxed_sys, Site::kDispatchTakeSlot, window.of(RankId(0)),
                                       std::uint32_t{1}));
      });
    RC_ASSERT(machine.run().ok());
    std::sort(taken.begin(), taken.end());
    RC_ASSERT(taken.size() == std::size_t{2} * num_ctas * group_size);
    for (std::uint32_t i = 0; i < taken.size(); ++i) RC_ASSERT(taken[i] == i);
  });
}

TEST_CASE("exactly one of several compare-and-swaps wins, the others see its value", "[MAC-2.1]") {
  std::set<std::uint32_t> winners;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    Machine machine(small_config(seed, 1, 4));
    const Address word = machine.allocate(RankId(0), "claim", 8, 8, Fill::kZero);
    std::array<std::uint64_t, 4> before{};
    enqueue(machine, 0, "claim", 1, [&](SimOps& ops) {
      before[ops.thread()] = ops.atomic_cas(relaxed_gpu, Site::kStatusClaim, word, std::uint64_t{0},
                                            std::uint64_t{ops.thread() + 1});
    });
    REQUIRE(machine.run().ok());
    const std::uint32_t winner = host_u32(machine, word);
    for (std::uint32_t t = 0; t < 4; ++t) CHECK(before[t] == (t + 1 == winner ? 0 : winner));
    winners.insert(winner);
  }
  CHECK(winners.size() == 4);
}

TEST_CASE("a wait may miss a value that does not stay", "[MAC-2.2]") {
  std::set<RunStatus> ends;
  for_every_schedule([&](std::unique_ptr<Scheduler> scheduler) {
    Machine machine(small_config(1), MachineParts{std::move(scheduler), nullptr});
    const Window window = machine.allocate_window("flag", 4, 4, Fill::kZero);
    enqueue(machine, 0, "skip", 1, [&](SimOps& ops) {
      for (std::uint32_t epoch = 1; epoch <= 2; ++epoch)
        ops.store(relaxed_sys, Site::kDispatchFlag, window.of(RankId(1)), epoch);
    });
    enqueue(machine, 1, "wait", 1, [&](SimOps& ops) {
      ops.wait_until(as<std::uint32_t>, relaxed_sys, Site::kDispatchWait, window.of(RankId(1)),
                     Await{0xFFFFFFFF, 1, 1, RankId(0)});
    });
    ends.insert(machine.run().status);
  });
  CHECK(ends == std::set<RunStatus>{RunStatus::kOk, RunStatus::kDeadlock});
}

// ---- groups ------------------------------------------------------------------------------------

TEST_CASE("a barrier separates what a group does before it from what it does after",
          "[MAC-3.1][MAC-3.2]") {
  prop("any seed and group size", [](std::uint64_t seed) {
    const auto group_size = *rc::gen::element(1u, 2u, 4u, 32u);
    Machine machine(small_config(seed, 1, group_size));
    const Address words = machine.allocate(RankId(0), "words", 4 * 32, 4, Fill::kPoison);
    std::uint32_t wrong = 0;
    enqueue(machine, 0, "rotate", 3, [&](SimOps& ops) {
      if (ops.cta() != 0) return;
      for (std::uint32_t round = 0; round < 3; ++round) {
        ops.store(relaxed_gpu, Site::kDispatchRecordTarget, words.at(ops.thread() * 4), round);
        ops.shared_store(Site::kDispatchShareTarget, SharedWord{ops.thread()}, round);
        ops.barrier(Site::kDispatchTargetsReady);
        const std::uint32_t next = (ops.thread() + 1) % ops.group_size();
        wrong += ops.load(as<std::uint32_t>, relaxed_gpu, Site::kDispatchReadIds,
                          words.at(next * 4)) != round;
        wrong += ops.shared_load(Site::kDispatchShareTarget, SharedWord{next}) != round;
        ops.barrier(Site::kDispatchTokenDone);
      }
    });
    RC_ASSERT(machine.run().report == "");
    RC_ASSERT(wrong == 0u);
  });
}

TEST_CASE("threads at different barriers, or ended without one, are a divergence under every seed",
          "[MAC-3.1]") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Machine different(small_config(seed, 1, 4));
    enqueue(different, 0, "split", 1, [](SimOps& ops) {
      ops.barrier(ops.thread() == 2 ? Site::kDispatchLastKnown : Site::kDispatchTokenDone);
    });
    const RunResult split = different.run();
    REQUIRE(split.status == RunStatus::kBarrierDivergence);
    CHECK(split.report.find("DispatchLastKnown") != std::string::npos);
    CHECK(split.report.find("DispatchTokenDone") != std::string::npos);

    Machine early(small_config(seed, 1, 4));
    enqueue(early, 0, "early", 1, [](SimOps& ops) {
      if (ops.thread() != 3) ops.barrier(Site::kDispatchTokenDone);
    });
    const RunResult left = early.run();
    REQUIRE(left.status == RunStatus::kBarrierDivergence);
    CHECK(left.report.find("rank 0 kernel early cta 0 thread") == 0);
    CHECK(left.report.find("ended") != std::string::npos);
    CHECK(left.report.find("DispatchTokenDone") != std::string::npos);
  }
}

TEST_CASE("a shared word that crosses threads without a barrier is a fault under every seed",
          "[MAC-3.2]") {
  const auto status = [](std::uint64_t seed, const std::function<void(SimOps&)>& body) {
    Machine machine(small_config(seed, 1, 2));
    enqueue(machine, 0, "share", 1, body);
    const RunResult result = machine.run();
    if (!result.ok()) CHECK(result.report.find("shared word 5") != std::string::npos);
    return result.status;
  };
  const Site site = Site::kDispatchShareTarget;
  const SharedWord word{5};
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    CHECK(status(seed, [&](SimOps& ops) {
            if (ops.thread() == 0) ops.shared_store(site, word, 1);
            if (ops.thread() == 1) ops.shared_load(site, word);
          }) == RunStatus::kFault);
    CHECK(status(seed, [&](SimOps& ops) { ops.shared_store(site, word, ops.thread()); }) ==
          RunStatus::kFault);
    CHECK(status(seed, [&](SimOps& ops) {
            if (ops.thread() == 0) ops.shared_store(site, word, 1);
            ops.barrier(Site::kCombineWaited);
            ops.shared_load(site, word);
            if (ops.thread() == 0) ops.shared_store(site, word, 2);
          }) == RunStatus::kFault);
    CHECK(status(seed, [&](SimOps& ops) { ops.shared_store(site, word, 1); }) == RunStatus::kOk);
    CHECK(status(seed, [&](SimOps& ops) { ops.shared_load(site, word); }) == RunStatus::kFault);
  }
}

// ---- progress ----------------------------------------------------------------------------------

}  // namespace
}  // namespace assay::machine
