// Tests of what observers are told, and of the two pictures of a run.
#include "model/machine/timeline.hpp"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>

#include "model/machine/explore.hpp"
#include "model/machine/machine_testing.hpp"
#include "model/machine/ptx_memory.hpp"

namespace assay::machine {
namespace {

using testing::small_config;

// Two kernels on two ranks: a message with a flag, and a wait that has to wait.
Execute message(bool weak_memory, std::uint32_t group_size, std::uint32_t rounds = 1) {
  return [=](MachineParts parts) {
    if (weak_memory) parts.make_memory_model = ptx_memory(Boundary::kPtx);
    Machine machine(small_config(1, 2, group_size), std::move(parts));
    std::uint32_t wrong_words = 0;
    const Window window =
        machine.allocate_window("inbox", 16 + testing::kVectors * 16, 16, Fill::kZero);
    for (std::uint32_t i = 0; i < rounds; ++i) {
      testing::enqueue(machine, 0, "send", 1,
                       [&](SimOps& ops) { testing::send(ops, window, true); });
      testing::enqueue(machine, 1, "receive", 1,
                       [&](SimOps& ops) { testing::receive(ops, window, wrong_words); });
    }
    machine.enqueue_host(RankId(1), kDefaultStream, "check", [] {});
    const RunResult result = machine.run();
    if (!result.ok()) return Outcome{false, result.report};
    return Outcome{wrong_words == 0, "wrong words"};
  };
}

struct Counter final : Observer {
  bool wants_weak = false;
  std::uint64_t ordered = 0;
  std::uint64_t weak_seen = 0;
  std::uint64_t barriers = 0;
  std::uint64_t begun = 0;
  std::uint64_t ended = 0;
  bool wants_weak_accesses() const override { return wants_weak; }
  void performed(const Performed& what) override {
    ++(what.event.order == Order::kWeak ? weak_seen : ordered);
  }
  void barrier_arrived(ThreadSlot, Site) override { ++barriers; }
  void thread_began(ThreadSlot, const ThreadPlace&) override { ++begun; }
  void thread_ended(ThreadSlot) override { ++ended; }
};

TEST_CASE("an observer is told every ordered operation, and weak ones when it asks", "[MAC-4.3]") {
  for (const bool with_weak : {false, true})
    for (const std::uint32_t longest_run : {1u, 64u}) {
      Counter counter;
      counter.wants_weak = with_weak;
      MachineParts parts;
      parts.observer = &counter;
      MachineConfig config = small_config(3, 2, 2);
      config.longest_run = longest_run;
      Machine machine(config, std::move(parts));
      const Window window = machine.allocate_window("w", 4096, 16, Fill::kZero);
      for (std::int32_t r = 0; r < 2; ++r)
        testing::enqueue(machine, r, "count", 3, [window](SimOps& ops) {
          const Address mine = window.of(ops.rank()).at(ops.cta() * 64 + ops.thread() * 16);
          for (std::uint32_t i = 0; i < 5; ++i) {
            ops.store(relaxed_sys, Site::kDispatchFlag, mine, i);
            ops.store(weak, Site::kDispatchFlag, mine.at(4), i);
            ops.load(as<std::uint32_t>, relaxed_sys, Site::kDispatchWait, mine);
          }
          ops.barrier(Site::kDispatchTokenDone);
        });
      const RunResult result = machine.run();
      REQUIRE(result.ok());
      CHECK(counter.ordered + counter.barriers == result.counters.ordered_operations);
      CHECK(counter.ordered == 2 * 3 * 2 * 10);
      CHECK(counter.weak_seen == (with_weak ? result.counters.weak_accesses : 0));
      CHECK(counter.begun == 12);
      CHECK(counter.ended == 12);
    }
}

TEST_CASE("watching a run does not change it", "[MAC-4.3]") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    std::uint64_t hashes[2];
    for (const bool watched : {false, true}) {
      RunRecord record;
      MachineParts parts;
      if (watched) parts.observer = &record;
      std::uint32_t wrong_words = 0;
      Machine machine(small_config(seed, 2, 2), std::move(parts));
      const Window window =
          machine.allocate_window("inbox", 16 + testing::kVectors * 16, 16, Fill::kZero);
      testing::enqueue(machine, 0, "send", 1,
                       [&](SimOps& ops) { testing::send(ops, window, false); });
      testing::enqueue(machine, 1, "receive", 1,
                       [&](SimOps& ops) { testing::receive(ops, window, wrong_words); });
      hashes[watched] = machine.run().schedule_hash;
    }
    CHECK(hashes[0] == hashes[1]);
  }
}

RunRecord record_of(const Execute& execute, std::string* schedule = nullptr) {
  ExploreConfig config;
  config.search = Search::kRandom;
  const Exploration found = explore(config, execute);
  REQUIRE(found.counterexample.has_value());
  RunRecord record;
  REQUIRE(replay(found.counterexample->schedule, execute, &record).has_value());
  if (schedule != nullptr) *schedule = found.counterexample->schedule;
  return record;
}

TEST_CASE("a timeline has a lane per thread and says which write was read", "[MAC-7.10]") {
  std::vector<NamedPart> named;
  const Execute execute = [&named](MachineParts parts) {
    parts.make_memory_model = ptx_memory(Boundary::kPtx);
    Machine machine(small_config(1, 2, 1), std::move(parts));
    const Window window = machine.allocate_window("inbox", 64, 16, Fill::kZero);
    const Address inbox = window.of(RankId(1));
    named = {{"ticket", inbox.at(28), 8}};
    machine.name_parts(&named);
    testing::enqueue(machine, 0, "send", 1, [inbox](SimOps& ops) {
      ops.store(relaxed_sys, Site::kDispatchStorePayload, inbox.at(16), std::uint32_t{6});
      ops.atomic_add(relaxed_sys, Site::kDispatchTicket, inbox.at(32), std::uint32_t{1});
      ops.store(relaxed_sys, Site::kDispatchFlag, inbox, std::uint32_t{9});
    });
    std::uint32_t got = 0;
    testing::enqueue(machine, 1, "receive", 1, [inbox, &got](SimOps& ops) {
      ops.wait_until(as<std::uint32_t>, relaxed_sys, Site::kDispatchWait, inbox,
                     Await{~0u, 9, 1, RankId(0)});
      got = ops.load(as<std::uint32_t>, relaxed_sys, Site::kCombinePull, inbox.at(16));
    });
    machine.enqueue_host(RankId(1), kDefaultStream, "check", [] {});
    const RunResult result = machine.run();
    if (!result.ok()) return Outcome{false, result.report};
    return Outcome{got == 6, "stale"};
  };
  RunRecord record;
  const Expected<Outcome> outcome = replay("t1.4t0.2t1.r1.h1", execute, &record);
  if (!outcome) FAIL(outcome.error().sentence);
  CHECK(!outcome->ok);
  CHECK(print_timeline(record) ==
        "  step  r0.c0.t0   r1.c0.t0   r1.host    \n"
        "     0  begins send as t0\n"
        "     0  |          begins receive as t1\n"
        "     1  |          DispatchWait waits: 'inbox' of rank 1 + 0 is 0x0, needs 0x9\n"
        "     3  DispatchStorePayload st.relaxed.sys 'inbox' of rank 1 + 16 <- 0x6\n"
        "     4  DispatchTicket atom.relaxed.sys ticket of rank 1 + 4 is 0x0 -> 0x1\n"
        "     5  DispatchFlag st.relaxed.sys 'inbox' of rank 1 + 0 <- 0x9\n"
        "     5  ends\n"
        "     6  |          DispatchWait wait.relaxed.sys 'inbox' of rank 1 + 0 is 0x9, written in "
        "step 5\n"
        "     7  |          CombinePull ld.relaxed.sys 'inbox' of rank 1 + 16 is 0x0, old\n"
        "     7  |          ends\n"
        "     8  |          |          host node check\n");
}

TEST_CASE("a long timeline keeps its end and what explains it", "[MAC-7.10]") {
  const RunRecord record = record_of(message(true, 2, 40));
  const std::string text = print_timeline(record, 20);
  INFO(text);
  const auto lines = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  const auto gaps = [&] {
    std::size_t n = 0;
    for (std::size_t at = text.find("   ...  "); at != std::string::npos;
         at = text.find("   ...  ", at + 1))
      ++n;
    return n;
  }();
  CHECK(gaps >= 1);
  CHECK(lines == 1 + 20 + gaps);
  CHECK(print_timeline(record, 100'000).find("...") == std::string::npos);
}

TEST_CASE("a trace is what Perfetto reads: slices in lanes, arrows in pairs", "[MAC-7.10]") {
  for (const std::uint32_t group_size : {1u, 2u}) {
    const RunRecord record = record_of(message(true, group_size));
    const nlohmann::json trace = nlohmann::json::parse(chrome_trace(record));
    std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> slices;
    std::map<int, nlohmann::json> arrows;
    std::set<std::string> process_names;
    std::set<std::pair<int, int>> named_threads;
    std::uint64_t heads = 0;
    for (const nlohmann::json& event : trace.at("traceEvents")) {
      const std::string ph = event.at("ph");
      const int pid = event.at("pid");
      if (ph == "M") {
        if (event.at("name") == "process_name") process_names.insert(event.at("args").at("name"));
        if (event.at("name") == "thread_name") named_threads.insert({pid, event.at("tid")});
        continue;
      }
      const std::pair<int, int> lane{pid, event.at("tid")};
      CHECK(named_threads.count(lane) == 1);
      const double ts = event.at("ts");
      if (ph == "X") {
        slices[lane].emplace_back(ts, ts + event.at("dur").get<double>());
        CHECK(!event.at("name").get<std::string>().empty());
        CHECK(event.at("args").at("step") >= 0);
      } else if (ph == "s") {
        CHECK(arrows.emplace(event.at("id"), event).second);
      } else {
        REQUIRE(ph == "f");
        ++heads;
        CHECK(event.at("bp") == "e");
        const nlohmann::json& tail = arrows.at(event.at("id"));
        CHECK(tail.at("name") == event.at("name"));
        CHECK(tail.at("cat") == event.at("cat"));
        CHECK(tail.at("ts") < event.at("ts"));
      }
    }
    CHECK(process_names == std::set<std::string>{"rank 0", "rank 1"});
    CHECK(heads == arrows.size());
    CHECK(heads > 0);
    // Slices of a lane do not overlap, and an arrow begins and ends in one.
    for (auto& [lane, list] : slices) {
      std::sort(list.begin(), list.end());
      for (std::size_t i = 1; i < list.size(); ++i) CHECK(list[i - 1].second <= list[i].first);
    }
    for (const auto& [id, tail] : arrows) {
      const std::pair<int, int> lane{tail.at("pid"), tail.at("tid")};
      const double ts = tail.at("ts");
      CHECK(std::any_of(slices[lane].begin(), slices[lane].end(),
                        [&](const auto& slice) { return slice.first <= ts && ts < slice.second; }));
    }
    CHECK(trace.at("otherData").at("status") == "ok");
  }
}

}  // namespace
}  // namespace assay::machine
