// How a run that went wrong is put into words.
#include <fmt/format.h>

#include "model/machine/engine.hpp"

namespace assay::machine {

namespace {

// A report is read by people: the first waiting threads show the pattern, the rest is a number.
constexpr std::size_t kMaxWaitingLines = 64;

}  // namespace

void Engine::stop(RunStatus status, std::string report) {
  if (!result_.ok()) return;  // the first trouble is the cause
  result_.status = status;
  result_.report = std::move(report);
}

void Engine::fail(RunStatus status, std::string report) {
  stop(status, std::move(report));
  throw StopThread{};
}

std::string Engine::place_of(const Thread& thread) const {
  const Grid& grid = *thread.cta->grid;
  return fmt::format("rank {} kernel {} cta {} thread {}", grid.rank.value(), grid.kernel->name,
                     thread.cta->index, thread.index);
}

std::string Engine::waiting_line(const Thread& thread) {
  const MemoryEvent& event = thread.pending;
  if (thread.state == ThreadState::kAtBarrier)
    return fmt::format("{} is at barrier {}, where {} of {} threads have arrived", place_of(thread),
                       site_name(event.site), thread.cta->at_barrier, thread.cta->threads.size());
  bool satisfied = false;
  std::uint64_t seen = 0;
  const MaybeFault fault = model_->await(event, thread.await, satisfied, seen);
  CONTRACT(fault == nullptr && !satisfied, "a waiting thread could have run");
  const Await& await = thread.await;
  const std::string peer =
      await.peer.value() < 0 ? "" : fmt::format(" for peer {}", await.peer.value());
  const std::string mask =
      await.mask == ~std::uint64_t{0} ? "" : fmt::format(" under mask {:#x}", await.mask);
  return fmt::format("{} waits at {}{}, epoch {}: expected {:#x}{}, seen {:#x}, in {}",
                     place_of(thread), site_name(event.site), peer, await.epoch, await.expected,
                     mask, seen, memory_.describe(event.address));
}

std::string Engine::deadlock_report() {
  std::size_t waiting = 0;
  std::string lines;
  for (const auto& thread : threads_) {
    if (thread->state != ThreadState::kWaiting && thread->state != ThreadState::kAtBarrier)
      continue;
    if (++waiting <= kMaxWaitingLines) lines += "\n  " + waiting_line(*thread);
  }
  if (waiting > kMaxWaitingLines)
    lines += fmt::format("\n  and {} more threads", waiting - kMaxWaitingLines);
  for (const auto& grids : grids_of_rank_)
    for (const auto& grid : grids)
      if (!grid->unstarted.empty())
        lines += fmt::format(
            "\n  rank {} kernel {}: {} of {} CTAs have not started; resident_ctas "
            "is {}",
            grid->rank.value(), grid->kernel->name, grid->unstarted.size(), grid->kernel->num_ctas,
            config_.resident_ctas);
  return fmt::format("deadlock: {} threads wait for what nobody is going to do{}", waiting, lines);
}

// For the budget's report. A thread that ended with its last operation has no place any more.
std::string Engine::last_place() const {
  if ((last_run_ & kHostNodeBit) != 0) return "a host node";
  const Thread& thread = *threads_[last_run_];
  if (thread.state == ThreadState::kFree || thread.state == ThreadState::kEnded)
    return "a thread that has ended";
  return place_of(thread);
}

}  // namespace assay::machine
