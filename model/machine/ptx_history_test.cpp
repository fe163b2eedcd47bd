// What the PTX-ordered memory remembers and forgets, and what it never shows: nothing that somebody
// may still read or race with is forgotten, everything else is.
#include "model/machine/ptx_memory_testing.hpp"
#include "model/machine/schedulers.hpp"

namespace assay::machine {
namespace {

using namespace testing;  // words, bodies and explore

// The first store is hidden behind those of another stream, which all that is running comes after;
// but nothing has ordered it before rank 1, which its scope leaves out.
TEST_CASE("a write that somebody still races with is not forgotten", "[MAC-6.2][MAC-6.14]") {
  const auto await = [](SimOps& ops, auto access, Address word) {
    ops.wait_until(u32, access, kSite, word, Await{~0ull, 1, 0, RankId(0)});
  };
  for (const bool narrow : {false, true})
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
      MachineParts parts;
      parts.make_memory_model = ptx_memory(Boundary::kPtx);
      Machine machine(small_config(seed, 2, 1), std::move(parts));
      const Address x = machine.allocate_window("words", 64, 64, Fill::kZero).of(RankId(0));
      const Address first = x.at(16), known = x.at(20), ack = x.at(24), done = x.at(28);
      const auto store_first = [=](SimOps& ops) {
        if (narrow)
          ops.store(relaxed_gpu, kSite, x, one);
        else
          ops.store(relaxed_sys, kSite, x, one);
        ops.store(relaxed_gpu, kSite, first, one);
      };
      machine.enqueue(RankId(0), machine.add_stream(RankId(0)), Kernel{"first", 1, store_first});
      enqueue(machine, 0, "hide", 1, [=](SimOps& ops) {
        await(ops, relaxed_gpu, first);
        for (std::uint32_t i = 0; i < 2; ++i) ops.store(relaxed_sys, kSite, x, two);
        ops.store(release_sys, kSite, known, one);
      });
      enqueue(machine, 1, "know", 1, [=](SimOps& ops) { await(ops, acquire_sys, known); });
      enqueue(machine, 0, "forget", 1, [=](SimOps& ops) {
        await(ops, relaxed_sys, ack);
        // So many operations that it is worth looking for what can be forgotten.
        for (std::uint32_t i = 0; i < 1000; ++i) ops.load(u32, weak, kSite, x.at(32));
        for (std::uint32_t i = 0; i < 6; ++i) ops.store(relaxed_sys, kSite, x, two);
        ops.store(release_sys, kSite, done, one);
      });
      enqueue(machine, 1, "read", 1, [=](SimOps& ops) {
        ops.store(relaxed_sys, kSite, ack, one);
        await(ops, acquire_sys, done);
        ops.load(u32, relaxed_sys, kSite, x);
      });
      const RunResult result = machine.run();
      INFO(result.report);
      CHECK(result.ok() == !narrow);
    }
}

// The relaxed load has seen the release; that its write is gone when the acquire comes is no reason
// to forget it.
TEST_CASE("an acquire closes the pattern of a load whose write has been forgotten", "[MAC-6.8]") {
  const auto program = [](bool acquires) {
    return explore(Boundary::kPtx, 1, [=](Machine& machine, Words w, Seen& seen) {
      enqueue(machine, 0, "send", 1, [=](SimOps& ops) {
        ops.store(weak, kSite, w.x, one);
        ops.store(release_sys, kSite, w.y, one);
      });
      enqueue(machine, 1, "receive", 1, [=, &seen](SimOps& ops) {
        ops.wait_until(u32, relaxed_sys, kSite, w.y, Await{~0ull, 1, 0, RankId(0)});
        ops.store(weak, kSite, w.y, two);
        if (acquires) ops.load(u32, acquire_sys, kSite, w.y);
        seen[0] = ops.load(u32, weak, kSite, w.x);
      });
    });
  };
  CHECK(program(true).only({{1, 9}}));
  CHECK(program(false).has_fault("weak load of 4 bytes"));
}

TEST_CASE("a schedule of zeros is sequentially consistent", "[MAC-6.1]") {
  MachineParts parts;
  parts.scheduler = std::make_unique<FirstChoices>();
  parts.make_memory_model = ptx_memory(Boundary::kPtx);
  Machine machine(small_config(1, 2, 4), std::move(parts));
  const Window window = machine.allocate_window("words", 64, 64, Fill::kZero);
  std::uint32_t last = 0;
  for (std::int32_t r = 0; r < 2; ++r)
    enqueue(machine, r, "count", 1, [&](SimOps& ops) {
      for (int i = 0; i < 100; ++i) {
        const Address x = window.of(RankId(0));
        const std::uint32_t seen = ops.load(u32, relaxed_sys, kSite, x);
        CHECK(seen >= last);
        last = seen;
        ops.store(relaxed_sys, kSite, x, seen + 1);
      }
    });
  REQUIRE(machine.run().ok());
}

TEST_CASE("load buffering is not shown", "[MAC-6.16]") {
  const auto side = [](bool first) -> Body {
    return [=](SimOps& ops, Words w, Seen& seen) {
      seen[first ? 0 : 1] = ops.load(u32, relaxed_sys, kSite, first ? w.x : w.y);
      ops.store(relaxed_sys, kSite, first ? w.y : w.x, one);
    };
  };
  CHECK(explore(side(true), side(false)).only({{0, 0}, {0, 1}, {1, 0}}));
}

TEST_CASE("of one location the newest 64 writes can be read", "[MAC-6.16]") {
  std::set<std::uint32_t> shown;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    MachineParts parts;
    PtxMemory* model = nullptr;
    parts.make_memory_model = [&](Memory& memory, Scheduler& scheduler) {
      auto made = std::make_unique<PtxMemory>(memory, scheduler, Boundary::kPtx);
      model = made.get();
      return made;
    };
    Machine machine(small_config(seed, 2, 1), std::move(parts));
    const Window window = machine.allocate_window("words", 64, 64, Fill::kZero);
    const Address x = window.of(RankId(0));
    enqueue(machine, 0, "write", 1, [&](SimOps& ops) {
      for (std::uint32_t i = 1; i <= 200; ++i) ops.store(relaxed_sys, kSite, x, i);
      ops.store(relaxed_sys, kSite, x.at(16), one);
    });
    enqueue(machine, 1, "read", 1, [&](SimOps& ops) {
      ops.wait_until(u32, relaxed_sys, kSite, x.at(16), Await{~0ull, 1, 0, RankId(0)});
      CHECK(model->num_records() < 100);
      shown.insert(ops.load(u32, relaxed_sys, kSite, x));
    });
    REQUIRE(machine.run().ok());
  }
  CHECK(*shown.begin() >= 200 - 66);  // the list is cut when the next write comes
  CHECK(*shown.begin() <= 200 - 60);
  CHECK(*shown.rbegin() == 200);
}

TEST_CASE("what everybody has seen is forgotten, within a run as well", "[MAC-6.2]") {
  MachineParts parts;
  PtxMemory* model = nullptr;
  parts.make_memory_model = [&](Memory& memory, Scheduler& scheduler) {
    auto made = std::make_unique<PtxMemory>(memory, scheduler, Boundary::kPtx);
    model = made.get();
    return made;
  };
  Machine machine(small_config(7, 2, 2), std::move(parts));
  const Window window = machine.allocate_window("words", 64, 64, Fill::kZero);
  std::size_t most = 0;
  constexpr std::uint32_t kRounds = 400;
  for (std::uint32_t round = 1; round <= kRounds; ++round)
    for (std::int32_t r = 0; r < 2; ++r)
      enqueue(machine, r, "exchange", 2, [&, round](SimOps& ops) {
        const RankId peer(1 - ops.rank().value());
        // Two sets of cells: a peer may be one round ahead.
        const std::uint64_t cell = ops.cta() * 8 + ops.thread() * 4 + (round & 1) * 16;
        ops.fence(acq_rel_sys, kSite);
        ops.store(relaxed_sys, kSite, window.of(peer).at(cell), round);
        ops.atomic_add(acq_rel_sys, kSite, window.of(RankId(0)).at(32), one);
        ops.wait_until(u32, acquire_sys, kSite, window.of(ops.rank()).at(cell),
                       Await{~0ull, round, round, peer});
        most = std::max(most, model->num_records());
      });
  const RunResult result = machine.run();
  INFO(result.report);
  REQUIRE(result.ok());
  CHECK(host_u32(machine, window.of(RankId(0)).at(32)) == kRounds * 8);
  CHECK(most < 2000);  // of 12,800 writes and more reads
  CHECK(model->num_records() == 0);
}

}  // namespace
}  // namespace assay::machine
