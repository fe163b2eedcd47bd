// The simulated memory shows exactly what the axioms of PTX allow: all schedules of small random
// programs against a brute-force reading of the axioms, and the litmus tests of the PTX text as a
// check of the reading itself.
#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>

#include "model/machine/ptx_axioms_run.hpp"
#include "model/machine/ptx_axioms_testing.hpp"

namespace assay::machine {
namespace {

using axioms::Instruction;
using axioms::Outcome;
using axioms::Program;
using axioms::simulate;
using axioms::Verdict;

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
  // Whatever the order, no run with a race goes unnoticed. Some without one are stopped, where a
  // load would have acquired the order with the write that it seems to race with.
  RC_ASSERT(std::includes(legal.outcomes.begin(), legal.outcomes.end(), shown.outcomes.begin(),
                          shown.outcomes.end()));
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
