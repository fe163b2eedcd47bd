// Which steps of an execution depend on each other, which pairs could have come the other way
// round, and where the search must therefore try another thread first (SPEC MAC-7.6).
#include <algorithm>

#include "model/machine/explore_reduced.hpp"
#include "model/machine/run.hpp"

namespace assay::machine {

// ---- footprints --------------------------------------------------------------------------------

void Footprint::add(std::uint64_t first, std::uint32_t bytes, bool write) {
  for (const Piece& piece : accesses_)
    if (piece.first == first && piece.bytes == bytes && (piece.write || !write)) return;
  accesses_.push_back({first, bytes, write});
}

void Footprint::add_admission(RankId rank) { ranks_.push_back(rank); }

void Footprint::add(const Footprint& other) {
  for (const Piece& piece : other.accesses_) add(piece.first, piece.bytes, piece.write);
  for (const RankId rank : other.ranks_)
    if (std::find(ranks_.begin(), ranks_.end(), rank) == ranks_.end()) ranks_.push_back(rank);
  sc_fence_ = sc_fence_ || other.sc_fence_;
  everything_ = everything_ || other.everything_;
}

void Footprint::clear() {
  accesses_.clear();
  ranks_.clear();
  sc_fence_ = everything_ = false;
}

bool Footprint::depends_on(const Footprint& other) const {
  if (everything_ || other.everything_ || (sc_fence_ && other.sc_fence_)) return true;
  for (const Piece& mine : accesses_)
    for (const Piece& theirs : other.accesses_)
      if (mine.meets(theirs)) return true;
  for (const RankId rank : ranks_)
    if (std::find(other.ranks_.begin(), other.ranks_.end(), rank) != other.ranks_.end())
      return true;
  return false;
}

bool Footprint::writes(std::uint64_t first, std::uint32_t bytes) const {
  const Piece range{first, bytes, false};
  return std::any_of(accesses_.begin(), accesses_.end(),
                     [&](const Piece& piece) { return piece.write && piece.meets(range); });
}

// ---- what a step did ---------------------------------------------------------------------------

void ReducedSearch::begin_step(std::size_t index) {
  depth_ = index;
  next_answer_ = 0;
  finished_ = false;
  taken_.clear();
  oldest_end_.reset();
  const MemoryEvent* event = pending_->pending(node().who);
  operation_ = event != nullptr ? *event : MemoryEvent{};
  if (operation_.bytes != 0) operation_.address = pending_->canonical(operation_.address);
  if (!is_fresh()) return;
  node().footprint.clear();
  node().is_await = operation_.operation == Operation::kAwait;
  // Also when it goes on waiting, which is so only if it was a fault until another step.
  if (node().is_await) node().footprint.add(operation_.address.raw, operation_.bytes, false);
  if ((node().who & kHostNodeBit) != 0) node().footprint.add_everything();
}

// The current step is over: its place in the order of things, and its races.
void ReducedSearch::finish_step() {
  if (!finished_) {
    finished_ = true;
    const ThreadId performer = node().thread;
    CONTRACT(performer < threads_.size(), "a step of a thread without a state", performer);
    ThreadState& state = threads_[performer];
    ++state.tick;
    if (is_fresh()) {
      VectorClock before = state.clock;
      if (operation_.operation == Operation::kWaitForGrid)
        before.join(
            streams_[{static_cast<std::uint64_t>(state.place.rank.value()), state.place.stream}]
                .ended);
      for (const ThreadId other : met_) before.join(threads_[other].clock);
      node().clock = find_races({depth_, node().thread, node().is_await, node().footprint, before});
      node().tick = state.tick;
      node().clock.set(node().thread, state.tick);
    }
    state.clock = node().clock;
    state.last_node = depth_;
    if (operation_.operation == Operation::kLaunchDependents) {
      const auto rank = static_cast<std::uint64_t>(state.place.rank.value());
      const std::uint64_t launch = state.place.launch;
      CtaState& cta = ctas_[{rank, state.place.stream, launch, state.place.cta}];
      if (!cta.released)
        streams_[{rank, state.place.stream}].released[state.place.launch].join(node().clock);
      cta.released = true;
    }
  }
  settle_structure();
}

// Who was let go by the step, and therefore comes after it (SPEC MAC-7.6).
void ReducedSearch::settle_structure() {
  const VectorClock& clock = node().clock;
  for (const ThreadId other : met_) threads_[other].clock.join(clock);
  const auto stream_of = [&](const ThreadPlace& place) -> StreamState& {
    return streams_[{static_cast<std::uint64_t>(place.rank.value()), place.stream}];
  };
  const auto cta_of = [&](const ThreadPlace& place) -> CtaState& {
    return ctas_[{static_cast<std::uint64_t>(place.rank.value()), place.stream, place.launch,
                  place.cta}];
  };
  for (const auto& [thread, place] : ended_) cta_of(place).ended.join(threads_[thread].clock);
  for (const ThreadPlace& place : ended_ctas_) {
    const CtaState& cta = cta_of(place);
    stream_of(place).finished[place.launch].join(cta.ended);
    if (!cta.released) stream_of(place).released[place.launch].join(cta.ended);
  }
  for (const ThreadPlace& place : ended_grids_)
    stream_of(place).ended.join(stream_of(place).finished[place.launch]);
  for (const auto& [thread, place] : began_) {
    ThreadState& state = threads_[thread];
    StreamState& stream = stream_of(place);
    state.clock = base_;
    state.clock.join(clock);
    const bool overlaps = stream.programmatic[place.launch] && place.launch > 0;
    state.clock.join(overlaps ? stream.released[place.launch - 1] : stream.ended);
  }
  if (timed_out_ != kNobody) {
    // Time passes when nobody can move: after everything.
    for (const ThreadState& other : threads_) threads_[timed_out_].clock.join(other.clock);
  }
  began_.clear();
  ended_.clear();
  ended_ctas_.clear();
  ended_grids_.clear();
  met_.clear();
  timed_out_ = kNobody;
}

void ReducedSearch::conclude() {
  // The operation that met a fault has not been performed.
  if (ended_early_ && is_fresh() && operation_.bytes != 0)
    node().footprint.add(
        operation_.address.raw, operation_.bytes,
        operation_.operation == Operation::kStore || operation_.operation == Operation::kRmw);
  finish_step();
  redundant_ = redundant_ || pruned_;
  check_races_of_waiters();
  // A run that ended early says nothing about the others, who go on behind it when this thread has
  // gone to sleep: one of them is tried here next (SPEC MAC-7.8).
  if (!ended_early_ || !gather_ || redundant_ || depth_ == 0) return;
  Node& last = node();
  const auto sleeps = [&](ThreadId thread) {
    return thread == last.thread ||
           std::any_of(last.sleep.begin(), last.sleep.end(),
                       [&](const Sleeper& s) { return s.thread == thread; });
  };
  if (!std::all_of(last.backtrack.begin(), last.backtrack.end(), sleeps)) return;
  for (const Runnable& other : last.runnable)
    if (!sleeps(other.thread)) return last.backtrack.push_back(other.thread);
}

void ReducedSearch::run_ended(const RunResult& result) {
  ended_early_ = result.status == RunStatus::kFault ||
                 result.status == RunStatus::kBarrierDivergence ||
                 result.status == RunStatus::kBudgetExhausted;
}

// A wait that never ended might have, before some write.
void ReducedSearch::check_races_of_waiters() {
  for (ThreadId thread = 0; thread < threads_.size(); ++thread) {
    const ThreadState& state = threads_[thread];
    if (!state.waits || fault_ == SearchFault::kWaitsAreNotReversed) continue;
    Footprint footprint;
    footprint.add(state.wait_address, state.wait_bytes, false);
    find_races({depth_ + 1, thread, true, footprint, state.clock});
  }
}

// ---- races -------------------------------------------------------------------------------------

// Returns the step's clock: what it depends on, and what that depends on. A race is a pair of
// dependent steps with nothing in between that orders them; for each that can come the other way
// round the search will try it.
VectorClock ReducedSearch::find_races(const Step& step) {
  VectorClock clock = step.before;
  if (step.footprint.empty()) return clock;
  VectorClock reversed = step.before;  // what is ordered, if races that cannot be reversed are not
  for (std::size_t earlier = step.index; --earlier > 0;) {
    const Node& other = nodes_[earlier];
    if (other.thread == step.thread || happens_before(earlier, reversed) ||
        !other.footprint.depends_on(step.footprint))
      continue;
    if (is_reversible(earlier, step)) {
      plan_reversal(earlier, step);
      reversed.join(other.clock);
    }
    clock.join(other.clock);
  }
  return clock;
}

// A wait cannot come before the write that ends it. The search knows when a memory with histories
// has named all writes that would, or when the thread had already come to its wait and could not be
// chosen; otherwise it tries.
bool ReducedSearch::is_reversible(std::size_t earlier, const Step& step) const {
  if (!step.is_await) return true;
  if (step.index == depth_ && oldest_end_.has_value()) return *oldest_end_ < earlier;
  if (threads_[step.thread].last_node >= earlier) return true;
  const std::vector<Runnable>& runnable = nodes_[earlier].runnable;
  return std::any_of(runnable.begin(), runnable.end(),
                     [&](const Runnable& r) { return r.thread == step.thread; });
}

// Source sets: after `earlier` was left out, everything that does not depend on it and then the
// step itself is possible; so one of the threads that can begin that sequence must be tried there.
void ReducedSearch::plan_reversal(std::size_t earlier, const Step& step) {
  Node& node = nodes_[earlier];
  std::vector<std::size_t> sequence;
  std::vector<ThreadId> initials;
  bool step_is_initial = true;
  for (std::size_t i = earlier + 1; i < step.index; ++i) {
    if (happens_before(earlier, nodes_[i].clock)) continue;
    if (std::none_of(sequence.begin(), sequence.end(),
                     [&](std::size_t s) { return happens_before(s, nodes_[i].clock); }))
      initials.push_back(nodes_[i].thread);
    sequence.push_back(i);
    if (happens_before(i, step.before) || nodes_[i].footprint.depends_on(step.footprint))
      step_is_initial = false;
  }
  if (step_is_initial) initials.insert(initials.begin(), step.thread);
  const auto tried = [&](ThreadId thread) {
    return std::find(node.backtrack.begin(), node.backtrack.end(), thread) !=
               node.backtrack.end() ||
           std::any_of(node.sleep.begin(), node.sleep.end(),
                       [&](const Sleeper& s) { return s.thread == thread; });
  };
  if (std::any_of(initials.begin(), initials.end(), tried)) return;
  for (const ThreadId thread : initials)
    for (const Runnable& other : node.runnable)
      if (other.thread == thread) return node.backtrack.push_back(thread);
  if (step.is_await) return;  // it could not be chosen there
  for (const Runnable& other : node.runnable)
    if (!tried(other.thread)) node.backtrack.push_back(other.thread);
}

// ---- what the machine tells --------------------------------------------------------------------

void ReducedSearch::run_began(const Memory&) {
  finish_step();
  for (const ThreadState& state : threads_) base_.join(state.clock);
}

void ReducedSearch::performed(const Performed& what) {
  if (what.event.operation == Operation::kAwait)
    threads_[thread_of_slot_[what.event.slot]].waits = false;
  if (!is_fresh()) return;
  const bool is_atomic = what.event.operation == Operation::kRmw;
  const bool write = !what.written.empty() && fault_ != (is_atomic ? SearchFault::kAtomicsAreReads
                                                                   : SearchFault::kStoresAreReads);
  if (what.event.bytes != 0) node().footprint.add(what.canonical.raw, what.event.bytes, write);
  if (what.event.operation == Operation::kFence && what.event.order == Order::kSc)
    node().footprint.add_sc_fence();
}

void ReducedSearch::wait_began(const MemoryEvent& event, const Await&, std::uint64_t) {
  ThreadState& state = threads_[thread_of_slot_[event.slot]];
  state.waits = true;
  state.wait_address = pending_->canonical(event.address).raw;
  state.wait_bytes = event.bytes;
}

void ReducedSearch::barrier_passed(std::span<const ThreadSlot> threads, Site) {
  for (const ThreadSlot slot : threads) met_.push_back(thread_of_slot_[slot]);
}

void ReducedSearch::timeout_fired(ThreadSlot slot) { timed_out_ = thread_of_slot_[slot]; }

void ReducedSearch::grid_began(const ThreadPlace& place, const std::string&, bool crowded,
                               bool programmatic) {
  streams_[{static_cast<std::uint64_t>(place.rank.value()), place.stream}]
      .programmatic[place.launch] = programmatic;
  if (crowded && is_fresh()) node().footprint.add_admission(place.rank);
}

void ReducedSearch::grid_ended(const ThreadPlace& place) { ended_grids_.push_back(place); }

void ReducedSearch::cta_ended(const ThreadPlace& place, bool crowded) {
  ended_ctas_.push_back(place);
  if (crowded && is_fresh()) node().footprint.add_admission(place.rank);
}

void ReducedSearch::thread_began(ThreadSlot slot, const ThreadPlace& place) {
  const ThreadId thread = id_of({static_cast<std::uint64_t>(place.rank.value()), place.stream,
                                 place.launch, place.cta, place.thread});
  if (slot >= thread_of_slot_.size()) thread_of_slot_.resize(slot + 1, kNobody);
  thread_of_slot_[slot] = thread;
  threads_[thread] = ThreadState{};
  threads_[thread].place = place;
  began_.emplace_back(thread, place);
}

void ReducedSearch::thread_ended(ThreadSlot slot) {
  const ThreadId thread = thread_of_slot_[slot];
  ended_.emplace_back(thread, threads_[thread].place);
}

ReducedSearch::ThreadId ReducedSearch::id_of(const ThreadKey& key) {
  const auto [at, added] = ids_.emplace(key, static_cast<ThreadId>(ids_.size()));
  if (at->second >= threads_.size()) threads_.resize(at->second + 1);
  return at->second;
}

ReducedSearch::ThreadId ReducedSearch::thread_of(RunnableId who) {
  if ((who & kHostNodeBit) == 0) return thread_of_slot_[who];
  return id_of({~std::uint64_t{0}, who & ~kHostNodeBit, 0, 0, 0});
}

}  // namespace assay::machine
