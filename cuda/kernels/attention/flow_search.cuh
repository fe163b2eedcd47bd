// For the tests of flow.hpp: a search through all orders in which the recorded programs of a block
// can run, copies arriving whenever they like. It finds a deadlock, a barrier that counts an
// arrival too many, a wait that is satisfied by another phase than its own, and a stage that is
// read with another tile's content or overwritten while it is read. Host only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "cuda/kernels/attention/flow_recorder.cuh"

namespace assay::attention_kernels::testing {

inline int arrivals_of(int barrier, Kind kind) {
  const bool apart = kind == Kind::kApart;
  if (barrier >= kWorkFree) return kUnits + (apart ? 2 : 1);
  if (barrier >= kTransposedFree && barrier < kWorkFull) return kUnits;
  if (barrier >= kValuesFree && barrier < kTransposedFull) return apart ? 1 : kUnits;
  return barrier >= kKeysFree && barrier < kValuesFull ? kUnits : 1;
}

struct State {
  int pc[kRoles] = {};
  int completions[kBarriers] = {};
  int pending[kBarriers] = {};  // arrivals still expected
  int copies[kBarriers] = {};   // copies in flight that the phase waits for
  int content[kBuffers] = {};   // -1: a copy is in flight, 0: nothing
  int readers[kBuffers] = {};   // a bit per unit
  int flight[kBuffers] = {};    // content that is coming, and its barrier
  int flight_barrier[kBuffers] = {};
};

class Search {
 public:
  explicit Search(const Scenario& scenario, Fault fault = Fault::kNone, Kind kind = Kind::kPending)
      : kind_(kind), programs_(programs_of(scenario, fault, kind)) {}

  // The first thing that goes wrong, or none.
  std::optional<std::string> run() {
    State start;
    for (int b = 0; b < kBarriers; ++b) start.pending[b] = arrivals_of(b, kind_);
    std::vector<State> stack{start};
    seen_.insert(key(start));
    while (!stack.empty() && !wrong_) {
      const State state = stack.back();
      stack.pop_back();
      bool moved = false;
      for (int role = 0; role < kRoles && !wrong_; ++role) moved |= try_step(state, role, stack);
      for (int buffer = 0; buffer < kBuffers && !wrong_; ++buffer) {
        if (state.flight[buffer] == 0) continue;
        State next = state;
        arrive_copy(next, buffer);
        push(next, stack);
        moved = true;
      }
      if (!moved && !wrong_) check_end(state);
    }
    return wrong_;
  }
  std::size_t states() const { return seen_.size(); }

 private:
  std::string key(const State& s) const {
    std::string k;
    for (const int pc : s.pc) {
      k += static_cast<char>(pc & 0xFF);
      k += static_cast<char>(pc >> 8);
    }
    for (const int f : s.flight) k += static_cast<char>(f != 0);
    return k;
  }
  void push(const State& next, std::vector<State>& stack) {
    if (seen_.insert(key(next)).second) stack.push_back(next);
  }
  void fail(const std::string& what) {
    if (!wrong_) wrong_ = what;
  }
  void complete(State& s, int barrier) {
    if (s.pending[barrier] != 0 || s.copies[barrier] != 0) return;
    ++s.completions[barrier];
    s.pending[barrier] = arrivals_of(barrier, kind_);
  }
  void arrive(State& s, int barrier) {
    if (s.pending[barrier] == 0) return fail("an arrival too many at " + std::to_string(barrier));
    --s.pending[barrier];
    complete(s, barrier);
  }
  void arrive_copy(State& s, int buffer) {
    s.content[buffer] = s.flight[buffer];
    s.flight[buffer] = 0;
    --s.copies[s.flight_barrier[buffer]];
    complete(s, s.flight_barrier[buffer]);
  }

  bool try_step(const State& state, int role, std::vector<State>& stack) {
    const Program& program = programs_[static_cast<std::size_t>(role)];
    if (state.pc[role] == static_cast<int>(program.size())) return false;
    const Step& step = program[static_cast<std::size_t>(state.pc[role])];
    State next = state;
    ++next.pc[role];
    const int reader = 1 << role;
    switch (step.kind) {
      case Step::kWait: {
        const int done = state.completions[step.at];
        if ((static_cast<unsigned>(done) & 1) == step.parity) return false;
        if (done != step.completions)
          fail("role " + std::to_string(role) + " passed barrier " + std::to_string(step.at) +
               " in another phase");
        break;
      }
      case Step::kArrive:
        arrive(next, step.at);
        break;
      case Step::kLoad:
        if (state.readers[step.at] != 0) fail("a copy overwrites what is read");
        if (state.flight[step.at] != 0) fail("two copies into one stage");
        next.flight[step.at] = step.content;
        next.flight_barrier[step.at] = step.barrier;
        next.content[step.at] = -1;
        ++next.copies[step.barrier];
        arrive(next, step.barrier);
        break;
      case Step::kRead:
        if (state.content[step.at] != step.content)
          fail("role " + std::to_string(role) + " reads " + std::to_string(state.content[step.at]) +
               " instead of " + std::to_string(step.content));
        next.readers[step.at] |= reader;
        break;
      case Step::kReadAny:
        if (state.content[step.at] < 0) fail("reads while a copy flies");
        next.readers[step.at] |= reader;
        break;
      case Step::kMove:
        if (state.readers[step.at] != 0) fail("transposes over what is read");
        next.content[step.at] = state.content[step.barrier];
        next.readers[step.barrier] &= ~reader;
        break;
      case Step::kReadEnd:
        next.readers[step.at] &= ~reader;
        break;
    }
    push(next, stack);
    return true;
  }

  void check_end(const State& s) {
    for (int role = 0; role < kRoles; ++role) {
      const auto size = static_cast<int>(programs_[static_cast<std::size_t>(role)].size());
      if (s.pc[role] != size)
        return fail("deadlock: role " + std::to_string(role) + " at step " +
                    std::to_string(s.pc[role]) + " of " + std::to_string(size));
    }
  }

  Kind kind_;
  std::vector<Program> programs_;
  std::unordered_set<std::string> seen_;
  std::optional<std::string> wrong_;
};

inline SmallWork work_with(Range first, Range second) {
  SmallWork w;
  w.valid = 1;
  w.unit[0].visited = first;
  w.unit[1].visited = second;
  for (const Range r : {first, second}) {
    if (r.empty()) continue;
    if (w.all.empty()) w.all = r;
    w.all = {std::min(w.all.begin, r.begin), std::max(w.all.end, r.end)};
  }
  return w;
}

// Decisions from the bits of a number, lowest first.
inline Scenario scenario_of(const std::vector<SmallWork>& works, std::uint64_t bits) {
  Scenario s;
  s.works = works;
  const auto take = [&] {
    const bool bit = bits & 1;
    bits >>= 1;
    return bit;
  };
  for (const SmallWork& w : works) {
    for (auto& table : s.keeps) table.emplace_back();
    for (int tile = w.all.begin; tile < w.all.end; ++tile) {
      for (int u = 0; u < kUnits; ++u) {
        const Range visited = w.unit[u].visited;
        const bool asked = visited.contains(tile) && tile != visited.begin;
        s.keeps[u].back().push_back(asked ? take() : visited.contains(tile));
      }
    }
  }
  return s;
}

}  // namespace assay::attention_kernels::testing
