// For tests: the outcomes of a small program on the simulated memory itself, under every schedule.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <optional>

#include "model/machine/machine_testing.hpp"
#include "model/machine/ptx_axioms_program.hpp"
#include "model/machine/ptx_memory.hpp"

namespace assay::machine::axioms {

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

inline Verdict simulate(const Program& program) {
  Verdict verdict;
  testing::for_every_schedule([&](std::unique_ptr<Scheduler> scheduler) {
    const std::optional<Outcome> outcome = Run(program, *scheduler).outcome();
    if (outcome)
      verdict.outcomes.insert(*outcome);
    else
      verdict.has_race = true;
  });
  return verdict;
}

}  // namespace assay::machine::axioms
