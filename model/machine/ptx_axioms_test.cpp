// The simulated memory shows exactly what the axioms of PTX allow: all schedules of small random
// programs against a brute-force reading of the axioms, and the litmus tests of the PTX text as a
// check of the reading itself.
#include <array>
#include <map>
#include <memory>
#include <optional>

#include "model/machine/machine_testing.hpp"
#include "model/machine/ptx_axioms_testing.hpp"
#include "model/machine/ptx_memory.hpp"

namespace assay::machine {
namespace {

using axioms::Instruction;
using axioms::Outcome;
using axioms::Program;
using axioms::Verdict;
using testing::for_every_schedule;

// Runs a program on PtxMemory itself, one instruction at a time, without fibers.
class Run {
 public:
  Run(const Program& program, Scheduler& scheduler)
      : program_(program),
        scheduler_(scheduler),
        memory_(kRanks),
        model_(memory_, scheduler, Boundary::kPtx),
        next_(program.size(), 0) {
    const Address line = memory_.allocate_window("words", 64, 64, Fill::kZero).of(RankId(0));
    words_ = {line, line.at(16), line.at(4)};
    for (std::int32_t r = 0; r < kRanks; ++r) {
      model_.stream_wakes(RankId(r), 0);
      model_.grid_begin(GridPlace{RankId(r), 0, static_cast<std::uint64_t>(r), "litmus", false, 0});
    }
    for (std::uint32_t t = 0; t < program.size(); ++t) {
      const auto rank = RankId(program[t].rank);
      ThreadPlace place;
      place.rank = rank;
      place.grid = static_cast<std::uint64_t>(rank.value());
      place.cta = program[t].cta;
      place.thread = t;
      model_.thread_begin(t, place);
    }
  }

  // Nothing if there was a race.
  std::optional<Outcome> outcome() {
    std::vector<std::vector<std::uint32_t>> seen(program_.size());
    for (;;) {
      std::vector<RunnableId> ready;
      for (std::uint32_t t = 0; t < program_.size(); ++t)
        if (next_[t] < program_[t].instructions.size() && can_go_on(t)) ready.push_back(t);
      if (ready.empty()) break;
      scheduler_.begin_step();
      const std::uint32_t who = ready[scheduler_.choose_runnable(ready, nobody_)];
      if (!perform(who, program_[who].instructions[next_[who]++], seen[who])) return std::nullopt;
    }
    Outcome all;
    for (const auto& of_thread : seen) all.insert(all.end(), of_thread.begin(), of_thread.end());
    for (const Address word : words_) {
      std::uint32_t value = 0;
      memory_.peek(word, std::as_writable_bytes(std::span(&value, 1)));
      all.push_back(value);
    }
    return all;
  }

 private:
  static constexpr std::int32_t kRanks = 2;
  struct Nobody final : PendingOperations {
    const MemoryEvent* pending(RunnableId) const override { return nullptr; }
    Address canonical(Address address) const override { return address; }
  };

  MemoryEvent event_of(std::uint32_t who, const Instruction& is) const {
    MemoryEvent event;
    event.slot = who;
    event.rank = RankId(program_[who].rank);
    event.order = is.order;
    event.scope = is.scope;
    event.address = words_[static_cast<std::size_t>(is.location)];
    event.bytes = is.wide ? 8 : 4;
    return event;
  }
  static Await await_of(const Instruction& is) { return Await{~0ull, is.compare}; }

  bool can_go_on(std::uint32_t who) {
    const Instruction& is = program_[who].instructions[next_[who]];
    bool satisfied = is.kind != Instruction::kWait;
    std::uint64_t old = 0;
    if (!satisfied) model_.await(event_of(who, is), await_of(is), Look::kLook, satisfied, old);
    return satisfied;
  }

  bool perform(std::uint32_t who, const Instruction& is, std::vector<std::uint32_t>& seen) {
    const MemoryEvent event = event_of(who, is);
    const auto both = [&](std::uint32_t word) {
      return is.wide ? std::uint64_t{word} << 32 | word : std::uint64_t{word};
    };
    const auto saw = [&](std::uint64_t read) {
      seen.push_back(static_cast<std::uint32_t>(read));
      if (is.wide) seen.push_back(static_cast<std::uint32_t>(read >> 32));
    };
    std::uint64_t value = both(is.value);
    std::uint64_t old = 0;
    MaybeFault fault;
    switch (is.kind) {
      case Instruction::kFence:
        model_.fence(event);
        return true;
      case Instruction::kLoad:
        fault = model_.load(event, reinterpret_cast<std::byte*>(&value));
        saw(value);
        break;
      case Instruction::kStore:
        fault = model_.store(event, reinterpret_cast<const std::byte*>(&value));
        break;
      case Instruction::kAdd:
      case Instruction::kCas:
        fault = model_.rmw(event, is.kind == Instruction::kAdd ? Rmw::kAdd : Rmw::kCompareAndSwap,
                           both(is.value), both(is.compare), old);
        saw(old);
        break;
      case Instruction::kWait: {
        bool satisfied = false;
        fault = model_.await(event, await_of(is), Look::kTake, satisfied, old);
        saw(old);
        break;
      }
    }
    return fault == nullptr;
  }

  const Program& program_;
  Scheduler& scheduler_;
  Memory memory_;
  PtxMemory model_;
  Nobody nobody_;
  std::vector<std::size_t> next_;
  std::array<Address, axioms::kLocations> words_;
};

Verdict simulate(const Program& program) {
  Verdict verdict;
  for_every_schedule([&](std::unique_ptr<Scheduler> scheduler) {
    const std::optional<Outcome> outcome = Run(program, *scheduler).outcome();
    if (outcome)
      verdict.outcomes.insert(*outcome);
    else
      verdict.has_race = true;
  });
  return verdict;
}

std::string show(const std::set<Outcome>& outcomes) {
  std::string text;
  for (const Outcome& outcome : outcomes) {
    text += "\n   ";
    for (const std::uint32_t value : outcome) text += " " + std::to_string(value);
  }
  return text;
}

// ---- random programs ---------------------------------------------------------------------------

constexpr int kProgramsPerCase = 5;  // 100 cases a property

enum class Flavour { kSystem, kScopes, kWeak, kSizes };

// Three in four are of x and of the word behind it, by either size; the rest is for flags.
void choose_size(Instruction& is) {
  is.location = *rc::gen::element(axioms::kX, axioms::kX, axioms::kX, axioms::kBehindX, 1, 1);
  is.wide = is.location == axioms::kX && *rc::gen::inRange(0, 3) != 0;
}

// Values are distinct powers of two, so sums of atomics say whom they have read.
rc::Gen<Program> programs(Flavour flavour) {
  return rc::gen::exec([flavour]() {
    const bool three = *rc::gen::inRange(0, 3) == 0;
    Program program(three ? 3 : 2);
    std::uint32_t value = 1;
    // Accesses of small scopes mostly race; with others, what fences of small scopes order shows.
    const bool reaches = flavour != Flavour::kScopes || *rc::gen::arbitrary<bool>();
    int left = three ? 7 : 8;
    for (axioms::Thread& thread : program) {
      thread.rank = *rc::gen::inRange(0, flavour == Flavour::kSystem ? 2 : 3) % 2;
      thread.cta = *rc::gen::inRange(0u, 2u);
      const int most = std::min(left, three ? 3 : 4);
      const int count = *rc::gen::inRange(1, most + 1);
      left -= count;
      for (int i = 0; i < count; ++i, value *= 2) {
        Instruction is;
        const int kind = *rc::gen::inRange(0, 10);
        is.kind = kind < 3   ? Instruction::kLoad
                  : kind < 6 ? Instruction::kStore
                  : kind < 7 ? Instruction::kAdd
                  : kind < 8 ? Instruction::kCas
                             : Instruction::kFence;
        const int one_in = flavour == Flavour::kWeak ? 2 : flavour == Flavour::kSizes ? 4 : 0;
        const bool weak = one_in != 0 && *rc::gen::inRange(0, one_in) == 0 &&
                          (is.kind == Instruction::kLoad || is.kind == Instruction::kStore);
        switch (is.kind) {
          case Instruction::kLoad:
            is.order = *rc::gen::element(Order::kRelaxed, Order::kAcquire);
            break;
          case Instruction::kStore:
            is.order = *rc::gen::element(Order::kRelaxed, Order::kRelease);
            break;
          case Instruction::kAdd:
          case Instruction::kCas:
            is.order = *rc::gen::element(Order::kRelaxed, Order::kAcquire, Order::kRelease,
                                         Order::kAcqRel);
            break;
          case Instruction::kFence:
          case Instruction::kWait:
            is.order =
                *rc::gen::element(Order::kAcquire, Order::kRelease, Order::kAcqRel, Order::kSc);
            break;
        }
        is.scope = flavour != Flavour::kScopes || (reaches && is.kind != Instruction::kFence)
                       ? Scope::kSys
                       : *rc::gen::element(Scope::kCta, Scope::kGpu, Scope::kSys, Scope::kSys);
        if (weak) {
          is.order = Order::kWeak;
          is.scope = Scope::kNone;
        }
        is.location = *rc::gen::inRange(0, 2);
        if (flavour == Flavour::kSizes) choose_size(is);
        is.value = value;
        // Swaps expect what somebody may have written: the initial 0, or an earlier value.
        is.compare = *rc::gen::inRange(0, 2) == 0 ? 0 : value / 2;
        thread.instructions.push_back(is);
      }
    }
    return program;
  });
}

// The shapes of message passing, store buffering and their relatives: each thread accesses one
// location, fences, and accesses the other; accesses reach everybody, fences do not.
rc::Gen<Program> shapes() {
  return rc::gen::exec([]() {
    Program program(*rc::gen::inRange(0, 6) == 0 ? 3 : 2);
    std::uint32_t value = 1;
    for (axioms::Thread& thread : program) {
      // Of three threads the first only accesses one location.
      const int count = program.size() == 3 && &thread == &program.front() ? 1 : 3;
      thread.rank = *rc::gen::inRange(0, 3) / 2;
      thread.cta = *rc::gen::inRange(0u, 2u);
      const int first = *rc::gen::inRange(0, 2);
      for (int i = 0; i < count; ++i, value *= 2) {
        Instruction is;
        is.location = i == 0 ? first : 1 - first;
        is.value = value;
        is.kind = *rc::gen::element(Instruction::kLoad, Instruction::kStore, Instruction::kStore,
                                    Instruction::kLoad, Instruction::kAdd);
        if (i == 1) {
          is.kind = Instruction::kFence;
          is.order = *rc::gen::element(Order::kAcquire, Order::kRelease, Order::kAcqRel, Order::kSc,
                                       Order::kSc, Order::kSc);
          is.scope = *rc::gen::element(Scope::kCta, Scope::kGpu, Scope::kSys);
        }
        thread.instructions.push_back(is);
      }
    }
    return program;
  });
}

// A thread works on x and the word behind it, by either size, and hands them on to the next one by
// y; some accesses are left out of that.
rc::Gen<Program> handovers() {
  return rc::gen::exec([]() {
    Program program(*rc::gen::inRange(0, 4) == 0 ? 3 : 2);
    std::uint32_t value = 1;
    std::uint32_t flag = 0;
    const auto work = [&](std::vector<Instruction>& to, int count) {
      for (; count > 0; --count, value *= 2) {
        Instruction is;
        is.kind = *rc::gen::element(Instruction::kLoad, Instruction::kLoad, Instruction::kStore,
                                    Instruction::kStore, Instruction::kAdd, Instruction::kCas);
        is.location = *rc::gen::element(axioms::kX, axioms::kX, axioms::kBehindX);
        is.wide = is.location == axioms::kX && *rc::gen::arbitrary<bool>();
        if (!is_atomic(is) && *rc::gen::inRange(0, 3) == 0) {
          is.order = Order::kWeak;
          is.scope = Scope::kNone;
        }
        is.value = value;
        is.compare = *rc::gen::element(0u, value / 2);
        to.push_back(is);
      }
    };
    const auto now_and_then = [] { return *rc::gen::inRange(0, 6) == 0 ? 1 : 0; };
    for (std::size_t t = 0; t < program.size(); ++t) {
      std::vector<Instruction>& thread = program[t].instructions;
      const bool waits = t > 0 && now_and_then() == 0;
      if (waits) {
        work(thread, now_and_then());
        Instruction wait{Instruction::kWait, Order::kAcquire, Scope::kSys, 1};
        wait.compare = flag;
        thread.push_back(wait);
      }
      work(thread, *rc::gen::inRange(1, program.size() == 3 ? (t == 2 ? 2 : 3) : 3 + 1));
      if (t + 1 == program.size() || (t == 1 && !waits)) continue;
      Instruction hand{t == 0 ? Instruction::kStore : Instruction::kAdd,
                       t == 0 || *rc::gen::arbitrary<bool>() ? Order::kRelease : Order::kRelaxed,
                       Scope::kSys, 1};
      hand.value = value;
      flag += value;
      value *= 2;
      thread.push_back(hand);
      work(thread, now_and_then());
    }
    return program;
  });
}

// Whether x and the word behind it are accessed by both sizes, with a write among the accesses.
bool meets_sizes(const Program& program) {
  bool narrow = false, wide = false, writes = false;
  for (const axioms::Thread& thread : program)
    for (const Instruction& is : thread.instructions) {
      if (is.kind == Instruction::kFence || is.location == 1) continue;
      wide = wide || is.wide;
      narrow = narrow || !is.wide;
      writes = writes || is.kind != Instruction::kLoad;
    }
  return narrow && wide && writes;
}

void agree(const Program& program, std::map<std::string, int>* seen = nullptr) {
  const Verdict legal = axioms::Checker(program).run();
  const Verdict shown = simulate(program);
  RC_LOG() << "program:" << program << "\nallowed" << (legal.has_race ? " (race)" : "") << ":"
           << show(legal.outcomes) << "\nshown" << (shown.has_race ? " (race)" : "") << ":"
           << show(shown.outcomes) << "\n";
  RC_ASSERT(shown.has_race == legal.has_race);
  if (!legal.has_race) RC_ASSERT(shown.outcomes == legal.outcomes);
  if (seen != nullptr) {
    ++(*seen)[legal.has_race ? "race" : "no race"];
    if (!legal.has_race && meets_sizes(program)) ++(*seen)["sizes meet"];
    if (!legal.has_race && legal.outcomes.size() > 8) ++(*seen)["many outcomes"];
  }
}

TEST_CASE("what the memory shows is what the axioms allow",
          "[MAC-6.1][MAC-6.4][MAC-6.5][MAC-6.6]") {
  std::map<std::string, int> seen;
  assay::testing::prop("system scope", [&] {
    for (int i = 0; i < kProgramsPerCase; ++i) agree(*programs(Flavour::kSystem), &seen);
  });
  CHECK(seen["race"] == 0);
  CHECK(seen["many outcomes"] > 20);
}

TEST_CASE("scopes are judged as the axioms judge them", "[MAC-6.3][MAC-6.8][MAC-6.9]") {
  std::map<std::string, int> seen;
  assay::testing::prop("scopes", [&] {
    for (int i = 0; i < kProgramsPerCase; ++i) agree(*programs(Flavour::kScopes), &seen);
  });
  CHECK(seen["race"] > 50);
  CHECK(seen["no race"] > 50);
}

TEST_CASE("fences order as far as their scopes include each other", "[MAC-6.8][MAC-6.9]") {
  std::map<std::string, int> seen;
  assay::testing::prop("shapes", [&] {
    for (int i = 0; i < kProgramsPerCase; ++i) agree(*shapes(), &seen);
  });
  CHECK(seen["race"] == 0);
  CHECK(seen["no race"] > 50);
}

TEST_CASE("a data race is found exactly where the axioms have one", "[MAC-6.14]") {
  std::map<std::string, int> seen;
  assay::testing::prop("weak accesses", [&] {
    for (int i = 0; i < kProgramsPerCase; ++i) agree(*programs(Flavour::kWeak), &seen);
  });
  CHECK(seen["race"] > 50);
  CHECK(seen["no race"] > 50);
}

TEST_CASE("accesses of two sizes show what the axioms allow and race where they have a race",
          "[MAC-6.14]") {
  std::map<std::string, int> seen;
  assay::testing::prop("sizes", [&] {
    for (int i = 0; i < kProgramsPerCase; ++i) agree(*programs(Flavour::kSizes), &seen);
  });
  assay::testing::prop("sizes and handovers", [&] {
    for (int i = 0; i < kProgramsPerCase; ++i) agree(*handovers(), &seen);
  });
  CHECK(seen["race"] > 50);
  CHECK(seen["no race"] > 50);
  CHECK(seen["sizes meet"] > 20);
}

}  // namespace
}  // namespace assay::machine
