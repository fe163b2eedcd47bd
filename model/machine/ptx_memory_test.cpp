// The PTX-ordered memory, rule by rule: each missing order put in, and the legal program next to
// it. What small programs may show altogether is ptx_axioms_test.cpp.
#include "model/machine/ptx_memory_testing.hpp"

namespace assay::machine {
namespace {

using namespace testing;  // words, bodies and explore

// ---- release and acquire -----------------------------------------------------------------------

TEST_CASE("message passing needs a release and an acquire", "[MAC-6.8]") {
  const Body receive_unfenced = [](SimOps& ops, Words w, Seen& seen) {
    seen[0] = ops.load(u32, relaxed_sys, kSite, w.y);
    seen[1] = ops.load(u32, relaxed_sys, kSite, w.x);
  };
  const Body receive_acquire = [](SimOps& ops, Words w, Seen& seen) {
    seen[0] = ops.load(u32, acquire_sys, kSite, w.y);
    seen[1] = ops.load(u32, relaxed_sys, kSite, w.x);
  };
  const Body receive_narrow = [](SimOps& ops, Words w, Seen& seen) {
    seen[0] = ops.load(u32, relaxed_sys, kSite, w.y);
    ops.fence(acquire_gpu, kSite);
    seen[1] = ops.load(u32, relaxed_sys, kSite, w.x);
  };
  const auto fence = [](SimOps& ops) { ops.fence(release_sys, kSite); };
  const auto narrow = [](SimOps& ops) { ops.fence(release_gpu, kSite); };
  CHECK(explore(send(fence, relaxed_sys), kReceive).only(kOrdered));
  CHECK(explore(send(fence, relaxed_sys), receive_acquire).only(kOrdered));
  CHECK(explore(send(kNothing, release_sys), kReceive).only(kOrdered));
  CHECK(explore(send(kNothing, relaxed_sys), kReceive).only(kAny));
  CHECK(explore(send(fence, relaxed_sys), receive_unfenced).only(kAny));
  CHECK(explore(send(narrow, relaxed_sys), kReceive).only(kAny));
  CHECK(explore(send(fence, relaxed_sys), receive_narrow).only(kAny));
}

TEST_CASE("a release holds for later stores to its own location only", "[MAC-6.8]") {
  const auto sender = [](bool same) -> Body {
    return [=](SimOps& ops, Words w, Seen&) {
      ops.store(relaxed_sys, kSite, w.x, one);
      ops.store(release_sys, kSite, same ? w.y : w.y.at(4), one);
      ops.store(relaxed_sys, kSite, w.y, two);
    };
  };
  CHECK(explore(sender(true), kReceive).only({{0, 0}, {0, 1}, {1, 1}, {2, 1}}));
  CHECK(explore(sender(false), kReceive).only({{0, 0}, {0, 1}, {2, 0}, {2, 1}}));
}

TEST_CASE("a release hands on nothing that comes after it", "[MAC-6.8][MAC-6.2]") {
  const Body release_first = [](SimOps& ops, Words w, Seen&) {
    ops.store(release_sys, kSite, w.y, one);
    ops.store(relaxed_sys, kSite, w.x, one);
    ops.store(relaxed_sys, kSite, w.x.at(8), one);
  };
  const Body when_both_are_there = [](SimOps& ops, Words w, Seen& seen) {
    ops.wait_until(u32, relaxed_sys, kSite, w.x.at(8), Await{~0ull, 1, 0, RankId(0)});
    ops.wait_until(u32, acquire_sys, kSite, w.y, Await{~0ull, 1, 0, RankId(0)});
    seen[0] = ops.load(u32, relaxed_sys, kSite, w.x);
  };
  CHECK(explore(release_first, when_both_are_there).only({{0, 9}, {1, 9}}));
}

TEST_CASE("an acquire load closes the pattern of earlier loads of its location", "[MAC-6.8]") {
  const Body receive = [](SimOps& ops, Words w, Seen& seen) {
    seen[0] = ops.load(u32, relaxed_sys, kSite, w.y);
    ops.load(u32, acquire_sys, kSite, w.y);
    seen[1] = ops.load(u32, relaxed_sys, kSite, w.x);
  };
  CHECK(explore(send(kNothing, release_sys), receive).only(kOrdered));
}

TEST_CASE("causality goes on through a thread whose fences reach less far", "[MAC-6.8]") {
  // CTA 0 hands x to CTA 1 at gpu scope, CTA 1 hands on at system scope to the other rank.
  const auto chain = [](bool acquires) {
    return explore(Boundary::kPtx, 1, [=](Machine& machine, Words w, Seen& seen) {
      enqueue(machine, 0, "chain", 2, [=](SimOps& ops) {
        if (ops.cta() == 0) {
          ops.store(relaxed_sys, kSite, w.x, one);
          ops.store(release_gpu, kSite, w.x.at(8), one);
          return;
        }
        const std::uint32_t got = acquires ? ops.load(u32, acquire_gpu, kSite, w.x.at(8))
                                           : ops.load(u32, relaxed_gpu, kSite, w.x.at(8));
        if (got != 1) return;
        ops.store(release_sys, kSite, w.y, one);
      });
      enqueue(machine, 1, "receive", 1, [=, &seen](SimOps& ops) { kReceive(ops, w, seen); });
    });
  };
  CHECK(chain(true).only(kOrdered));
  CHECK(chain(false).only(kAny));
}

TEST_CASE("a chain of atomics carries the release that started it", "[MAC-6.6]") {
  const auto chain = [](bool atomic) {
    return explore(Boundary::kPtx, 1, [=](Machine& machine, Words w, Seen& seen) {
      enqueue(machine, 0, "send", 2, [=](SimOps& ops) {
        if (ops.cta() == 0) {
          ops.store(relaxed_sys, kSite, w.x, one);
          ops.store(release_sys, kSite, w.y, one);
        } else if (atomic) {
          ops.atomic_add(relaxed_sys, kSite, w.y, one);
        } else if (ops.load(u32, relaxed_sys, kSite, w.y) == 1) {
          ops.store(relaxed_sys, kSite, w.y, two);
        }
      });
      enqueue(machine, 1, "receive", 1, [=, &seen](SimOps& ops) { kReceive(ops, w, seen); });
    });
  };
  CHECK(chain(true).seen.count({2, 1}) == 1);
  CHECK(chain(true).seen.count({2, 0}) == 0);
  CHECK(chain(false).seen.count({2, 0}) == 1);
}

TEST_CASE("an atomic hands on the release that it has acquired itself to whom its own leaves out",
          "[MAC-6.6][MAC-6.8]") {
  const auto await = [](SimOps& ops, Words w, std::uint64_t value) {
    ops.wait_until(u32, relaxed_sys, kSite, w.y, Await{~0ull, value, 0, RankId(0)});
  };
  const Body send = [](SimOps& ops, Words w, Seen&) {
    ops.store(relaxed_sys, kSite, w.x, one);
    ops.store(release_sys, kSite, w.y, one);
  };
  const auto receive = [=](auto acquire) -> Body {
    return [=](SimOps& ops, Words w, Seen& seen) {
      await(ops, w, 2);
      ops.fence(acquire, kSite);
      seen[0] = ops.load(u32, relaxed_sys, kSite, w.x);
    };
  };
  // The receiver shares its CTA with the sender, and acquires in that CTA only.
  CHECK(explore(Boundary::kPtx, 2, [=](Machine& machine, Words w, Seen& seen) {
          enqueue(machine, 0, "both", 1, [=, &seen](SimOps& ops) {
            (ops.thread() == 0 ? send : receive(acquire_cta))(ops, w, seen);
          });
          const auto add = [=](SimOps& ops) {
            await(ops, w, 1);
            ops.atomic_add(acq_rel_sys, kSite, w.y, one);
          };
          machine.enqueue(RankId(0), machine.add_stream(RankId(0)), Kernel{"add", 1, add, 1});
        }).only({{1, 9}}));
  // The atomic's own release does not reach the receiver's rank.
  CHECK(explore(Boundary::kPtx, 1, [=](Machine& machine, Words w, Seen& seen) {
          enqueue(machine, 0, "both", 2, [=, &seen](SimOps& ops) {
            if (ops.cta() == 0) return send(ops, w, seen);
            await(ops, w, 1);
            ops.fence(acq_rel_gpu, kSite);
            ops.atomic_add(relaxed_sys, kSite, w.y, one);
          });
          enqueue(machine, 1, "receive", 1,
                  [=, &seen](SimOps& ops) { receive(acquire_sys)(ops, w, seen); });
        }).only({{1, 9}}));
}

TEST_CASE("a release is acquired only from a write whose scope includes the reader",
          "[MAC-6.3][MAC-6.8]") {
  // The reader knows the atomic by another flag, so that reading it is no race.
  const auto chain = [](auto access) {
    return explore(Boundary::kPtx, 1, [=](Machine& machine, Words w, Seen& seen) {
      const auto await = [](SimOps& ops, Address word) {
        ops.wait_until(u32, relaxed_sys, kSite, word, Await{~0ull, 1, 0, RankId(0)});
      };
      enqueue(machine, 0, "send", 2, [=](SimOps& ops) {
        if (ops.cta() == 0) {
          ops.store(relaxed_sys, kSite, w.x, one);
          return ops.store(release_sys, kSite, w.y, one);
        }
        await(ops, w.y);
        ops.atomic_add(access, kSite, w.y, one);
        ops.store(release_sys, kSite, w.x.at(8), one);
      });
      enqueue(machine, 1, "receive", 1, [=, &seen](SimOps& ops) {
        await(ops, w.x.at(8));
        ops.fence(acquire_sys, kSite);
        kReceive(ops, w, seen);
      });
    });
  };
  CHECK(chain(relaxed_sys).only({{2, 1}}));
  CHECK(chain(relaxed_gpu).only({{2, 0}, {2, 1}}));
}

TEST_CASE("a compare-and-swap that fails is a load", "[MAC-6.6]") {
  const Body swap = [](SimOps& ops, Words w, Seen& seen) {
    seen[0] = ops.atomic_cas(acq_rel_sys, kSite, w.y, two, std::uint32_t{7});
    seen[1] = ops.load(u32, relaxed_sys, kSite, w.x);
  };
  CHECK(explore(send(kNothing, release_sys), swap).only(kOrdered));
}

TEST_CASE("store buffering is forbidden by sc fences, not by acq_rel ones", "[MAC-6.9]") {
  const auto side = [](bool sc, bool first) -> Body {
    return [=](SimOps& ops, Words w, Seen& seen) {
      ops.store(relaxed_sys, kSite, first ? w.x : w.y, one);
      if (sc)
        ops.fence(sc_sys, kSite);
      else
        ops.fence(acq_rel_sys, kSite);
      seen[first ? 0 : 1] = ops.load(u32, relaxed_sys, kSite, first ? w.y : w.x);
    };
  };
  CHECK(explore(side(true, true), side(true, false)).only({{0, 1}, {1, 0}, {1, 1}}));
  CHECK(explore(side(false, true), side(false, false)).only(kAny));
  CHECK(explore(side(true, true), side(false, false)).only(kAny));
}

TEST_CASE("sc fences order threads that their scopes include", "[MAC-6.9]") {
  const auto side = [](auto fence, bool first) -> Body {
    return [=](SimOps& ops, Words w, Seen& seen) {
      ops.store(relaxed_sys, kSite, first ? w.x : w.y, one);
      ops.fence(fence, kSite);
      seen[first ? 0 : 1] = ops.load(u32, relaxed_sys, kSite, first ? w.y : w.x);
    };
  };
  const std::set<Seen> sequential{{0, 1}, {1, 0}, {1, 1}};
  CHECK(explore(side(sc_gpu, true), side(sc_sys, false)).only(kAny));
  CHECK(explore_ctas(side(sc_gpu, true), side(sc_sys, false)).only(sequential));
  CHECK(explore_ctas(side(sc_gpu, true), side(sc_cta, false)).only(kAny));
  const auto in_one_cta = [&](auto first, auto second) {
    return explore(Boundary::kPtx, 2, [=](Machine& machine, Words w, Seen& seen) {
      enqueue(machine, 0, "both", 1, [=, &seen](SimOps& ops) {
        if (ops.thread() == 0)
          side(first, true)(ops, w, seen);
        else
          side(second, false)(ops, w, seen);
      });
    });
  };
  CHECK(in_one_cta(sc_cta, sc_gpu).only(sequential));
  CHECK(in_one_cta(sc_cta, acq_rel_sys).only(kAny));
}

TEST_CASE("a barrier orders the memory of its group, and what follows hands it on", "[MAC-6.10]") {
  const auto program = [](bool with_barrier) {
    return explore(Boundary::kPtx, 2, [=](Machine& machine, Words w, Seen& seen) {
      enqueue(machine, 0, "send", 1, [=](SimOps& ops) {
        if (ops.thread() == 1) ops.store(relaxed_sys, kSite, w.x, one);
        if (with_barrier) ops.barrier(kSite);
        if (ops.thread() == 0) ops.store(release_sys, kSite, w.y, one);
      });
      machine.enqueue(RankId(1), kDefaultStream,
                      Kernel{"receive", 1, [=, &seen](SimOps& ops) { kReceive(ops, w, seen); }, 1});
    });
  };
  CHECK(program(true).only(kOrdered));
  CHECK(program(false).only(kAny));
}

// ---- waiting, vectors, poison ------------------------------------------------------------------

TEST_CASE("a wait takes any readable value that ends it", "[MAC-6.7]") {
  const Body write_twice = [](SimOps& ops, Words w, Seen&) {
    ops.store(relaxed_sys, kSite, w.y, one);
    ops.store(relaxed_sys, kSite, w.y, two);
  };
  const Body wait = [](SimOps& ops, Words w, Seen& seen) {
    Await await;
    await.until = Until::kDiffers;
    seen[0] = static_cast<std::uint32_t>(ops.wait_until(u32, relaxed_sys, kSite, w.y, await).seen);
    seen[1] = ops.load(u32, relaxed_sys, kSite, w.y);
  };
  CHECK(explore(write_twice, wait).only({{1, 1}, {1, 2}, {2, 2}}));
}

TEST_CASE("the words of a vector arrive one by one", "[MAC-6.7][MAC-1.4]") {
  const Body store = [](SimOps& ops, Words w, Seen&) {
    ops.store(relaxed_sys, kSite, w.y, Vec16{{1, 1, 1, 1}});
  };
  const Body load = [](SimOps& ops, Words w, Seen& seen) {
    const Vec16 got = ops.load(as<Vec16>, relaxed_sys, kSite, w.y);
    seen = {got.word[0] + 2 * got.word[1], got.word[2] + 2 * got.word[3]};
  };
  CHECK(explore(store, load).seen.size() == 16);
}

TEST_CASE("what nobody has written may be read until a write is known", "[MAC-6.4][MAC-1.2]") {
  const auto program = [](bool ordered) {
    return explore(Boundary::kPtx, 1, [=](Machine& machine, Words w, Seen& seen) {
      const Window fresh = machine.allocate_window("fresh", 4, 4, Fill::kPoison);
      const Address x = fresh.of(RankId(1));
      enqueue(machine, 0, "send", 1, [=](SimOps& ops) {
        ops.store(relaxed_sys, kSite, x, one);
        if (ordered) ops.fence(release_sys, kSite);
        ops.store(relaxed_sys, kSite, w.y, one);
      });
      enqueue(machine, 1, "receive", 1, [=, &seen](SimOps& ops) {
        seen[0] = static_cast<std::uint32_t>(
            ops.wait_until(u32, acquire_sys, kSite, w.y, Await{~0ull, 1, 0, RankId(0)}).seen);
        seen[1] = ops.load(u32, relaxed_sys, kSite, x);
      });
    });
  };
  CHECK(program(true).only({{1, 1}}));
  const Shown unordered = program(false);
  CHECK(unordered.has_fault("reads what nobody has written: 'fresh' of rank 1"));
  CHECK(unordered.seen == std::set<Seen>{{1, 1}});
}

}  // namespace
}  // namespace assay::machine
