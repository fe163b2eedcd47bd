// For the tests of decode_flow.hpp: a search through all orders in which the recorded programs of a
// block can run, copies arriving whenever they like. It finds a deadlock, a barrier that counts an
// arrival too many, a wait that is satisfied by another phase than its own, and memory that is read
// with other content or overwritten while it is read. Host only.
#pragma once

#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "cuda/kernels/attention/decode_flow_recorder.cuh"

namespace assay::attention_kernels::decode_testing {

class Search {
 public:
  explicit Search(const Scenario& scenario, Fault fault = Fault::kNone)
      : programs_(programs_of(scenario, fault)) {}

  // The first thing that goes wrong, or none.
  std::optional<std::string> run() {
    State start;
    for (int b = 0; b < kBarriers; ++b) start.pending[b] = arrivals_of(b);
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
        next.content[buffer] = next.flight[buffer];
        next.flight[buffer] = 0;
        --next.copies[next.flight_barrier[buffer]];
        complete(next, next.flight_barrier[buffer]);
        push(next, stack);
        moved = true;
      }
      if (!moved && !wrong_) check_end(state);
    }
    return wrong_;
  }
  std::size_t states() const { return seen_.size(); }

 private:
  struct State {
    int pc[kRoles] = {};
    int completions[kBarriers] = {};
    int pending[kBarriers] = {};  // arrivals still expected
    int copies[kBarriers] = {};   // copies in flight that the phase waits for
    int content[kBuffers] = {};   // -1: a copy is in flight, 0: nothing
    int readers[kBuffers] = {};   // a bit per role
    int flight[kBuffers] = {};    // content that is coming, and its barrier
    int flight_barrier[kBuffers] = {};
  };

  static std::string key(const State& s) {
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
    s.pending[barrier] = arrivals_of(barrier);
  }
  void arrive(State& s, int barrier) {
    if (s.pending[barrier] == 0) return fail("an arrival too many at " + std::to_string(barrier));
    --s.pending[barrier];
    complete(s, barrier);
  }

  // A wait, an arrival or a copy, with the ends of reading before it and what is read and written
  // behind it: reading that lasts longer and writing that comes sooner meet more of what they must
  // not meet.
  bool try_step(const State& state, int role, std::vector<State>& stack) {
    const Program& program = programs_[static_cast<std::size_t>(role)];
    const auto size = static_cast<int>(program.size());
    if (state.pc[role] == size) return false;
    State next = state;
    const auto now = [&]() -> const Step& {
      return program[static_cast<std::size_t>(next.pc[role])];
    };
    while (now().kind == Step::kReadEnd) take(next, role, now());
    if (now().kind == Step::kWait &&
        (static_cast<unsigned>(next.completions[now().at]) & 1) == now().parity)
      return false;
    take(next, role, now());
    while (next.pc[role] != size && (now().kind == Step::kRead || now().kind == Step::kWrite))
      take(next, role, now());
    push(next, stack);
    return true;
  }
  void take(State& s, int role, const Step& step) {
    ++s.pc[role];
    const int reader = 1 << role;
    const std::string who = "role " + std::to_string(role);
    switch (step.kind) {
      case Step::kWait:
        if (s.completions[step.at] != step.completions)
          fail(who + " passed barrier " + std::to_string(step.at) + " in another phase");
        break;
      case Step::kArrive:
        arrive(s, step.at);
        break;
      case Step::kLoad:
        if (s.readers[step.at] != 0) fail("a copy overwrites what is read");
        if (s.flight[step.at] != 0) fail("two copies into one stage");
        s.flight[step.at] = step.content;
        s.flight_barrier[step.at] = step.barrier;
        s.content[step.at] = -1;
        ++s.copies[step.barrier];
        arrive(s, step.barrier);
        break;
      case Step::kWrite:
        if ((s.readers[step.at] & ~reader) != 0) fail(who + " writes over what is read");
        if (s.flight[step.at] != 0) fail(who + " writes where a copy flies");
        s.content[step.at] = step.content;
        break;
      case Step::kRead:
        if (s.content[step.at] != step.content)
          fail(who + " reads " + std::to_string(s.content[step.at]) + " instead of " +
               std::to_string(step.content));
        s.readers[step.at] |= reader;
        break;
      case Step::kReadEnd:
        s.readers[step.at] &= ~reader;
        break;
    }
  }

  void check_end(const State& s) {
    for (int role = 0; role < kRoles; ++role) {
      const auto size = static_cast<int>(programs_[static_cast<std::size_t>(role)].size());
      if (s.pc[role] != size)
        return fail("deadlock: role " + std::to_string(role) + " at step " +
                    std::to_string(s.pc[role]) + " of " + std::to_string(size));
    }
  }

  std::vector<Program> programs_;
  std::unordered_set<std::string> seen_;
  std::optional<std::string> wrong_;
};

}  // namespace assay::attention_kernels::decode_testing
