// Data races under the PTX-ordered memory: each kind with its sentence, and its legal neighbour.
#include "model/machine/ptx_memory_testing.hpp"

namespace assay::machine {
namespace {

using namespace testing;  // words, bodies and explore

TEST_CASE("a weak access needs an order with every access it conflicts with", "[MAC-6.14]") {
  const Body weak_store = [](SimOps& ops, Words w, Seen&) {
    ops.store(weak, kSite, w.x, one);
    ops.store(release_sys, kSite, w.y, one);
  };
  const auto reader = [](bool asks) -> Body {
    return [=](SimOps& ops, Words w, Seen& seen) {
      seen[0] = ops.load(u32, acquire_sys, kSite, w.y);
      if (seen[0] == 1 || !asks) seen[1] = ops.load(u32, weak, Site::kCombinePull, w.x);
    };
  };
  CHECK(explore(weak_store, reader(true)).only({{0, 9}, {1, 1}}));
  const Shown racy = explore(weak_store, reader(false));
  CHECK(
      racy.has_fault("fault: rank 1 kernel second cta 0 thread 0 at CombinePull: weak load of 4 "
                     "bytes in 'words' of rank 0 + 0 (of 64 bytes) is in a data race with the "
                     "weak store of 4 bytes at DispatchFlag of rank 0 kernel first cta 0 thread "
                     "0: nothing orders them, and both are weak"));
  CHECK(
      racy.has_fault("weak store of 4 bytes in 'words' of rank 0 + 0 (of 64 bytes) is in a data "
                     "race with the weak load of 4 bytes at CombinePull of rank 1"));
  const Body strong_store = [](SimOps& ops, Words w, Seen&) {
    ops.store(relaxed_sys, kSite, w.x, one);
  };
  CHECK(explore(strong_store, reader(false)).has_fault("and this one is weak"));
  CHECK(explore(strong_store, reader(false)).has_fault("and the other is weak"));
  const Body reads_too = [](SimOps& ops, Words w, Seen&) { ops.load(u32, weak, kSite, w.x); };
  CHECK(explore(reads_too, reader(false)).only({{0, 0}}));  // two loads conflict in nothing
}

TEST_CASE("what comes after a barrier is not ordered by it", "[MAC-6.10][MAC-6.14]") {
  const Shown racy = explore(Boundary::kPtx, 2, [](Machine& machine, Words w, Seen& seen) {
    enqueue(machine, 0, "both", 1, [=, &seen](SimOps& ops) {
      ops.barrier(kSite);
      if (ops.thread() == 0)
        ops.store(weak, kSite, w.x, one);
      else
        seen[0] = ops.load(u32, weak, kSite, w.x);
    });
  });
  CHECK(racy.seen.empty());
  CHECK(racy.has_fault("nothing orders them"));
}

TEST_CASE("a weak load may follow a strong load that has seen the write", "[MAC-6.14]") {
  const Body store = [](SimOps& ops, Words w, Seen&) { ops.store(relaxed_sys, kSite, w.y, one); };
  const Body load = [](SimOps& ops, Words w, Seen& seen) {
    seen[0] = ops.load(u32, relaxed_sys, kSite, w.y);
    if (seen[0] == 1) seen[1] = ops.load(u32, weak, kSite, w.y);
  };
  CHECK(explore(store, load).only({{0, 9}, {1, 1}}));
}

TEST_CASE("strong accesses whose scopes leave each other out are a race", "[MAC-6.14][MAC-6.3]") {
  const Body store_gpu = [](SimOps& ops, Words w, Seen&) {
    ops.store(relaxed_gpu, kSite, w.y, one);
  };
  const Body load_sys = [](SimOps& ops, Words w, Seen& seen) {
    seen[0] = ops.load(u32, relaxed_sys, kSite, w.y);
  };
  CHECK(explore_ctas(store_gpu, load_sys).only({{0, 9}, {1, 9}}));
  CHECK(explore(store_gpu, load_sys).has_fault("scope gpu does not include rank 1 kernel second"));
  const Body store_cta = [](SimOps& ops, Words w, Seen&) {
    ops.store(relaxed_cta, kSite, w.y, one);
  };
  CHECK(explore_ctas(store_cta, load_sys)
            .has_fault("scope cta does not include rank 0 kernel both "
                       "cta 1 thread 0"));
}

TEST_CASE("a poll races with a store that its scope leaves out", "[MAC-6.14][MAC-6.7]") {
  const Body store = [](SimOps& ops, Words w, Seen&) { ops.store(relaxed_sys, kSite, w.y, one); };
  const auto wait = [](auto access) -> Body {
    return [=](SimOps& ops, Words w, Seen& seen) {
      seen[0] = static_cast<std::uint32_t>(
          ops.wait_until(u32, access, kSite, w.y, Await{~0ull, 1, 0, RankId(0)}).seen);
    };
  };
  CHECK(explore(store, wait(relaxed_sys)).only({{1, 9}}));
  const Shown narrow = explore(store, wait(relaxed_gpu));
  CHECK(narrow.seen.empty());
  CHECK(
      narrow.has_fault("wait of 4 bytes (relaxed.gpu) in 'words' of rank 1 + 16 (of 64 bytes) is "
                       "in a data race with the store of 4 bytes (relaxed.sys)"));
}

TEST_CASE("accesses of different sizes need an order, and then are legal", "[MAC-6.14]") {
  const auto program = [](bool ordered) {
    return explore(Boundary::kPtx, 1, [=](Machine& machine, Words w, Seen& seen) {
      enqueue(machine, 0, "wide", 1, [=](SimOps& ops) {
        ops.store(relaxed_sys, kSite, w.x, std::uint64_t{0x200000001});
        ops.store(relaxed_sys, kSite, w.x.at(4), std::uint32_t{3});
        ops.store(weak, kSite, w.x.at(1), std::uint8_t{1});
        ops.store(release_sys, kSite, w.y, one);
      });
      enqueue(machine, 1, "narrow", 1, [=, &seen](SimOps& ops) {
        if (ordered) ops.wait_until(u32, acquire_sys, kSite, w.y, Await{~0ull, 1, 0, RankId(0)});
        seen[0] = ops.load(u32, relaxed_sys, kSite, w.x);
        const std::uint64_t both = ops.load(as<std::uint64_t>, relaxed_sys, kSite, w.x);
        seen[1] =
            static_cast<std::uint32_t>(both >> 32) + ops.load(as<std::uint16_t>, weak, kSite, w.x);
        ops.store(relaxed_sys, kSite, w.x, std::uint64_t{5});
      });
    });
  };
  CHECK(program(true).only({{0x101, 3 + 0x101}}));
  CHECK(program(false).has_fault("they are 4 bytes against 8"));
}

TEST_CASE("an acquire of a split location closes the pattern of an earlier load",
          "[MAC-6.8][MAC-6.14]") {
  CHECK(explore(Boundary::kPtx, 1, [](Machine& machine, Words w, Seen& seen) {
          enqueue(machine, 0, "send", 1, [=](SimOps& ops) {
            ops.store(weak, kSite, w.x, one);
            ops.store(release_sys, kSite, w.y, std::uint64_t{1});
          });
          enqueue(machine, 1, "receive", 1, [=, &seen](SimOps& ops) {
            ops.wait_until(as<std::uint64_t>, relaxed_sys, kSite, w.y, Await{~0ull, 1});
            ops.store(weak, kSite, w.y.at(4), two);
            ops.load(as<std::uint64_t>, acquire_sys, kSite, w.y);
            seen[0] = ops.load(u32, weak, kSite, w.x);
          });
        }).only({{1, 9}}));
}

TEST_CASE("a release hands on its own write", "[MAC-6.2][MAC-6.8]") {
  const Body send = [](SimOps& ops, Words w, Seen&) {
    ops.store(release_sys, kSite, w.y, one);
    ops.store(relaxed_sys, kSite, w.y, two);
  };
  const Body receive = [](SimOps& ops, Words w, Seen& seen) {
    ops.wait_until(u32, acquire_sys, kSite, w.y, Await{~0ull, 2, 0, RankId(0)});
    seen[0] = ops.load(u32, weak, kSite, w.y);
  };
  CHECK(explore(send, receive).only({{2, 9}}));
}

TEST_CASE("of a wide location only the bytes that were accessed can race", "[MAC-6.14]") {
  const Body wide = [](SimOps& ops, Words w, Seen& seen) {
    seen[0] = static_cast<std::uint32_t>(ops.load(as<std::uint64_t>, relaxed_sys, kSite, w.x));
    ops.store(relaxed_sys, kSite, w.x.at(4), one);  // a switch may come before it
  };
  const auto narrow = [](bool stores) -> Body {
    return [=](SimOps& ops, Words w, Seen& seen) {
      if (stores)
        ops.store(weak, kSite, w.x, one);
      else
        seen[1] = ops.load(u32, weak, kSite, w.x);
    };
  };
  CHECK(explore(wide, narrow(false)).only({{0, 0}}));
  // In whichever order they come, also when the location has been split between them.
  const Shown racy = explore(wide, narrow(true));
  CHECK(racy.seen.empty());
  CHECK(racy.has_fault("weak store of 4 bytes"));
}

TEST_CASE("a read of a part still races when the parts have become one", "[MAC-6.14]") {
  const auto await = [](SimOps& ops, auto access, Address word, std::uint64_t value) {
    ops.wait_until(u32, access, kSite, word, Await{~0ull, value, 0, RankId(0)});
  };
  const auto program = [&](bool reads) {
    Machine machine(small_config(1, 2, 1), [] {
      MachineParts parts;
      parts.make_memory_model = ptx_memory(Boundary::kPtx);
      return parts;
    }());
    const Address x = machine.allocate_window("words", 64, 64, Fill::kZero).of(RankId(0));
    const Address flag = x.at(16), merged = x.at(32);
    enqueue(machine, 0, "three", 3, [=](SimOps& ops) {
      switch (ops.cta()) {
        case 0:
          ops.store(weak, kSite, x, std::uint64_t{1});
          ops.store(relaxed_sys, kSite, x, one);
          ops.store(release_sys, kSite, flag, one);
          await(ops, acquire_sys, x.at(20), 1);
          ops.store(relaxed_sys, kSite, x, std::uint64_t{2});
          ops.store(relaxed_sys, kSite, merged, one);
          break;
        case 1:
          await(ops, acquire_sys, flag, 1);
          if (reads) ops.load(u32, weak, Site::kCombinePull, x.at(4));
          ops.store(release_sys, kSite, x.at(20), one);
          break;
        default:
          await(ops, acquire_sys, flag, 1);
          await(ops, relaxed_sys, merged, 1);
          ops.store(relaxed_sys, kSite, x, std::uint64_t{3});
      }
    });
    return machine.run();
  };
  CHECK(program(false).report == "");
  CHECK(program(true).report.find("with the weak load of 4 bytes at CombinePull") !=
        std::string::npos);
}

TEST_CASE("a wide swap that fails leaves the choices of narrow loads as they were",
          "[MAC-6.6][MAC-6.14]") {
  const auto await = [](SimOps& ops, auto access, Address word) {
    ops.wait_until(u32, access, kSite, word, Await{~0ull, 1, 0, RankId(0)});
  };
  const Shown shown = explore(Boundary::kPtx, 1, [=](Machine& machine, Words w, Seen& seen) {
    const Address swapped = w.x.at(8);
    enqueue(machine, 0, "two", 2, [=](SimOps& ops) {
      if (ops.cta() == 0) {
        ops.store(relaxed_sys, kSite, w.x.at(4), two);
        ops.store(relaxed_sys, kSite, w.x, one);
        return ops.store(release_sys, kSite, w.y, one);
      }
      await(ops, acquire_sys, w.y);
      ops.atomic_cas(relaxed_sys, kSite, w.x, std::uint64_t{7}, std::uint64_t{8});
      ops.store(relaxed_sys, kSite, swapped, one);
    });
    enqueue(machine, 1, "reads", 1, [=, &seen](SimOps& ops) {
      await(ops, relaxed_sys, swapped);
      seen[0] = ops.load(u32, relaxed_sys, kSite, w.x);
    });
  });
  CHECK(shown.only({{0, 9}, {1, 9}}));
}

TEST_CASE("accesses of two sizes in turn do not multiply what is remembered", "[MAC-6.14]") {
  MachineParts parts;
  PtxMemory* model = nullptr;
  parts.make_memory_model = [&](Memory& memory, Scheduler& scheduler) {
    auto made = std::make_unique<PtxMemory>(memory, scheduler, Boundary::kPtx);
    model = made.get();
    return made;
  };
  Machine machine(small_config(1, 1, 1), std::move(parts));
  const Address x = machine.allocate_window("words", 64, 64, Fill::kZero).of(RankId(0));
  enqueue(machine, 0, "turns", 2, [&](SimOps& ops) {
    if (ops.cta() == 1)
      return static_cast<void>(ops.wait_until(u32, relaxed_sys, kSite, x.at(16), Await{~0ull, 1}));
    for (std::uint32_t i = 0; i < 10; ++i) {
      ops.store(relaxed_sys, kSite, x, std::uint64_t{i});
      ops.store(relaxed_sys, kSite, x.at(4), i);
    }
    CHECK(model->num_records() < 100);
    ops.store(relaxed_sys, kSite, x.at(16), one);
  });
  const RunResult result = machine.run();
  INFO(result.report);
  REQUIRE(result.ok());
}

TEST_CASE("an initialisation in small pieces stays readable by a wider poll", "[MAC-6.14]") {
  CHECK(explore(Boundary::kPtx, 1, [](Machine& machine, Words w, Seen& seen) {
          enqueue(machine, 0, "clear", 1, [=](SimOps& ops) {
            ops.store(weak, kSite, w.x, two);
            ops.store(weak, kSite, w.x.at(4), std::uint32_t{0});
          });
          enqueue(machine, 0, "both", 2, [=, &seen](SimOps& ops) {
            if (ops.cta() == 0)
              ops.store(relaxed_gpu, kSite, w.x, std::uint64_t{7});
            else
              seen[0] =
                  static_cast<std::uint32_t>(ops.load(as<std::uint64_t>, relaxed_gpu, kSite, w.x));
          });
        }).only({{2, 9}, {7, 9}}));
}

TEST_CASE("another address of the same bytes is ordered by kernels only", "[MAC-6.15]") {
  const auto program = [](bool same_kernel, bool use_alias) {
    return explore(Boundary::kPtx, 1, [=](Machine& machine, Words, Seen& seen) {
      const Window window = machine.allocate_window("twice", 4, 4, Fill::kZero);
      const Window alias = machine.alias(window);
      const Address first = window.of(RankId(1));
      const Address second = use_alias ? alias.of(RankId(1)) : first;
      const auto store = [=](SimOps& ops) { ops.store(relaxed_sys, kSite, first, one); };
      const auto load = [=, &seen](SimOps& ops) {
        seen[0] = ops.load(u32, relaxed_sys, kSite, second);
      };
      if (same_kernel) {
        enqueue(machine, 0, "both", 1, [=](SimOps& ops) {
          store(ops);
          load(ops);
        });
      } else {
        enqueue(machine, 0, "store", 1, store);
        enqueue(machine, 0, "load", 1, load);
      }
    });
  };
  CHECK(program(true, false).only({{1, 9}}));
  CHECK(program(false, true).only({{1, 9}}));
  CHECK(program(true, true)
            .has_fault("in 'twice (alias)' of rank 1 + 0 (of 4 bytes) is in a data "
                       "race with the store of 4 bytes (relaxed.sys) at DispatchFlag "
                       "of rank 0 kernel both cta 0 thread 0: they go through two "
                       "addresses of the same bytes"));
}

}  // namespace
}  // namespace assay::machine
