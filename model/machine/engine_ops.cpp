// The long way of each operation: what SimOps does not finish inline. Runs on the fibers.
#include <utility>

#include "model/machine/engine.hpp"

namespace assay::machine {

namespace {

constexpr std::uint32_t kWordsOfVec16 = 4;

MemoryEvent word_of(MemoryEvent event, std::uint32_t word) {
  event.address = event.address.at(word * 4);
  event.bytes = 4;
  return event;
}

}  // namespace

void Engine::load(const MemoryEvent& event, void* value) {
  raise(event, model_->load(event, static_cast<std::byte*>(value)));
  if (observer_ != nullptr) [[unlikely]]
    tell(event, {static_cast<const std::byte*>(value), event.bytes}, {});
}

void Engine::store(const MemoryEvent& event, const void* value) {
  raise(event, model_->store(event, static_cast<const std::byte*>(value)));
  if (observer_ != nullptr) [[unlikely]]
    tell(event, {}, {static_cast<const std::byte*>(value), event.bytes});
  recheck_watchers(event.address, event.bytes);
}

// A switch that falls on a vector access falls into its middle: some words move before it, the rest
// after. This is where "16 bytes arrive at once" breaks (SPEC MAC-1.4).
void Engine::load_after_switch(Thread& thread, const MemoryEvent& event, void* value) {
  auto* bytes = static_cast<std::byte*>(value);
  const std::uint32_t first = words_before_switch(event);
  for (std::uint32_t w = 0; w < kWordsOfVec16; ++w)
    if ((first >> w & 1) != 0) load(word_of(event, w), bytes + w * 4);
  switch_now(thread, event);
  if (first == 0) return load(event, value);
  for (std::uint32_t w = 0; w < kWordsOfVec16; ++w)
    if ((first >> w & 1) == 0) load(word_of(event, w), bytes + w * 4);
}

void Engine::store_after_switch(Thread& thread, const MemoryEvent& event, const void* value) {
  const auto* bytes = static_cast<const std::byte*>(value);
  const std::uint32_t first = words_before_switch(event);
  for (std::uint32_t w = 0; w < kWordsOfVec16; ++w)
    if ((first >> w & 1) != 0) store(word_of(event, w), bytes + w * 4);
  switch_now(thread, event);
  if (first == 0) return store(event, value);
  for (std::uint32_t w = 0; w < kWordsOfVec16; ++w)
    if ((first >> w & 1) == 0) store(word_of(event, w), bytes + w * 4);
}

// A bit per word. A misaligned access is not split: as a whole it is a fault, its words are not.
std::uint32_t Engine::words_before_switch(const MemoryEvent& event) {
  if (!splits_vectors_ || event.bytes != 16 || event.address.raw % 16 != 0) return 0;
  return scheduler_->choose(Choice::kWordsFirst, 1u << kWordsOfVec16);
}

std::uint64_t Engine::rmw(const MemoryEvent& event, Rmw op, std::uint64_t operand,
                          std::uint64_t compare) {
  std::uint64_t old = 0;
  raise(event, model_->rmw(event, op, operand, compare, old));
  if (observer_ != nullptr) [[unlikely]] {
    const std::uint64_t now = op == Rmw::kAdd ? old + operand : operand;
    const bool wrote = op == Rmw::kAdd || old == compare;
    tell(event, std::as_bytes(std::span(&old, 1)).first(event.bytes),
         std::as_bytes(std::span(&now, 1)).first(wrote ? event.bytes : 0));
  }
  recheck_watchers(event.address, event.bytes);
  return old;
}

// A thread whose wait no readable value ends cannot be chosen, from the moment it has come to it
// (SPEC MAC-2.2).
Awaited Engine::wait_until(Thread& thread, const MemoryEvent& event, const Await& await) {
  bool satisfied = false;
  std::uint64_t seen = 0;
  MaybeFault fault;
  if (ordered_operation_is_due()) {
    fault = model_->await(event, await, Look::kLook, satisfied, seen);
    // The poll that has to wait is a read like any other, and may be a race.
    if (fault == nullptr && !satisfied)
      raise(event, model_->await(event, await, Look::kTake, satisfied, seen));
  } else {
    raise(event, model_->await(event, await, Look::kTake, satisfied, seen));
    if (satisfied) return awaited(event, seen, false);
  }
  thread.pending = event;
  thread.await = await;
  // An access that is illegal now may be legal when the thread is chosen, and else is a fault then.
  if (fault != nullptr) {
    yield(thread);
    raise(event, model_->await(event, await, Look::kTake, satisfied, seen));
    if (satisfied) return awaited(event, seen, false);
  }
  if (!satisfied) {
    make_unready(thread);
    thread.state = ThreadState::kWaiting;
    if (observer_ != nullptr) observer_->wait_began(event, await, seen);
  }
  watch(thread);
  thread.fiber.suspend();
  unwatch(thread);
  if (stopping_) throw StopThread{};
  const bool gave_up = std::exchange(thread.timed_out, false);
  raise(event, model_->await(event, await, Look::kTake, satisfied, seen));
  CONTRACT(satisfied || gave_up, "a thread was chosen whose wait nothing ends");
  return awaited(event, seen, !satisfied);
}

Awaited Engine::awaited(const MemoryEvent& event, std::uint64_t seen, bool gave_up) {
  if (observer_ != nullptr) [[unlikely]]
    tell(event, std::as_bytes(std::span(&seen, 1)).first(event.bytes), {}, gave_up);
  return Awaited{seen, gave_up};
}

// All threads of the group meet at one site; anything else is a divergence (SPEC MAC-3.1).
void Engine::barrier(Thread& thread, Site site) {
  Cta& cta = *thread.cta;
  MemoryEvent event;
  event.operation = Operation::kBarrier;
  event.slot = thread.slot;
  event.rank = cta.grid->rank;
  event.site = site;
  event.scope = Scope::kCta;
  if (ordered_operation_is_due()) switch_now(thread, event);
  if (cta.ended > 0 || (cta.at_barrier > 0 && cta.barrier_site != site))
    fail(RunStatus::kBarrierDivergence, divergence_report(thread, site));
  cta.barrier_site = site;
  if (observer_ != nullptr) observer_->barrier_arrived(thread.slot, site);
  if (++cta.at_barrier < cta.threads.size()) {
    thread.pending = event;
    make_unready(thread);
    thread.state = ThreadState::kAtBarrier;
    yield(thread);
    return;
  }
  cta.at_barrier = 0;
  ++cta.phase;
  model_->barrier(cta.threads);
  if (observer_ != nullptr) observer_->barrier_passed(cta.threads, site);
  for (const ThreadSlot slot : cta.threads) {
    if (slot == thread.slot) continue;
    threads_[slot]->pending = MemoryEvent{};  // it is past the barrier
    make_ready(*threads_[slot]);
  }
}

// griddepcontrol.launch_dependents: the first thread of a CTA speaks for it (SPEC MAC-6.13).
void Engine::launch_dependents(Thread& thread, Site site) {
  Cta& cta = *thread.cta;
  MemoryEvent event;
  event.operation = Operation::kLaunchDependents;
  event.slot = thread.slot;
  event.rank = cta.grid->rank;
  event.site = site;
  if (ordered_operation_is_due()) switch_now(thread, event);
  release_cta(cta);
}

// griddepcontrol.wait: everything before this grid in its stream has ended, and is before what
// follows (SPEC MAC-6.13). Under the other boundaries that is so from the start.
void Engine::wait_for_grid(Thread& thread, Site site) {
  const Grid& grid = *thread.cta->grid;
  MemoryEvent event;
  event.operation = Operation::kWaitForGrid;
  event.slot = thread.slot;
  event.rank = grid.rank;
  event.site = site;
  if (ordered_operation_is_due()) switch_now(thread, event);
  if (streams_[grid.stream].grids.front() != &grid) {
    thread.pending = event;
    make_unready(thread);
    thread.state = ThreadState::kAtGrid;
    yield(thread);
  }
  model_->grid_waited(thread.slot);
}

std::uint32_t Engine::shared_load(Thread& thread, Site site, SharedWord word) {
  count_weak_access();
  SharedCell& cell = shared_cell(thread, site, word, "loads");
  const std::uint64_t phase = thread.cta->phase;
  if (cell.write_phase == 0) shared_fault(thread, site, word, "loads", "nobody has written");
  if (cell.write_phase == phase && cell.writer != thread.index)
    shared_race(thread, site, word, "loads", "stored", cell.writer);
  if (cell.read_phase != phase) {
    cell.read_phase = phase;
    cell.reader = thread.index;
  } else if (cell.reader != thread.index) {
    cell.reader = kManyReaders;
  }
  return cell.value;
}

// Threads may store the same value without a barrier between them ("somebody failed"); any other
// pair of accesses by two threads with a store among them needs one.
void Engine::shared_store(Thread& thread, Site site, SharedWord word, std::uint32_t value) {
  count_weak_access();
  SharedCell& cell = shared_cell(thread, site, word, "stores");
  const std::uint64_t phase = thread.cta->phase;
  if (cell.read_phase == phase && cell.reader != thread.index)
    shared_race(thread, site, word, "stores", "loaded", cell.reader);
  if (cell.write_phase == phase && cell.writer != thread.index && cell.value != value)
    shared_race(thread, site, word, "stores", "stored", cell.writer);
  cell.value = value;
  cell.write_phase = phase;
  cell.writer = thread.index;
}

SharedCell& Engine::shared_cell(Thread& thread, Site site, SharedWord word, const char* verb) {
  std::vector<SharedCell>& shared = thread.cta->shared;
  if (word.index >= kMaxSharedWords) shared_fault(thread, site, word, verb, "no CTA has");
  if (word.index >= shared.size()) shared.resize(word.index + 1);
  return shared[word.index];
}

void Engine::raise(const MemoryEvent& event, MaybeFault fault) {
  if (fault == nullptr) return;
  result_.trouble = event;
  fail(RunStatus::kFault, fault_report(event, *fault));
}

}  // namespace assay::machine
