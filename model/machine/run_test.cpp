// Tests of how a run goes: residency, deadlocks, time-outs, budgets, streams, seeds.
#include <algorithm>
#include <array>
#include <map>
#include <new>
#include <set>
#include <thread>
#include "model/machine/machine.hpp"
#include "model/machine/machine_testing.hpp"

namespace assay::machine {
namespace {

using assay::testing::prop;
using testing::enqueue;
using testing::for_every_schedule;
using testing::host_u32;
using testing::pass_message;
using testing::small_config;

TEST_CASE("an exception of a body reaches the caller, and every fiber is unwound", "[MAC-5.4]") {
  struct Counter {
    explicit Counter(int& alive) : alive_(alive) { ++alive_; }
    ~Counter() { --alive_; }
    int& alive_;
  };
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    int alive = 0;
    Machine machine(small_config(seed, 2, 3));
    for (std::int32_t r = 0; r < 2; ++r)
      enqueue(machine, r, "allocates", 1, [&](SimOps& ops) {
        const Counter counter(alive);
        ops.barrier(Site::kDispatchTokenDone);
        if (ops.rank().value() == 1 && ops.thread() == 2) throw std::bad_alloc();
        ops.barrier(Site::kDispatchTokenDone);
      });
    CHECK_THROWS_AS(machine.run(), std::bad_alloc);
    CHECK(alive == 0);
    CHECK(!machine.run().ok());
  }
}

TEST_CASE("with one resident CTA they run one after another, in many orders", "[MAC-5.2]") {
  std::set<std::vector<std::uint32_t>> orders;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    MachineConfig config = small_config(seed, 1, 2);
    config.resident_ctas = 1;
    config.longest_run = 1;
    Machine machine(config);
    const Address word = machine.allocate(RankId(0), "word", 4, 4, Fill::kZero);
    std::vector<std::uint32_t> order;
    enqueue(machine, 0, "serial", 3, [&](SimOps& ops) {
      for (int i = 0; i < 3; ++i) {
        ops.atomic_add(relaxed_gpu, Site::kDispatchTicket, word, 1u);
        if (order.empty() || order.back() != ops.cta()) order.push_back(ops.cta());
      }
    });
    REQUIRE(machine.run().ok());
    orders.insert(order);
  }
  CHECK(orders.size() == 6);
  for (const auto& order : orders) CHECK(order.size() == 3);
}

TEST_CASE("a CTA that waits for one that cannot start is a deadlock that says so", "[MAC-5.2]") {
  std::uint32_t stuck = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    MachineConfig config = small_config(seed, 1, 1);
    config.resident_ctas = 1;
    Machine machine(config);
    const Address flag = machine.allocate(RankId(0), "flag", 4, 4, Fill::kZero);
    enqueue(machine, 0, "grid", 2, [&](SimOps& ops) {
      if (ops.cta() == 1)
        ops.store(relaxed_gpu, Site::kDispatchFlag, flag, 1u);
      else
        ops.wait_until(as<std::uint32_t>, relaxed_gpu, Site::kDispatchWait, flag, Await{1, 1});
    });
    const RunResult result = machine.run();
    if (result.ok()) continue;
    ++stuck;
    CHECK(result.status == RunStatus::kDeadlock);
    CHECK(result.report.find("rank 0 kernel grid: 1 of 2 CTAs have not started; resident_ctas is "
                             "1") != std::string::npos);
  }
  CHECK(stuck > 5);
  CHECK(stuck < 35);
}

RunResult deadlock(MachineConfig config, std::vector<Awaited>* ends) {
  Machine machine(config);
  const Window window = machine.allocate_window("flags", 64, 16, Fill::kZero);
  enqueue(machine, 1, "dispatch", 1, [=](SimOps& ops) {
    if (ops.thread() == 1) {
      const Awaited end =
          ops.wait_until(as<std::uint32_t>, relaxed_sys, Site::kDispatchWait,
                         window.of(ops.rank()).at(16), Await{0xFFFF, 3, 3, RankId(0)});
      if (ends != nullptr) ends->push_back(end);
    }
    ops.barrier(Site::kDispatchLastKnown);
  });
  return machine.run();
}

TEST_CASE("a deadlock names every waiting thread, its site, peer, epoch, expected and seen",
          "[MAC-5.4]") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const RunResult result = deadlock(small_config(seed, 2, 2), nullptr);
    REQUIRE(result.status == RunStatus::kDeadlock);
    const std::string expected_wait =
        "\n  rank 1 kernel dispatch cta 0 thread 1 waits at DispatchWait for peer 0, epoch 3: "
        "expected 0x3 under mask 0xffff, seen 0x0, in 'flags' of rank 1 + 16 (of 64 bytes)";
    const std::string expected_barrier =
        "\n  rank 1 kernel dispatch cta 0 thread 0 is at barrier DispatchLastKnown, where 1 of 2 "
        "threads have arrived";
    CHECK(result.report.find("deadlock: 2 threads wait for what nobody is going to do\n") == 0);
    CHECK(result.report.find(expected_wait) != std::string::npos);
    CHECK(result.report.find(expected_barrier) != std::string::npos);
  }
}

TEST_CASE("time-outs fire only when nothing else can move, and let the kernel go on", "[MAC-5.3]") {
  MachineConfig config = small_config(3, 2, 2);
  config.timeouts_fire = true;
  std::vector<Awaited> ends;
  const RunResult result = deadlock(config, &ends);
  REQUIRE(result.report == "");
  REQUIRE(ends.size() == 1);
  CHECK(ends[0].timed_out);
  CHECK(ends[0].seen == 0);
  CHECK(result.counters.timeouts == 1);
  // A wait that somebody will serve never times out.
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    config.seed = seed;
    std::uint32_t wrong_words = 0;
    const RunResult served = pass_message(config, false, wrong_words);
    CHECK(served.ok());
    CHECK(served.counters.timeouts == 0);
    CHECK(wrong_words == 0);
  }
}

TEST_CASE("endless loops of ordered, weak or shared accesses end with the budget", "[MAC-5.4]") {
  for (int kind = 0; kind < 3; ++kind) {
    MachineConfig config = small_config(1, 1, 2);
    config.step_budget = 2'000'000;
    Machine machine(config);
    const Address word = machine.allocate(RankId(0), "word", 4, 4, Fill::kZero);
    enqueue(machine, 0, "spin", 1, [=](SimOps& ops) {
      for (;;) {
        if (kind == 0) ops.atomic_add(relaxed_gpu, Site::kDispatchTicket, word, 0u);
        if (kind == 1) ops.load(as<std::uint32_t>, weak, Site::kDispatchReadIds, word);
        if (kind == 2) ops.shared_store(Site::kDispatchShareLast, SharedWord{0}, 1);
      }
    });
    const RunResult result = machine.run();
    REQUIRE(result.status == RunStatus::kBudgetExhausted);
    CHECK(result.report.find("the budget is 2000000; last ran rank 0 kernel spin cta 0 thread ") !=
          std::string::npos);
  }
}

TEST_CASE("a run that ends early destroys the locals of every body and stays ended", "[MAC-5.4]") {
  long most_alive = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto token = std::make_shared<int>(0);
    Machine machine(small_config(seed, 2, 4));
    const Address local = machine.allocate(RankId(0), "local", 64, 16, Fill::kPoison);
    machine.fill(local, 4, std::byte{0});
    for (std::int32_t r = 0; r < 2; ++r)
      enqueue(machine, r, "hold", 5, [&, r](SimOps& ops) {
        const std::shared_ptr<int> held = token;
        most_alive = std::max(most_alive, token.use_count());
        if (r == 0 && ops.cta() == 3)
          ops.load(as<std::uint32_t>, weak, Site::kCombinePull, local.at(32));
        if (r == 0)
          ops.wait_until(as<std::uint32_t>, relaxed_gpu, Site::kCombineWait, local, Await{1, 1});
        ops.barrier(Site::kCombineWaited);
      });
    const RunResult first = machine.run();
    REQUIRE(first.status == RunStatus::kFault);
    CHECK(token.use_count() == 1);
    CHECK(machine.run().report == first.report);
    CHECK(host_u32(machine, local) == 0);
    machine.release(local);
  }
  CHECK(most_alive > 4);  // waiting and at barriers, when the fault came
}

// ---- streams -----------------------------------------------------------------------------------

TEST_CASE("a stream runs its kernels and host nodes in order, two streams in any", "[MAC-5.1]") {
  std::set<std::string> seen;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Machine machine(small_config(seed, 1, 4));
    const Address word = machine.allocate(RankId(0), "word", 4, 4, Fill::kZero);
    const StreamId other = machine.add_stream(RankId(0));
    const StreamId idle = machine.add_stream(RankId(0));
    std::string log;
    const auto note = [&](char what) {
      return [&log, word, what](SimOps& ops) {
        ops.atomic_add(relaxed_gpu, Site::kDispatchTicket, word, 1u);
        ops.barrier(Site::kDispatchTokenDone);
        if (ops.thread() == 0) log += what;
      };
    };
    machine.enqueue(RankId(0), kDefaultStream, Kernel{"a", 2, note('a')});
    machine.enqueue_host(RankId(0), kDefaultStream, "b", [&] {
      log += 'b';
      // From a host node: behind itself, and on a stream that has nothing to do.
      machine.enqueue(RankId(0), kDefaultStream, Kernel{"d", 1, note('d')});
      machine.enqueue(RankId(0), idle, Kernel{"y", 1, note('y')});
    });
    machine.enqueue(RankId(0), kDefaultStream, Kernel{"c", 2, note('c')});
    machine.enqueue(RankId(0), other, Kernel{"x", 1, note('x')});
    REQUIRE(machine.run().ok());
    std::string own = log;
    own.erase(std::remove(own.begin(), own.end(), 'x'), own.end());
    own.erase(std::remove(own.begin(), own.end(), 'y'), own.end());
    CHECK(own == "aabccd");
    CHECK(log.size() == 8);
    CHECK(log.find('y') > log.find('b'));
    seen.insert(log);
  }
  CHECK(seen.size() >= 3);
}

TEST_CASE("what a host node writes ends a wait", "[MAC-5.1][MAC-2.2]") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Machine machine(small_config(seed));
    const Address flag = machine.allocate(RankId(0), "flag", 64, 16, Fill::kZero);
    enqueue(machine, 0, "wait", 1, [=](SimOps& ops) {
      ops.wait_until(as<std::uint32_t>, acquire_sys, Site::kCombineWait, flag, Await{0xFF, 2});
    });
    machine.enqueue_host(RankId(1), kDefaultStream, "signal",
                         [&] { machine.fill(flag, 4, std::byte{2}); });
    CHECK(machine.run().report == "");
  }
}

TEST_CASE("a machine that ended well runs what is enqueued next", "[MAC-5.1]") {
  Machine machine(small_config(1, 1, 4));
  const Address word = machine.allocate(RankId(0), "word", 4, 4, Fill::kZero);
  for (std::uint32_t run = 1; run <= 3; ++run) {
    enqueue(machine, 0, "add", 2,
            [=](SimOps& ops) { ops.atomic_add(relaxed_gpu, Site::kDispatchTicket, word, 1u); });
    const RunResult result = machine.run();
    REQUIRE(result.ok());
    CHECK(result.counters.ordered_operations == 8);
    CHECK(host_u32(machine, word) == 8 * run);
  }
}

// ---- schedules ---------------------------------------------------------------------------------

RunResult busy_run(std::uint64_t seed) {
  std::uint32_t wrong_words = 0;
  return pass_message(small_config(seed, 2, 4), false, wrong_words);
}

TEST_CASE("one seed is one run, and different seeds are different runs", "[MAC-4.2]") {
  std::set<std::uint64_t> hashes;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const RunResult first = busy_run(seed);
    const RunResult again = busy_run(seed);
    CHECK(first.schedule_hash == again.schedule_hash);
    CHECK(first.counters.ordered_operations == again.counters.ordered_operations);
    CHECK(first.counters.switches == again.counters.switches);
    hashes.insert(first.schedule_hash);
  }
  CHECK(hashes.size() >= 95);
}

TEST_CASE("the random numbers are splitmix64 and xoshiro256** on every platform", "[MAC-4.2]") {
  std::uint64_t state = 1234567;
  CHECK(splitmix64(state) == 6457827717110365317u);
  CHECK(splitmix64(state) == 3203168211198807973u);
  Prng prng(42);
  const std::uint64_t expected[] = {1546998764402558742u, 6990951692964543102u,
                                    12544586762248559009u};
  for (const std::uint64_t value : expected) CHECK(prng.next() == value);
  for (int i = 0; i < 1000; ++i) CHECK(prng.below(7) < 7);
}

TEST_CASE("machines in different threads do not disturb each other", "[MAC-4.2]") {
  const std::uint64_t alone = busy_run(77).schedule_hash;
  std::array<std::uint64_t, 4> together{};
  std::vector<std::thread> threads;
  for (std::uint64_t& hash : together)
    threads.emplace_back([&hash] {
      for (int i = 0; i < 20; ++i) hash = busy_run(77).schedule_hash;
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::uint64_t hash : together) CHECK(hash == alone);
}

TEST_CASE("thousands of CTAs are resident at once", "[MAC-5.2]") {
  constexpr std::uint32_t kCtas = 1000;  // on each of two ranks
  MachineConfig config = small_config(1, 2, 2);
  Machine machine(config);
  const Window window = machine.allocate_window("arrived", 64, 16, Fill::kZero);
  for (std::int32_t r = 0; r < 2; ++r)
    enqueue(machine, r, "meet", kCtas, [=](SimOps& ops) {
      // Everybody waits until everybody has arrived, which needs all of them at once.
      const Address mine = window.of(ops.rank());
      ops.atomic_add(relaxed_gpu, Site::kDispatchTicket, mine, 1u);
      ops.wait_until(as<std::uint32_t>, relaxed_gpu, Site::kDispatchWait, mine,
                     Await{~0u, kCtas * ops.group_size()});
    });
  CHECK(machine.run().report == "");
}

// ---- wrappers ----------------------------------------------------------------------------------

// How a mutant drops one named fence: an Ops that forwards to SimOps.
template <class Inner>
struct WithoutFence {
  Inner& inner;
  Site dropped;
  template <Order O, Scope S>
  void fence(Access<O, S> access, Site site) {
    if (site != dropped) inner.fence(access, site);
  }
};

TEST_CASE("a wrapper may forward to SimOps", "[MAC-2.1]") {
  Machine machine(small_config(1, 1, 1));
  enqueue(machine, 0, "wrapped", 1, [](SimOps& ops) {
    WithoutFence<SimOps> wrapped{ops, Site::kDispatchRelease};
    wrapped.fence(release_sys, Site::kDispatchRelease);
    wrapped.fence(acquire_sys, Site::kDispatchAcquire);
    wrapped.fence(sc_sys, Site::kCombineAcquire);
  });
  const RunResult result = machine.run();
  CHECK(result.ok());
  CHECK(result.counters.ordered_operations == 2);
}

}  // namespace
}  // namespace assay::machine
