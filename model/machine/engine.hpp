// The loop behind Machine: which grids, CTAs and threads exist, who is ready, who waits for what,
// and how a run ends. SimOps calls into it when an operation cannot be finished on the spot.
// Decides admission, barriers, awaits and ends; which thread runs is the Scheduler's choice, which
// value is read is the MemoryModel's.
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "model/machine/fiber.hpp"
#include "model/machine/memory.hpp"
#include "model/machine/observer.hpp"
#include "model/machine/run.hpp"

namespace assay::machine {

class Engine;
struct Grid;

// A word of a CTA's shared memory, with who touched it since the last barrier: shared words carry
// values only across a barrier, so anything else is a fault (SPEC MAC-3.2).
struct SharedCell {
  std::uint32_t value = 0;
  std::uint32_t writer = 0;
  std::uint32_t reader = 0;       // kManyReaders when more than one
  std::uint64_t write_phase = 0;  // Cta::phase of the last write; 0 is never
  std::uint64_t read_phase = 0;
};
inline constexpr std::uint32_t kManyReaders = 0xFFFFFFFFu;
inline constexpr std::uint32_t kMaxSharedWords =
    48 * 1024 / 4;  // what a CTA gets without opting in

struct Cta {
  Grid* grid = nullptr;
  std::uint32_t index = 0;
  std::vector<ThreadSlot> threads;
  std::uint32_t at_barrier = 0;
  std::uint32_t ended = 0;
  Site barrier_site = Site::kNone;
  std::uint64_t phase = 1;  // barriers passed, plus 1
  bool launched_dependents = false;
  std::vector<SharedCell> shared;
};

enum class ThreadState : std::uint8_t { kFree, kReady, kWaiting, kAtBarrier, kAtGrid, kEnded };

struct Thread {
  Engine* engine = nullptr;
  ThreadSlot slot = 0;
  ThreadState state = ThreadState::kFree;
  bool timed_out = false;
  std::uint32_t ready_position = 0;
  std::uint32_t index = 0;  // within its CTA
  Cta* cta = nullptr;
  MemoryEvent pending;  // what it is about to do, or waits for
  Await await;
  Fiber fiber;
};

struct Node {
  std::string name;
  std::function<void()> host;  // empty for a kernel
  Kernel kernel;
  std::uint32_t ticket = 0;  // MemoryModel::enqueue_ticket
};

struct Stream {
  RankId rank;
  StreamId id;
  std::uint32_t num_started = 0;  // nodes from the head on that are running or ready
  bool after_kernel = false;      // the node that has started last is a kernel of this run
  std::uint32_t ready_position = 0;
  std::uint32_t launches = 0;     // grids started so far
  std::uint64_t most_ctas = 0;    // that this stream may want to run at the same time
  std::deque<Node> nodes;
  std::deque<Grid*> grids;  // of the started nodes; more than one only under Boundary::kPdl
};

struct Grid {
  std::uint32_t stream = 0;  // index into Engine::streams_
  std::uint64_t number = 0;
  std::uint32_t launch = 0;
  RankId rank;
  std::uint32_t group_size = 1;
  const Kernel* kernel = nullptr;
  std::vector<std::uint32_t> unstarted;
  std::uint32_t live_ctas = 0;
  std::uint32_t released_ctas = 0;  // ended, or past launch_dependents
  bool ended = false;
};

class Engine final : private PendingOperations {
 public:
  Engine(const MachineConfig& config, MachineParts parts);
  ~Engine();

  Memory& memory() { return memory_; }
  MemoryModel& model() { return *model_; }
  StreamId add_stream(RankId rank);
  void enqueue(RankId rank, StreamId stream, Node node);
  RunResult run();
  void host_wrote(Address first, std::uint64_t bytes);

  // For SimOps: the long way of each operation. All of them may switch to other threads, and do not
  // return when the run ends meanwhile.
  void load(const MemoryEvent& event, void* value);
  void store(const MemoryEvent& event, const void* value);
  void load_after_switch(Thread& thread, const MemoryEvent& event, void* value);
  void store_after_switch(Thread& thread, const MemoryEvent& event, const void* value);
  std::uint64_t rmw(const MemoryEvent& event, Rmw op, std::uint64_t operand, std::uint64_t compare);
  void fence(const MemoryEvent& event) {
    model_->fence(event);
    if (observer_ != nullptr) [[unlikely]]
      tell(event, {}, {});
  }
  Awaited wait_until(Thread& thread, const MemoryEvent& event, const Await& await);
  void barrier(Thread& thread, Site site);
  void launch_dependents(Thread& thread, Site site);
  void wait_for_grid(Thread& thread, Site site);
  std::uint32_t shared_load(Thread& thread, Site site, SharedWord word);
  void shared_store(Thread& thread, Site site, SharedWord word, std::uint32_t value);
  void switch_now(Thread& thread, const MemoryEvent& event);
  void check_budget();

  // True when the thread has used up its run: the operation that asks must switch first.
  bool ordered_operation_is_due() { return --run_left_ == 0; }
  bool next_ordered_operation_is_due() const { return run_left_ == 1; }
  void count_weak_access() {
    if (--weak_left_ == 0) [[unlikely]]
      check_budget();
  }

 private:
  friend void run_thread(void* argument);
  struct StopThread {};  // unwinds a fiber when the run ends early

  const MemoryEvent* pending(RunnableId who) const override;
  Address canonical(Address address) const override;

  // the loop
  void run_thread_slice(Thread& thread);
  void run_host_node(std::uint32_t stream_index);
  void account_slice(RunnableId who);
  bool finished() const { return open_nodes_ == 0; }
  void start_next(std::uint32_t stream_index);
  void start_grid(std::uint32_t stream_index, Node& node, bool programmatic);
  void release_cta(Cta& cta);
  void finish_grids(std::uint32_t stream_index);
  void finish_head(std::uint32_t stream_index);
  void admit_ctas();
  void admit_all(std::size_t rank);
  void admit_chosen(std::size_t rank, std::uint32_t chosen);
  void admit(Grid& grid, std::uint32_t cta_index);
  void end_thread(Thread& thread);
  void end_cta(Cta* cta);
  bool fire_one_timeout();
  void poll_once_more();
  void unwind_all();

  // who is ready
  void make_ready(Thread& thread);
  void make_unready(Thread& thread);
  void remove_ready(std::uint32_t position);
  void yield(Thread& thread);
  void watch(Thread& thread);
  void unwatch(Thread& thread);
  void recheck_watchers(Address first, std::uint64_t bytes);
  void recheck(Thread& thread);

  // what the observer is told
  void tell(const MemoryEvent& event, std::span<const std::byte> read,
            std::span<const std::byte> written, bool timed_out = false);
  ThreadPlace place_in(const Grid& grid, std::uint32_t cta, std::uint32_t thread) const;
  bool is_crowded(RankId rank) const;

  // how a run ends
  void stop(RunStatus status, std::string report);
  [[noreturn]] void fail(RunStatus status, std::string report);
  void raise(const MemoryEvent& event, MaybeFault fault);
  std::string fault_report(const MemoryEvent& event, const Fault& fault) const;
  SharedCell& shared_cell(Thread& thread, Site site, SharedWord word, const char* verb);
  Awaited awaited(const MemoryEvent& event, std::uint64_t seen, bool gave_up);
  std::uint32_t words_before_switch(const MemoryEvent& event);
  std::string place_of(const Thread& thread) const;
  std::string budget_report(std::uint64_t done) const;
  std::string divergence_report(const Thread& thread, std::optional<Site> site) const;
  [[noreturn]] void shared_fault(const Thread& thread, Site site, SharedWord word, const char* verb,
                                 const std::string& why);
  [[noreturn]] void shared_race(const Thread& thread, Site site, SharedWord word, const char* verb,
                                const char* did, std::uint32_t other);
  std::string waiting_line(const Thread& thread);
  std::string deadlock_report();

  std::int64_t run_left_ = 0;   // ordered operations until the running thread must ask
  std::int64_t weak_left_ = 0;  // weak accesses until the budget is looked at
  std::int64_t run_drawn_ = 0;
  std::int64_t weak_drawn_ = 0;

  MachineConfig config_;
  Memory memory_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<MemoryModel> model_;
  bool splits_vectors_ = true;
  Observer* observer_ = nullptr;
  std::vector<WriteTaken> taken_;  // by the operation that is being performed, for the observer
  std::shared_ptr<StackPool> stacks_;

  std::deque<Stream> streams_;  // deque: a Grid points into it while streams are added
  std::vector<std::vector<std::uint32_t>> streams_of_rank_;
  std::vector<std::vector<std::unique_ptr<Grid>>> grids_of_rank_;
  std::vector<std::uint32_t> resident_of_rank_;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<ThreadSlot> free_slots_;
  std::vector<std::unique_ptr<Cta>> free_ctas_;
  std::vector<RunnableId> ready_;
  std::unordered_multimap<std::uint64_t, ThreadSlot> watchers_;  // key: page number
  std::uint64_t open_nodes_ = 0;
  std::uint64_t next_grid_ = 0;
  bool admission_possible_ = false;
  bool running_ = false;
  bool stopping_ = false;
  std::exception_ptr escaped_;  // from a fiber, to be thrown again by run()
  RunnableId last_run_ = ~RunnableId{0};
  RunResult result_;
};

}  // namespace assay::machine
