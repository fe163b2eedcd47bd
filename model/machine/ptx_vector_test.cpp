// A vector under the PTX-ordered memory is four separate words that may arrive one by one, whatever
// shortcut the memory takes for words that share a history: all schedules of random programs with
// 16-byte accesses against the same programs with four 4-byte accesses in their place, between
// which threads switch.
#include <map>
#include <memory>
#include <optional>

#include "model/machine/ptx_memory_testing.hpp"

namespace assay::machine {
namespace {

using testing::for_every_schedule;

struct Access {
  Operation operation = Operation::kLoad;
  Order order = Order::kRelaxed;
  std::uint32_t offset = 0;
  std::uint32_t bytes = 4;
  std::uint32_t value = 0;
};
using Program = std::vector<std::vector<Access>>;  // one thread per rank
using Outcome = std::vector<std::uint32_t>;
struct Shown {
  std::set<Outcome> outcomes;
  bool has_race = false;
};
constexpr std::uint32_t kFlag = 16;  // a word behind the line of 16 bytes
constexpr std::uint32_t kLineWords = 5;

Program with_words(const Program& program) {
  Program words(program.size());
  for (std::size_t t = 0; t < program.size(); ++t)
    for (const Access& access : program[t]) {
      if (access.bytes != 16) {
        words[t].push_back(access);
        continue;
      }
      for (std::uint32_t w = 0; w < 4; ++w) {
        Access word = access;
        word.bytes = 4;
        word.offset += w * 4;
        word.value += w;
        words[t].push_back(word);
      }
    }
  return words;
}

struct Nobody final : PendingOperations {
  const MemoryEvent* pending(RunnableId) const override { return nullptr; }
  Address canonical(Address address) const override { return address; }
};

// Nothing if there was a race.
std::optional<Outcome> run(const Program& program, Scheduler& scheduler) {
  Memory memory(2);
  PtxMemory model(memory, scheduler, Boundary::kPtx);
  const Window window = memory.allocate_window("line", 32, 16, Fill::kZero);
  const Address line = window.of(RankId(1));
  for (std::uint32_t t = 0; t < program.size(); ++t) {
    const RankId rank(static_cast<std::int32_t>(t));
    model.stream_wakes(rank, 0);
    model.grid_begin(GridPlace{rank, 0, t, "vectors", false, 0});
    ThreadPlace place;
    place.rank = rank;
    place.grid = t;
    model.thread_begin(t, place);
  }
  std::vector<std::size_t> next(program.size(), 0);
  std::vector<Outcome> seen(program.size());
  for (;;) {
    std::vector<RunnableId> ready;
    for (std::uint32_t t = 0; t < program.size(); ++t)
      if (next[t] < program[t].size()) ready.push_back(t);
    if (ready.empty()) break;
    scheduler.begin_step();
    const std::uint32_t who = ready[scheduler.choose_runnable(ready, Nobody{})];
    const Access& access = program[who][next[who]++];
    MemoryEvent event;
    event.slot = who;
    event.rank = RankId(static_cast<std::int32_t>(who));
    event.order = access.order;
    event.scope = access.order == Order::kWeak ? Scope::kNone : Scope::kSys;
    event.address = line.at(access.offset);
    event.bytes = access.bytes;
    std::array<std::uint32_t, 4> words{};
    for (std::uint32_t w = 0; w < 4; ++w) words[w] = access.value + w;
    std::uint64_t old = 0;
    MaybeFault fault;
    if (access.operation == Operation::kLoad) {
      fault = model.load(event, reinterpret_cast<std::byte*>(words.data()));
      for (std::uint32_t w = 0; w < std::max(1u, access.bytes / 4); ++w)
        seen[who].push_back(access.bytes < 4 ? words[0] & 0xFF : words[w]);
    } else if (access.operation == Operation::kStore) {
      fault = model.store(event, reinterpret_cast<const std::byte*>(words.data()));
    } else {
      fault = model.rmw(event, Rmw::kAdd, access.value, 0, old);
      seen[who].push_back(static_cast<std::uint32_t>(old));
    }
    if (fault != nullptr) return std::nullopt;
  }
  Outcome all;
  for (const Outcome& of_thread : seen) all.insert(all.end(), of_thread.begin(), of_thread.end());
  std::array<std::uint32_t, kLineWords> last{};
  memory.peek(line, std::as_writable_bytes(std::span(last)));
  all.insert(all.end(), last.begin(), last.end());
  return all;
}

Shown show(const Program& program) {
  Shown shown;
  for_every_schedule([&](std::unique_ptr<Scheduler> scheduler) {
    const std::optional<Outcome> outcome = run(program, *scheduler);
    if (outcome)
      shown.outcomes.insert(*outcome);
    else
      shown.has_race = true;
  });
  return shown;
}

// Two threads with a vector access each, a flag that may order them, and accesses that split the
// line: words, pairs, bytes, atomics.
rc::Gen<Program> programs() {
  return rc::gen::exec([]() {
    Program program(2);
    std::uint32_t value = 16;
    for (auto& thread : program) {
      const int count = *rc::gen::element(2, 2, 3);
      const int vector_at = *rc::gen::inRange(0, count);
      for (int i = 0; i < count; ++i, value += 16) {
        Access access;
        access.value = value;
        access.operation = *rc::gen::element(Operation::kLoad, Operation::kStore);
        const int kind = i == vector_at ? 0 : *rc::gen::inRange(1, 9);
        if (kind == 0) {
          access.bytes = 16;
        } else if (kind <= 4) {  // acquire or release of the flag
          access.offset = kFlag;
          access.order = access.operation == Operation::kLoad ? Order::kAcquire : Order::kRelease;
        } else if (kind == 5) {
          access.operation = Operation::kRmw;
          access.offset = *rc::gen::inRange(0u, 4u) * 4;
        } else {
          access.bytes = *rc::gen::element(1u, 4u, 4u, 8u);
          access.offset = *rc::gen::inRange(0u, 16u / access.bytes) * access.bytes;
        }
        if (access.order == Order::kRelaxed && access.operation != Operation::kRmw &&
            *rc::gen::inRange(0, 4) == 0)
          access.order = Order::kWeak;
        thread.push_back(access);
      }
    }
    return program;
  });
}

TEST_CASE("a vector shows what its four words show", "[MAC-6.7][MAC-6.14]") {
  std::map<bool, int> races;
  std::size_t most = 0;
  assay::testing::prop("vectors and words", [&] {
    const Program program = *programs();
    const Shown vectors = show(program);
    const Shown words = show(with_words(program));
    for (const auto& thread : program) {
      RC_LOG() << "thread:";
      for (const Access& a : thread)
        RC_LOG() << " " << static_cast<int>(a.operation) << "." << static_cast<int>(a.order) << "["
                 << a.offset << "+" << a.bytes << "]=" << a.value;
      RC_LOG() << "\n";
    }
    RC_ASSERT(vectors.has_race == words.has_race);
    if (!words.has_race) RC_ASSERT(vectors.outcomes == words.outcomes);
    ++races[words.has_race];
    most = std::max(most, vectors.has_race ? 0 : vectors.outcomes.size());
  });
  CHECK(races[true] > 3);
  CHECK(races[false] > 5);
  CHECK(most > 8);
}

}  // namespace
}  // namespace assay::machine
