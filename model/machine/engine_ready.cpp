// Who can be chosen: threads that are ready, and those that wait for a word. Decides when a write
// wakes a wait or takes its value away (SPEC MAC-2.2), and what an observer is told.
#include "model/machine/engine.hpp"

namespace assay::machine {

Address Engine::canonical(Address address) const { return memory_.canonical(address); }

const MemoryEvent* Engine::pending(RunnableId who) const {
  if ((who & kHostNodeBit) != 0) return nullptr;
  const MemoryEvent& event = threads_[who]->pending;
  return event.operation == Operation::kNone ? nullptr : &event;
}

void Engine::make_ready(Thread& thread) {
  thread.state = ThreadState::kReady;
  thread.ready_position = static_cast<std::uint32_t>(ready_.size());
  ready_.push_back(thread.slot);
}

void Engine::make_unready(Thread& thread) { remove_ready(thread.ready_position); }

void Engine::remove_ready(std::uint32_t position) {
  const RunnableId moved = ready_.back();
  ready_[position] = moved;
  ready_.pop_back();
  if ((moved & kHostNodeBit) != 0) {
    streams_[moved & ~kHostNodeBit].ready_position = position;
  } else {
    threads_[moved]->ready_position = position;
  }
}

void Engine::yield(Thread& thread) {
  thread.fiber.suspend();
  if (stopping_) throw StopThread{};
}

void Engine::switch_now(Thread& thread, const MemoryEvent& event) {
  thread.pending = event;
  yield(thread);
}

void Engine::watch(Thread& thread) {
  watchers_.emplace(memory_.canonical(thread.pending.address).raw / kPageBytes, thread.slot);
  memory_.add_watcher(thread.pending.address);
}

void Engine::unwatch(Thread& thread) {
  const std::uint64_t page = memory_.canonical(thread.pending.address).raw / kPageBytes;
  const auto [begin, end] = watchers_.equal_range(page);
  for (auto entry = begin; entry != end; ++entry) {
    if (entry->second != thread.slot) continue;
    watchers_.erase(entry);
    break;
  }
  memory_.remove_watcher(thread.pending.address);
}

// After a write: threads that wait for one of its words become ready, or stop being so.
void Engine::recheck_watchers(Address first, std::uint64_t bytes) {
  if (watchers_.empty() || bytes == 0) return;
  first = memory_.canonical(first);
  const auto touched = [&](const MemoryEvent& wait) {
    const std::uint64_t waited = memory_.canonical(wait.address).raw;
    return waited < first.raw + bytes && first.raw < waited + wait.bytes;
  };
  const std::uint64_t page = first.raw / kPageBytes;
  if ((first.raw + bytes - 1) / kPageBytes == page) {
    const auto [begin, end] = watchers_.equal_range(page);
    for (auto entry = begin; entry != end; ++entry)
      if (Thread& thread = *threads_[entry->second]; touched(thread.pending)) recheck(thread);
  } else {
    for (const auto& entry : watchers_)
      if (Thread& thread = *threads_[entry.second]; touched(thread.pending)) recheck(thread);
  }
}

void Engine::recheck(Thread& thread) {
  bool satisfied = false;
  std::uint64_t seen = 0;
  const MaybeFault fault =
      model_->await(thread.pending, thread.await, Look::kLook, satisfied, seen);
  CONTRACT(fault == nullptr, fault->sentence);
  if (satisfied && thread.state == ThreadState::kWaiting) {
    make_ready(thread);
  } else if (!satisfied && thread.state == ThreadState::kReady && !thread.timed_out) {
    make_unready(thread);
    thread.state = ThreadState::kWaiting;
    if (observer_ != nullptr) observer_->wait_began(thread.pending, thread.await, seen);
  }
}

// ---- the observer ------------------------------------------------------------------------------

void Engine::tell(const MemoryEvent& event, std::span<const std::byte> read,
                  std::span<const std::byte> written, bool timed_out) {
  if (event.order != Order::kWeak || observer_->wants_weak_accesses())
    observer_->performed({event, memory_.canonical(event.address), scheduler_->step(), read,
                          written, taken_, timed_out});
  taken_.clear();
}

ThreadPlace Engine::place_in(const Grid& grid, std::uint32_t cta, std::uint32_t thread) const {
  return {grid.rank, streams_[grid.stream].id.value(), grid.number, cta, thread, grid.launch};
}

bool Engine::is_crowded(RankId rank) const {
  std::uint64_t most = 0;
  for (const std::uint32_t s : streams_of_rank_[static_cast<std::size_t>(rank.value())])
    most += streams_[s].most_ctas;
  return most > config_.resident_ctas;
}

}  // namespace assay::machine
