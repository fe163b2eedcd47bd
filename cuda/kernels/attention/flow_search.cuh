// For the tests of flow.hpp: a search through all orders in which the recorded programs of a block
// or of a cluster can run, copies arriving whenever they like. It finds a deadlock, a barrier that
// counts an arrival too many, a wait that is satisfied by another phase than its own, and a stage
// that is read with another tile's content or overwritten while it is read. Host only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "cuda/kernels/attention/flow_recorder.cuh"

namespace assay::attention_kernels::testing {

// As init_barriers() has it.
inline int arrivals_of(int at, Kind kind, int blocks) {
  const int barrier = at % kBarriers, block = at / kBarriers;
  const bool apart = kind == Kind::kApart;
  if (barrier >= kNextFull) return 1;
  if (barrier >= kWorkFree) return kUnits + (apart ? 2 : 1) + (blocks > 1 && block == 0 ? 1 : 0);
  if (barrier >= kTransposedFree && barrier < kWorkFull) return kUnits;
  if (barrier >= kValuesFree && barrier < kTransposedFull) return blocks * (apart ? 1 : kUnits);
  return barrier >= kKeysFree && barrier < kValuesFull ? blocks * kUnits : 1;
}

struct State {
  int pc[kMaxBlocks * kRoles] = {};
  int completions[kMaxBlocks * kBarriers] = {};
  int pending[kMaxBlocks * kBarriers] = {};  // arrivals still expected
  int copies[kMaxBlocks * kBarriers] = {};   // expected less those that came; may be negative
  int content[kMaxBlocks * kBuffers] = {};   // -1: a copy is in flight, 0: nothing
  int readers[kMaxBlocks * kBuffers] = {};   // a bit per role
  int flight[kMaxBlocks * kBuffers] = {};    // content that is coming, and its barrier
  int flight_barrier[kMaxBlocks * kBuffers] = {};
};

class Search {
 public:
  explicit Search(const Scenario& scenario, Fault fault = Fault::kNone, Kind kind = Kind::kPending,
                  int blocks = 1)
      : kind_(kind), blocks_(blocks), programs_(programs_of(scenario, fault, kind, blocks)) {}

  // The first thing that goes wrong, or none.
  std::optional<std::string> run() {
    State start;
    for (int b = 0; b < blocks_ * kBarriers; ++b) start.pending[b] = arrivals_of(b, kind_, blocks_);
    std::vector<State> stack;
    push(start, stack);
    while (!stack.empty() && !wrong_) {
      const State state = stack.back();
      stack.pop_back();
      bool moved = false;
      for (int role = 0; role < roles() && !wrong_; ++role) moved |= try_step(state, role, stack);
      for (int barrier = 0; barrier < blocks_ * kBarriers && !wrong_; ++barrier)
        moved |= try_copies(state, barrier, stack);
      if (!moved && !wrong_) check_end(state);
    }
    return wrong_;
  }
  std::size_t states() const { return seen_.size(); }

 private:
  int roles() const { return blocks_ * kRoles; }
  std::string key(const State& s) const {
    std::string k;
    for (const int pc : s.pc) {
      k += static_cast<char>(pc & 0xFF);
      k += static_cast<char>(pc >> 8);
    }
    for (const int f : s.flight) k += static_cast<char>(f != 0);
    return k;
  }
  void push(State& next, std::vector<State>& stack) {
    go_on(next);
    if (seen_.insert(key(next)).second) stack.push_back(next);
  }
  void fail(const std::string& what) {
    if (!wrong_) wrong_ = what;
  }
  void complete(State& s, int barrier) {
    if (s.pending[barrier] != 0 || s.copies[barrier] != 0) return;
    ++s.completions[barrier];
    for (int role = 0; role < roles(); ++role) {
      const Program& program = programs_[static_cast<std::size_t>(role)];
      for (auto at = static_cast<std::size_t>(s.pc[role]); at < program.size(); ++at) {
        const Step& step = program[at];
        if (step.kind != Step::kWait || step.at != barrier) continue;
        if (step.completions < s.completions[barrier] && step.completions > 0)
          overtaken(s, role, step);
        break;
      }
    }
    s.pending[barrier] = arrivals_of(barrier, kind_, blocks_);
  }
  // The role may not have looked when the phase that it waits for was followed by another.
  void overtaken(const State& s, int role, const Step& step) {
    if (s.completions[step.at] > step.completions)
      fail("barrier " + std::to_string(step.at) + " goes on without role " + std::to_string(role));
  }
  void arrive(State& s, int barrier) {
    if (s.pending[barrier] == 0) return fail("an arrival too many at " + std::to_string(barrier));
    --s.pending[barrier];
    complete(s, barrier);
  }
  // All copies that a phase waits for: a part of them lets nobody go on.
  bool try_copies(const State& state, int barrier, std::vector<State>& stack) {
    if (state.pending[barrier] != 0 || state.copies[barrier] == 0) return false;
    State next = state;
    for (int buffer = 0; buffer < blocks_ * kBuffers; ++buffer) {
      if (state.flight[buffer] == 0 || state.flight_barrier[buffer] != barrier) continue;
      next.content[buffer] = next.flight[buffer];
      next.flight[buffer] = 0;
      --next.copies[barrier];
    }
    if (next.copies[barrier] != 0) return false;
    complete(next, barrier);
    push(next, stack);
    return true;
  }

  // The end of something that takes time, which is the role's next step.
  bool try_step(const State& state, int role, std::vector<State>& stack) {
    const Program& program = programs_[static_cast<std::size_t>(role)];
    if (!takes_time(program, state.pc[role])) return false;
    State next = state;
    do {
      perform(next, role, program);
    } while (takes_time(program, next.pc[role]));
    push(next, stack);
    return true;
  }
  static bool takes_time(const Program& program, int at) {
    if (at == static_cast<int>(program.size())) return false;
    const Step::Kind kind = program[static_cast<std::size_t>(at)].kind;
    return kind == Step::kReadEnd || kind == Step::kMove;
  }
  // Every role goes on until it waits or something takes time. Only that and copies come in any
  // order: nobody is hindered by a step that comes soon, and what a late one would have missed is
  // told by complete().
  void go_on(State& s) {
    for (bool moved = true; moved && !wrong_;) {
      moved = false;
      for (int role = 0; role < roles() && !wrong_; ++role) {
        const Program& program = programs_[static_cast<std::size_t>(role)];
        while (s.pc[role] < static_cast<int>(program.size()) && !takes_time(program, s.pc[role]) &&
               perform(s, role, program) && !wrong_)
          moved = true;
      }
    }
  }

  // False if it waits.
  bool perform(State& s, int role, const Program& program) {
    const Step& step = program[static_cast<std::size_t>(s.pc[role])];
    const int reader = 1 << role;
    switch (step.kind) {
      case Step::kWait: {
        const int done = s.completions[step.at];
        if ((static_cast<unsigned>(done) & 1) == step.parity) return false;
        if (done != step.completions)
          fail("role " + std::to_string(role) + " passed barrier " + std::to_string(step.at) +
               " in another phase");
        break;
      }
      case Step::kArrive:
        arrive(s, step.at);
        break;
      case Step::kExpect:
        s.copies[step.at] += step.content;
        arrive(s, step.at);
        break;
      case Step::kCopy:
        if (s.readers[step.at] != 0) fail("a copy overwrites what is read");
        if (s.flight[step.at] != 0) fail("two copies into one stage");
        s.flight[step.at] = step.content;
        s.flight_barrier[step.at] = step.barrier;
        s.content[step.at] = -1;
        break;
      case Step::kWrite:
        if (s.readers[step.at] != 0) fail("a slot is written while it is read");
        s.content[step.at] = step.content;
        break;
      case Step::kLook:
      case Step::kRead:
        if (s.content[step.at] != step.content)
          fail("role " + std::to_string(role) + " reads " + std::to_string(s.content[step.at]) +
               " instead of " + std::to_string(step.content));
        if (step.kind == Step::kRead) s.readers[step.at] |= reader;
        break;
      case Step::kReadAny:
        if (s.content[step.at] < 0) fail("reads while a copy flies");
        s.readers[step.at] |= reader;
        break;
      case Step::kMove:
        if (s.readers[step.at] != 0) fail("transposes over what is read");
        s.content[step.at] = s.content[step.barrier];
        s.readers[step.barrier] &= ~reader;
        break;
      case Step::kReadEnd:
        s.readers[step.at] &= ~reader;
        break;
    }
    ++s.pc[role];
    return true;
  }

  void check_end(const State& s) {
    for (int role = 0; role < roles(); ++role) {
      const auto size = static_cast<int>(programs_[static_cast<std::size_t>(role)].size());
      if (s.pc[role] != size)
        return fail("deadlock: role " + std::to_string(role) + " at step " +
                    std::to_string(s.pc[role]) + " of " + std::to_string(size));
    }
  }

  Kind kind_;
  int blocks_;
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
      for (int u = 0; u < kMaxBlocks * kUnits; ++u) {
        const Range visited = w.unit[u % kUnits].visited;
        const bool asked = visited.contains(tile) && tile != visited.begin;
        s.keeps[u].back().push_back(asked ? take() : visited.contains(tile));
      }
    }
  }
  return s;
}

}  // namespace assay::attention_kernels::testing
