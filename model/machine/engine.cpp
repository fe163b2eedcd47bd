// The loop: admits CTAs, asks the scheduler who runs, ends runs. Decides when a run is over and
// why.
#include "model/machine/engine.hpp"

#include <algorithm>
#include <utility>

#include "model/machine/sim_ops.hpp"

namespace assay::machine {

namespace {

// Weak accesses between two looks at the budget. They are no switch points, so only a body that
// loops over weak accesses alone gets here.
constexpr std::int64_t kWeakAccessesPerLook = 1 << 20;

constexpr std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  std::uint64_t state = hash ^ value;
  return splitmix64(state);
}

}  // namespace

Engine::Engine(const MachineConfig& config, MachineParts parts)
    : config_(config),
      memory_(config.num_ranks),
      scheduler_(std::move(parts.scheduler)),
      observer_(parts.observer),
      stacks_(parts.stacks != nullptr && parts.stacks->holds(config.stack_bytes)
                  ? std::move(parts.stacks)
                  : std::make_shared<StackPool>(config.stack_bytes)),
      streams_of_rank_(static_cast<std::size_t>(config.num_ranks)),
      grids_of_rank_(static_cast<std::size_t>(config.num_ranks)),
      resident_of_rank_(static_cast<std::size_t>(config.num_ranks)) {
  CONTRACT(config.num_ranks >= 1 && config.group_size >= 1 && config.resident_ctas >= 1 &&
               config.longest_run >= 1 && config.step_budget >= 1,
           config.num_ranks, config.group_size, config.resident_ctas, config.longest_run,
           config.step_budget);
  if (scheduler_ == nullptr)
    scheduler_ = std::make_unique<RandomScheduler>(config.seed, config.longest_run);
  model_ = parts.make_memory_model ? parts.make_memory_model(memory_, *scheduler_)
                                   : std::make_unique<SequentialMemory>(memory_);
  splits_vectors_ = model_->splits_vectors();
  if (observer_ != nullptr) {
    scheduler_->log_writes(&taken_);
    if (observer_->wants_weak_accesses() || observer_->closes_short_way()) memory_.close_caches();
  }
  for (std::int32_t r = 0; r < config.num_ranks; ++r) add_stream(RankId(r));
}

Engine::~Engine() = default;

// ---- the loop ----------------------------------------------------------------------------------

RunResult Engine::run() {
  CONTRACT(!running_, "run() inside a host node");
  if (!result_.ok()) return result_;
  running_ = true;
  result_ = RunResult{};
  if (observer_ != nullptr) observer_->run_began(memory_);
  for (std::uint32_t s = 0; s < streams_.size(); ++s) {
    if (streams_[s].nodes.empty()) continue;
    model_->stream_wakes(streams_[s].rank, streams_[s].id.value());
    start_next(s);
  }
  while (result_.ok() && !finished()) {
    admit_ctas();
    if (ready_.empty()) {
      if (config_.timeouts_fire && fire_one_timeout()) continue;
      poll_once_more();
      if (result_.ok()) stop(RunStatus::kDeadlock, deadlock_report());
      break;
    }
    scheduler_->begin_step();
    const std::uint32_t chosen = scheduler_->choose_runnable(ready_, *this);
    if (chosen == kAbandonRun) {
      stop(RunStatus::kAbandoned, scheduler_->why_abandoned());
      break;
    }
    const RunnableId who = ready_[chosen];
    if (observer_ != nullptr) [[unlikely]]
      observer_->step_began(scheduler_->step(), who);
    result_.counters.switches += who != last_run_;
    last_run_ = who;
    run_drawn_ = run_left_ = scheduler_->run_length();
    weak_drawn_ = weak_left_ = kWeakAccessesPerLook;
    if ((who & kHostNodeBit) != 0) {
      run_host_node(who & ~kHostNodeBit);
    } else {
      run_thread_slice(*threads_[who]);
    }
    account_slice(who);
    if (result_.ok()) check_budget();
  }
  unwind_all();
  running_ = false;
  if (observer_ != nullptr) observer_->run_ended(result_);
  if (!result_.ok()) return result_;
  model_->run_ended();
  for (Stream& stream : streams_) stream.after_kernel = false;
  return result_;
}

void Engine::account_slice(RunnableId who) {
  RunCounters& counters = result_.counters;
  const auto ordered = static_cast<std::uint64_t>(run_drawn_ - run_left_);
  counters.ordered_operations += ordered;
  counters.weak_accesses += static_cast<std::uint64_t>(weak_drawn_ - weak_left_);
  result_.schedule_hash = mix(mix(result_.schedule_hash, who), ordered);
  run_drawn_ = run_left_ = 0;
  weak_drawn_ = weak_left_ = 0;
}

// Called after every slice, and from within one that has done nothing but weak accesses for long.
void Engine::check_budget() {
  const RunCounters& counters = result_.counters;
  const std::uint64_t done = counters.ordered_operations + counters.weak_accesses +
                             static_cast<std::uint64_t>(run_drawn_ - run_left_) +
                             static_cast<std::uint64_t>(weak_drawn_ - weak_left_);
  const bool inside_a_slice = weak_drawn_ != 0;
  if (done > config_.step_budget) {
    stop(RunStatus::kBudgetExhausted, budget_report(done));
    if (inside_a_slice) throw StopThread{};
  }
  if (inside_a_slice) {
    weak_drawn_ += kWeakAccessesPerLook;
    weak_left_ += kWeakAccessesPerLook;
  }
}

void run_thread(void* argument) {
  Thread& thread = *static_cast<Thread*>(argument);
  try {
    SimOps ops(*thread.engine, thread);
    thread.cta->grid->kernel->body(ops);
  } catch (const Engine::StopThread&) {
    // The run has ended early; the body's locals are destroyed and that is all.
  } catch (...) {  // out of memory: no exception may leave a fiber, so the loop throws it again
    thread.engine->escaped_ = std::current_exception();
  }
}

void Engine::run_thread_slice(Thread& thread) {
  if (!thread.fiber.started()) thread.fiber.start(*stacks_, &run_thread, &thread);
  thread.fiber.resume();
  if (escaped_ != nullptr) [[unlikely]] {
    stop(RunStatus::kFault, "an exception left a body");
    unwind_all();
    running_ = false;
    std::rethrow_exception(std::exchange(escaped_, nullptr));
  }
  if (thread.fiber.finished() && !stopping_ && result_.ok()) end_thread(thread);
}

void Engine::run_host_node(std::uint32_t stream_index) {
  Stream& stream = streams_[stream_index];
  remove_ready(stream.ready_position);
  // Moved out, because the node may enqueue more behind itself.
  const std::function<void()> node = std::move(stream.nodes.front().host);
  model_->host_node_begin(stream.rank, stream.id.value(), stream.nodes.front().ticket);
  node();
  model_->host_node_end(stream.rank, stream.id.value());
  if (observer_ != nullptr)
    observer_->host_node_ran(stream.rank, stream.id.value(), stream.nodes.front().name);
  finish_head(stream_index);
  start_next(stream_index);
}

// Fills every rank up to resident_ctas. Which CTA comes next is the scheduler's choice among all
// that have not started, of all grids that may run (SPEC MAC-5.2). When all fit there is nothing to
// choose.
void Engine::admit_ctas() {
  if (!admission_possible_) return;
  admission_possible_ = false;
  for (std::size_t rank = 0; rank < grids_of_rank_.size(); ++rank) {
    std::uint32_t waiting = 0;
    for (const auto& grid : grids_of_rank_[rank])
      waiting += static_cast<std::uint32_t>(grid->unstarted.size());
    if (waiting <= config_.resident_ctas - resident_of_rank_[rank]) {
      admit_all(rank);
      continue;
    }
    for (; resident_of_rank_[rank] < config_.resident_ctas; --waiting)
      admit_chosen(rank, scheduler_->choose(Choice::kAdmitCta, waiting));
  }
}

void Engine::admit_all(std::size_t rank) {
  for (const auto& grid : grids_of_rank_[rank]) {
    for (const std::uint32_t cta_index : grid->unstarted) admit(*grid, cta_index);
    grid->unstarted.clear();
  }
}

void Engine::admit_chosen(std::size_t rank, std::uint32_t chosen) {
  for (const auto& grid : grids_of_rank_[rank]) {
    std::vector<std::uint32_t>& unstarted = grid->unstarted;
    if (chosen >= unstarted.size()) {
      chosen -= static_cast<std::uint32_t>(unstarted.size());
      continue;
    }
    std::swap(unstarted[chosen], unstarted.back());
    const std::uint32_t cta_index = unstarted.back();
    unstarted.pop_back();
    return admit(*grid, cta_index);
  }
}

void Engine::admit(Grid& grid, std::uint32_t cta_index) {
  ++resident_of_rank_[static_cast<std::size_t>(grid.rank.value())];
  ++grid.live_ctas;
  std::unique_ptr<Cta> owned;
  if (free_ctas_.empty()) {
    owned = std::make_unique<Cta>();
  } else {
    owned = std::move(free_ctas_.back());
    free_ctas_.pop_back();
  }
  Cta* cta = owned.release();  // owned by its threads until end_cta
  *cta = Cta{};
  cta->grid = &grid;
  cta->index = cta_index;
  if (observer_ != nullptr) observer_->cta_began(place_in(grid, cta_index, 0));
  for (std::uint32_t i = 0; i < grid.group_size; ++i) {
    if (free_slots_.empty()) {
      free_slots_.push_back(static_cast<ThreadSlot>(threads_.size()));
      threads_.push_back(std::make_unique<Thread>());
    }
    const ThreadSlot slot = free_slots_.back();
    free_slots_.pop_back();
    Thread& thread = *threads_[slot];
    thread.engine = this;
    thread.slot = slot;
    thread.index = i;
    thread.cta = cta;
    thread.pending = MemoryEvent{};
    cta->threads.push_back(slot);
    const ThreadPlace place = place_in(grid, cta_index, i);
    model_->thread_begin(slot, place);
    if (observer_ != nullptr) observer_->thread_began(slot, place);
    make_ready(thread);
  }
}

void Engine::end_thread(Thread& thread) {
  Cta& cta = *thread.cta;
  make_unready(thread);
  thread.state = ThreadState::kEnded;
  thread.fiber.recycle(*stacks_);
  model_->thread_end(thread.slot);
  if (observer_ != nullptr) observer_->thread_ended(thread.slot);
  ++cta.ended;
  if (cta.at_barrier > 0)
    return stop(RunStatus::kBarrierDivergence, divergence_report(thread, std::nullopt));
  if (cta.ended == cta.threads.size()) end_cta(&cta);
}

void Engine::end_cta(Cta* cta) {
  Grid& grid = *cta->grid;
  if (observer_ != nullptr)
    observer_->cta_ended(place_in(grid, cta->index, 0), is_crowded(grid.rank));
  for (const ThreadSlot slot : cta->threads) {
    threads_[slot]->state = ThreadState::kFree;
    free_slots_.push_back(slot);
  }
  free_ctas_.emplace_back(cta);
  const auto rank = static_cast<std::size_t>(grid.rank.value());
  --resident_of_rank_[rank];
  --grid.live_ctas;
  admission_possible_ = true;
  release_cta(*cta);
  if (grid.live_ctas > 0 || !grid.unstarted.empty()) return;
  grid.ended = true;
  finish_grids(grid.stream);
}

// Time passes only when nothing else can happen: then exactly one wait gives up (SPEC MAC-5.3).
bool Engine::fire_one_timeout() {
  std::vector<Thread*> waiting;
  for (const auto& thread : threads_)
    if (thread->state == ThreadState::kWaiting) waiting.push_back(thread.get());
  if (waiting.empty()) return false;
  Thread& thread =
      *waiting[scheduler_->choose(Choice::kTimeout, static_cast<std::uint32_t>(waiting.size()))];
  thread.timed_out = true;
  if (observer_ != nullptr) observer_->timeout_fired(thread.slot);
  ++result_.counters.timeouts;
  make_ready(thread);
  return true;
}

// Who waits for ever polls for ever: a poll that races with a write is the trouble, not the wait.
void Engine::poll_once_more() {
  for (const auto& thread : threads_) {
    if (thread->state != ThreadState::kWaiting) continue;
    bool satisfied = false;
    std::uint64_t seen = 0;
    const MaybeFault fault =
        model_->await(thread->pending, thread->await, Look::kTake, satisfied, seen);
    if (fault == nullptr) continue;
    result_.trouble = thread->pending;
    return stop(RunStatus::kFault, fault_report(thread->pending, *fault));
  }
}

// Lets every live fiber run to its end by an exception, so that bodies' locals are destroyed.
void Engine::unwind_all() {
  if (result_.ok()) return;
  stopping_ = true;
  std::vector<Cta*> ctas;
  for (const auto& thread : threads_) {
    if (thread->state == ThreadState::kFree) continue;
    if (thread->fiber.started()) {
      if (!thread->fiber.finished()) thread->fiber.resume();
      thread->fiber.recycle(*stacks_);
    }
    if (thread->index == 0) ctas.push_back(thread->cta);
    thread->state = ThreadState::kFree;
  }
  for (Cta* cta : ctas) free_ctas_.emplace_back(cta);
}

}  // namespace assay::machine
