// The loop: admits CTAs, asks the scheduler who runs, ends runs. Decides when a run is over and
// why.
#include "model/machine/engine.hpp"

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
      stacks_(config.stack_bytes),
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
  for (std::int32_t r = 0; r < config.num_ranks; ++r) add_stream(RankId(r));
}

Engine::~Engine() = default;

// ---- the loop ----------------------------------------------------------------------------------

RunResult Engine::run() {
  CONTRACT(!running_, "run() inside a host node");
  if (!result_.ok()) return result_;
  running_ = true;
  result_ = RunResult{};
  for (std::uint32_t s = 0; s < streams_.size(); ++s)
    if (!streams_[s].nodes.empty() && !streams_[s].started) start_head(s);
  while (result_.ok() && !finished()) {
    admit_ctas();
    if (ready_.empty()) {
      if (config_.timeouts_fire && fire_one_timeout()) continue;
      stop(RunStatus::kDeadlock, deadlock_report());
      break;
    }
    const RunnableId who = ready_[scheduler_->choose_runnable(ready_, *this)];
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
  }
}

void Engine::run_thread_slice(Thread& thread) {
  if (!thread.fiber.started()) thread.fiber.start(stacks_, &run_thread, &thread);
  thread.fiber.resume();
  if (thread.fiber.finished() && !stopping_ && result_.ok()) end_thread(thread);
}

void Engine::run_host_node(std::uint32_t stream_index) {
  Stream& stream = streams_[stream_index];
  remove_ready(stream.ready_position);
  // Moved out, because the node may enqueue more behind itself.
  const std::function<void()> node = std::move(stream.nodes.front().host);
  node();
  finish_head(stream_index);
}

// What stands at the head of a stream may run, whatever other streams do (SPEC MAC-5.1).
void Engine::start_head(std::uint32_t stream_index) {
  Stream& stream = streams_[stream_index];
  stream.started = true;
  Node& node = stream.nodes.front();
  if (node.host) {
    stream.ready_position = static_cast<std::uint32_t>(ready_.size());
    ready_.push_back(kHostNodeBit | stream_index);
    return;
  }
  auto grid = std::make_unique<Grid>();
  grid->stream = stream_index;
  grid->number = next_grid_++;
  grid->rank = stream.rank;
  grid->kernel = &node.kernel;
  grid->group_size = node.kernel.group_size != 0 ? node.kernel.group_size : config_.group_size;
  grid->unstarted.resize(node.kernel.num_ctas);
  for (std::uint32_t c = 0; c < node.kernel.num_ctas; ++c) grid->unstarted[c] = c;
  model_->grid_begin(stream.rank, stream.id.value(), grid->number);
  grids_of_rank_[static_cast<std::size_t>(stream.rank.value())].push_back(std::move(grid));
  admission_possible_ = true;
}

void Engine::finish_head(std::uint32_t stream_index) {
  Stream& stream = streams_[stream_index];
  stream.nodes.pop_front();
  stream.started = false;
  --open_nodes_;
  if (!stream.nodes.empty()) start_head(stream_index);
}

// Fills every rank up to resident_ctas. Which CTA comes next is the scheduler's choice among all
// that have not started, of all grids at the head of a stream (SPEC MAC-5.2).
void Engine::admit_ctas() {
  if (!admission_possible_) return;
  admission_possible_ = false;
  for (std::size_t rank = 0; rank < grids_of_rank_.size(); ++rank) {
    std::uint32_t waiting = 0;
    for (const auto& grid : grids_of_rank_[rank])
      waiting += static_cast<std::uint32_t>(grid->unstarted.size());
    for (; waiting > 0 && resident_of_rank_[rank] < config_.resident_ctas; --waiting) {
      std::uint32_t chosen = scheduler_->choose(Choice::kAdmitCta, waiting);
      for (const auto& grid : grids_of_rank_[rank]) {
        std::vector<std::uint32_t>& unstarted = grid->unstarted;
        if (chosen >= unstarted.size()) {
          chosen -= static_cast<std::uint32_t>(unstarted.size());
          continue;
        }
        std::swap(unstarted[chosen], unstarted.back());
        const std::uint32_t cta_index = unstarted.back();
        unstarted.pop_back();
        admit(*grid, cta_index);
        break;
      }
    }
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
    model_->thread_begin(
        slot, ThreadPlace{grid.rank, streams_[grid.stream].id.value(), grid.number, cta_index, i});
    make_ready(thread);
  }
}

void Engine::end_thread(Thread& thread) {
  Cta& cta = *thread.cta;
  make_unready(thread);
  thread.state = ThreadState::kEnded;
  thread.fiber.recycle(stacks_);
  model_->thread_end(thread.slot);
  ++cta.ended;
  if (cta.at_barrier > 0)
    return stop(RunStatus::kBarrierDivergence, divergence_report(thread, std::nullopt));
  if (cta.ended == cta.threads.size()) end_cta(&cta);
}

void Engine::end_cta(Cta* cta) {
  Grid& grid = *cta->grid;
  for (const ThreadSlot slot : cta->threads) {
    threads_[slot]->state = ThreadState::kFree;
    free_slots_.push_back(slot);
  }
  free_ctas_.emplace_back(cta);
  const auto rank = static_cast<std::size_t>(grid.rank.value());
  --resident_of_rank_[rank];
  --grid.live_ctas;
  admission_possible_ = true;
  if (grid.live_ctas > 0 || !grid.unstarted.empty()) return;
  const std::uint32_t stream_index = grid.stream;
  model_->grid_end(grid.rank, streams_[stream_index].id.value(), grid.number);
  std::erase_if(grids_of_rank_[rank], [&](const auto& g) { return g.get() == &grid; });
  finish_head(stream_index);
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
  ++result_.counters.timeouts;
  make_ready(thread);
  return true;
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
      thread->fiber.recycle(stacks_);
    }
    if (thread->index == 0) ctas.push_back(thread->cta);
    thread->state = ThreadState::kFree;
  }
  for (Cta* cta : ctas) free_ctas_.emplace_back(cta);
}

// ---- who is ready ------------------------------------------------------------------------------

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
  watchers_.emplace(thread.pending.address.raw / kPageBytes, thread.slot);
  memory_.add_watcher(thread.pending.address);
}

void Engine::unwatch(Thread& thread) {
  const auto [begin, end] = watchers_.equal_range(thread.pending.address.raw / kPageBytes);
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
  const auto touched = [&](const MemoryEvent& wait) {
    return wait.address.raw < first.raw + bytes && first.raw < wait.address.raw + wait.bytes;
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
  // The word was readable when the wait began, so it is now.
  const MaybeFault fault = model_->await(thread.pending, thread.await, satisfied, seen);
  CONTRACT(fault == nullptr, fault->sentence);
  if (satisfied && thread.state == ThreadState::kWaiting) {
    make_ready(thread);
  } else if (!satisfied && thread.state == ThreadState::kReady && !thread.timed_out) {
    make_unready(thread);
    thread.state = ThreadState::kWaiting;
  }
}

// ---- streams -----------------------------------------------------------------------------------

StreamId Engine::add_stream(RankId rank) {
  CONTRACT(rank.value() >= 0 && rank.value() < config_.num_ranks, rank, config_.num_ranks);
  auto& of_rank = streams_of_rank_[static_cast<std::size_t>(rank.value())];
  Stream stream;
  stream.rank = rank;
  stream.id = StreamId(static_cast<std::uint32_t>(of_rank.size()));
  of_rank.push_back(static_cast<std::uint32_t>(streams_.size()));
  streams_.push_back(std::move(stream));
  return streams_.back().id;
}

void Engine::enqueue(RankId rank, StreamId stream_id, Node node) {
  CONTRACT(rank.value() >= 0 && rank.value() < config_.num_ranks, rank, config_.num_ranks);
  const auto& of_rank = streams_of_rank_[static_cast<std::size_t>(rank.value())];
  CONTRACT(stream_id.value() < of_rank.size(), node.name, rank, stream_id);
  const std::uint32_t index = of_rank[stream_id.value()];
  Stream& stream = streams_[index];
  stream.nodes.push_back(std::move(node));
  ++open_nodes_;
  if (running_ && !stream.started && stream.nodes.size() == 1) start_head(index);
}

void Engine::host_wrote(Address first, std::uint64_t bytes) {
  model_->host_wrote(first, bytes);
  recheck_watchers(first, bytes);
}

}  // namespace assay::machine
