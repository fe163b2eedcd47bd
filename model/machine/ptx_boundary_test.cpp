// What kernels, streams, host nodes and programmatic launches order under the PTX-ordered memory.
#include "model/machine/ptx_memory_testing.hpp"

namespace assay::machine {
namespace {

using namespace testing;  // words, bodies and explore

TEST_CASE("a kernel's end orders its own stream, and more only under flush", "[MAC-6.11]") {
  // Rank 0 writes in one kernel and raises an unfenced flag in the next; rank 1 polls, unfenced, in
  // one kernel and reads in the next.
  const auto program = [](Boundary boundary) {
    return explore(boundary, 1, [](Machine& machine, Words w, Seen& seen) {
      enqueue(machine, 0, "write", 1,
              [=](SimOps& ops) { ops.store(relaxed_sys, kSite, w.x, one); });
      enqueue(machine, 0, "flag", 1, [=](SimOps& ops) { ops.store(relaxed_sys, kSite, w.y, one); });
      enqueue(machine, 0, "own", 1,
              [=, &seen](SimOps& ops) { seen[0] = ops.load(u32, weak, kSite, w.x); });
      enqueue(machine, 1, "poll", 1, [=](SimOps& ops) {
        ops.wait_until(u32, relaxed_sys, kSite, w.y, Await{~0ull, 1, 0, RankId(0)});
      });
      enqueue(machine, 1, "read", 1,
              [=, &seen](SimOps& ops) { seen[1] = ops.load(u32, relaxed_sys, kSite, w.x); });
    });
  };
  CHECK(program(Boundary::kPtx).only({{1, 0}, {1, 1}}));
  CHECK(program(Boundary::kFlush).only({{1, 1}}));
}

TEST_CASE("host nodes come between the kernels of their stream", "[MAC-6.12]") {
  const auto program = [](bool other_stream) {
    return explore(Boundary::kPtx, 1, [=](Machine& machine, Words w, Seen& seen) {
      const StreamId stream = other_stream ? machine.add_stream(RankId(0)) : kDefaultStream;
      machine.enqueue_host(RankId(0), stream, "host", [=, &machine] {
        machine.write(w.x, std::as_bytes(std::span(&two, 1)));
      });
      enqueue(machine, 0, "read", 1,
              [=, &seen](SimOps& ops) { seen[0] = ops.load(u32, weak, kSite, w.x); });
    });
  };
  CHECK(program(false).only({{2, 9}}));
  CHECK(
      program(true).has_fault("with the weak store of 4 bytes of a host node of rank 0 stream 1"));
}

TEST_CASE("what a host node enqueues comes after it, on any stream", "[MAC-6.12]") {
  CHECK(explore(Boundary::kPtx, 1, [](Machine& machine, Words w, Seen& seen) {
          machine.enqueue_host(RankId(0), kDefaultStream, "host", [=, &machine, &seen] {
            machine.write(w.x, std::as_bytes(std::span(&two, 1)));
            enqueue(machine, 1, "read", 1,
                    [=, &seen](SimOps& ops) { seen[0] = ops.load(u32, weak, kSite, w.x); });
          });
        }).only({{2, 9}}));
}

TEST_CASE("between two runs the host has waited for everything", "[MAC-6.12]") {
  MachineParts parts;
  parts.make_memory_model = ptx_memory(Boundary::kPtx);
  Machine machine(small_config(1, 2, 1), std::move(parts));
  const Window window = machine.allocate_window("words", 64, 64, Fill::kZero);
  const Address x = window.of(RankId(1));
  enqueue(machine, 0, "write", 1, [&](SimOps& ops) { ops.store(weak, kSite, x, one); });
  REQUIRE(machine.run().ok());
  std::uint32_t seen = 0;
  enqueue(machine, 1, "read", 1, [&](SimOps& ops) { seen = ops.load(u32, weak, kSite, x); });
  REQUIRE(machine.run().ok());
  CHECK(seen == 1);
}

TEST_CASE("a programmatic launch overlaps and is ordered by wait_for_grid", "[MAC-6.13]") {
  const auto program = [](Boundary boundary, bool trigger, bool waits, bool programmatic = true) {
    return explore(boundary, 1, [=](Machine& machine, Words w, Seen& seen) {
      enqueue(machine, 0, "primary", 2, [=](SimOps& ops) {
        if (trigger) ops.launch_dependents(Site::kDispatchTicket);
        ops.load(u32, relaxed_sys, kSite, w.y);  // a place to switch
        if (ops.cta() == 0) ops.store(weak, kSite, w.x, one);
      });
      Kernel kernel{"secondary", 1, [=, &seen](SimOps& ops) {
                      if (waits) ops.wait_for_grid(Site::kDispatchWait);
                      seen[0] = ops.load(u32, weak, Site::kCombinePull, w.x);
                    }};
      kernel.programmatic = programmatic;
      machine.enqueue(RankId(0), kDefaultStream, kernel);
    });
  };
  CHECK(program(Boundary::kPdl, true, true).only({{1, 9}}));
  CHECK(program(Boundary::kPdl, false, true).only({{1, 9}}));
  CHECK(program(Boundary::kPtx, true, false).only({{1, 9}}));
  CHECK(program(Boundary::kPdl, true, false, false).only({{1, 9}}));
  // Even a kernel that starts after the other's end is not ordered with it.
  CHECK(program(Boundary::kPdl, false, false).has_fault("weak load of 4 bytes"));
  CHECK(program(Boundary::kPdl, false, false).seen.empty());
  const Shown early = program(Boundary::kPdl, true, false);
  CHECK(early.has_fault("rank 0 kernel primary cta 0 thread 0 at DispatchFlag: weak store"));
  CHECK(early.has_fault("rank 0 kernel secondary cta 0 thread 0 at CombinePull: weak load"));
}

TEST_CASE("a programmatic launch does not inherit its predecessor's wait", "[MAC-6.13]") {
  const auto program = [](bool waits) {
    return explore(Boundary::kPdl, 1, [=](Machine& machine, Words w, Seen& seen) {
      enqueue(machine, 0, "writes", 1, [=](SimOps& ops) { ops.store(weak, kSite, w.x, one); });
      enqueue(machine, 0, "waits", 1, [=](SimOps& ops) {
        ops.wait_for_grid(kSite);
        ops.launch_dependents(kSite);
      });
      enqueue(machine, 0, "reads", 1, [=, &seen](SimOps& ops) {
        if (waits) ops.wait_for_grid(kSite);
        seen[0] = ops.load(u32, weak, kSite, w.x);
      });
    });
  };
  CHECK(program(true).only({{1, 9}}));
  CHECK(program(false).has_fault("rank 0 kernel reads cta 0 thread 0"));
}

TEST_CASE("a kernel that waits behind one that never ends is a deadlock that says so",
          "[MAC-6.13]") {
  const Shown shown = explore(Boundary::kPdl, 1, [](Machine& machine, Words w, Seen&) {
    enqueue(machine, 0, "primary", 1, [=](SimOps& ops) {
      ops.launch_dependents(kSite);
      ops.wait_until(u32, relaxed_sys, kSite, w.x, Await{~0ull, 1, 0, RankId(0)});
    });
    enqueue(machine, 0, "secondary", 1, [=](SimOps& ops) {
      ops.wait_for_grid(Site::kDispatchLastKnown);
      ops.store(relaxed_sys, kSite, w.x, one);
    });
  });
  CHECK(shown.seen.empty());
  CHECK(
      shown.has_fault("rank 0 kernel secondary cta 0 thread 0 is at DispatchLastKnown, where it "
                      "waits for the kernels before its own to end"));
}

}  // namespace
}  // namespace assay::machine
