// How a run that went wrong is put into words (SPEC MAC-5.4).
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

std::string Engine::fault_report(const MemoryEvent& event, const Fault& fault) const {
  return fmt::format("{} at {}: {}", place_of(*threads_[event.slot]), site_name(event.site),
                     fault.sentence);
}

std::string Engine::waiting_line(const Thread& thread) {
  const MemoryEvent& event = thread.pending;
  if (thread.state == ThreadState::kAtBarrier)
    return fmt::format("{} is at barrier {}, where {} of {} threads have arrived", place_of(thread),
                       site_name(event.site), thread.cta->at_barrier, thread.cta->threads.size());
  if (thread.state == ThreadState::kAtGrid)
    return fmt::format("{} is at {}, where it waits for the kernels before its own to end",
                       place_of(thread), site_name(event.site));
  bool satisfied = false;
  std::uint64_t seen = 0;
  const MaybeFault fault = model_->await(event, thread.await, Look::kLook, satisfied, seen);
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
    if (thread->state != ThreadState::kWaiting && thread->state != ThreadState::kAtBarrier &&
        thread->state != ThreadState::kAtGrid)
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

std::string Engine::budget_report(std::uint64_t done) const {
  std::string last = "a host node";
  if ((last_run_ & kHostNodeBit) == 0) {
    const Thread& thread = *threads_[last_run_];
    const bool ended = thread.state == ThreadState::kFree || thread.state == ThreadState::kEnded;
    last = ended ? "a thread that has ended" : place_of(thread);
  }
  return fmt::format("{} operations were performed and the budget is {}; last ran {}", done,
                     config_.step_budget, last);
}

// `site` is the barrier that the thread has come to; nothing when it has ended instead.
std::string Engine::divergence_report(const Thread& thread, std::optional<Site> site) const {
  const Cta& cta = *thread.cta;
  const std::string others =
      cta.at_barrier > 0
          ? fmt::format("{} of {} threads of its group are at barrier {}", cta.at_barrier,
                        cta.threads.size(), site_name(cta.barrier_site))
          : fmt::format("{} of {} threads of its group have ended", cta.ended, cta.threads.size());
  if (!site) return fmt::format("{} has ended while {}", place_of(thread), others);
  return fmt::format("{} is at barrier {} while {}", place_of(thread), site_name(*site), others);
}

void Engine::shared_fault(const Thread& thread, Site site, SharedWord word, const char* verb,
                          const std::string& why) {
  fail(RunStatus::kFault, fmt::format("{} at {}: {} shared word {}, which {}", place_of(thread),
                                      site_name(site), verb, word.index, why));
}

void Engine::shared_race(const Thread& thread, Site site, SharedWord word, const char* verb,
                         const char* did, std::uint32_t other) {
  const std::string who =
      other == kManyReaders ? "several threads" : fmt::format("thread {}", other);
  shared_fault(thread, site, word, verb,
               fmt::format("{} {} without a barrier in between", who, did));
}

}  // namespace assay::machine
