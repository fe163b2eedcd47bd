// The exhaustive search with partial-order reduction (SPEC MAC-7.5 to MAC-7.8): source sets and
// sleep sets (Abdulla, Aronis, Jonsson, Sagonas, "Optimal Dynamic Partial Order Reduction", POPL
// 2014, the algorithm Source-DPOR), with the choices of a weak memory branched inside a step.
// Decides which steps depend on each other and which executions are worth running.
//
// One step is one ordered operation of a thread, with the weak accesses after it, or a host node.
// The search keeps one Node per step of the current execution. Every execution runs the whole
// program again, repeats the steps up to the deepest Node that has an alternative left, and goes on
// from there.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "model/machine/clock.hpp"
#include "model/machine/explore.hpp"
#include "model/machine/explore_strategy.hpp"

namespace assay::machine {

// What a step touches, as far as order matters to others.
class Footprint {
 public:
  void add(std::uint64_t first, std::uint32_t bytes, bool write);
  void add_sc_fence() { sc_fence_ = true; }
  void add_everything() { everything_ = true; }
  void add_admission(RankId rank);
  void add(const Footprint& other);
  void clear();

  bool empty() const { return accesses_.empty() && !sc_fence_ && !everything_ && ranks_.empty(); }
  // Whether the order of the two steps can be noticed (SPEC MAC-7.6).
  bool depends_on(const Footprint& other) const;
  bool writes(std::uint64_t first, std::uint32_t bytes) const;

 private:
  struct Piece {
    std::uint64_t first = 0;
    std::uint32_t bytes = 0;
    bool write = false;
    bool meets(const Piece& other) const {
      return (write || other.write) && first < other.first + other.bytes &&
             other.first < first + bytes;
    }
  };
  std::vector<Piece> accesses_;
  std::vector<RankId> ranks_;  // whose waiting CTAs the step lets in
  bool sc_fence_ = false;
  bool everything_ = false;
};

class ReducedSearch final : public Strategy, private Observer {
 public:
  // `gather`: the search goes on behind executions that end early.
  explicit ReducedSearch(bool gather, SearchFault fault);

  std::unique_ptr<Scheduler> scheduler() override;
  Observer* observer() override { return this; }
  void conclude() override;
  bool is_redundant() const override { return redundant_; }
  Schedule schedule() const override;
  std::uint64_t num_steps() const override { return nodes_.size() - 1; }
  bool advance() override;

 private:
  class Asker;
  using ThreadId = ClockId;  // the same thread in every execution, unlike its slot
  using StreamKey = std::array<std::uint64_t, 2>;  // rank, stream
  using CtaKey = std::array<std::uint64_t, 4>;     // rank, stream, launch, cta
  using ThreadKey = std::array<std::uint64_t, 5>;
  static constexpr ThreadId kNobody = ~ThreadId{0};

  struct Runnable {
    ThreadId thread;
    RunnableId who;
  };
  struct Sleeper {
    ThreadId thread;
    Footprint footprint;
  };
  // A choice within a step. Alternatives that are not allowed are explored elsewhere.
  struct Answer {
    Choice kind;
    std::uint32_t n;
    std::uint32_t chosen;
    std::uint64_t allowed;  // a bit per alternative; all when n > 64
    bool allows(std::uint32_t alternative) const {
      return n > 64 || (allowed >> alternative & 1) != 0;
    }
  };
  struct Node {
    ThreadId thread = kNobody;  // nodes_[0] stands for what comes before the first step
    RunnableId who = 0;
    std::vector<Runnable> runnable;
    std::vector<Sleeper> sleep;  // inherited, and those that have been explored here
    std::vector<ThreadId> backtrack;
    std::vector<Answer> answers;
    Footprint explored;  // of all answers so far of `thread`
    // Of the step as it was performed last:
    Footprint footprint;
    VectorClock clock;
    Tick tick = 0;  // of `thread`
    bool is_await = false;
  };
  struct ThreadState {
    VectorClock clock;  // of its last step, and of what had to happen before its next
    Tick tick = 0;      // steps performed
    std::size_t last_node = 0;
    ThreadPlace place{};
    bool waits = false;  // in an await that nothing satisfied when it began
    std::uint64_t wait_address = 0;
    std::uint32_t wait_bytes = 0;
  };
  // What has ended, or lets its successor go, in one stream; by launch.
  struct StreamState {
    VectorClock ended;  // of the grids that are over
    std::map<std::uint32_t, VectorClock> released;
    std::map<std::uint32_t, VectorClock> finished;  // CTAs of grids that may not be over
    std::map<std::uint32_t, bool> programmatic;
  };
  struct CtaState {
    VectorClock ended;  // threads so far
    bool released = false;
  };

  // the scheduler's side
  std::uint32_t choose_runnable(std::span<const RunnableId> runnable,
                                const PendingOperations& pending);
  std::uint32_t choose(Choice kind, std::uint32_t n);
  std::uint32_t choose_write(const WriteChoice& which);
  std::uint32_t answer(Choice kind, std::uint32_t n, std::uint64_t allowed);
  std::uint64_t allowed_writes(const WriteChoice& which) const;
  bool grow(std::span<const RunnableId> runnable);

  // the observer's side
  bool closes_short_way() const override { return false; }
  void run_began(const Memory& memory) override;
  void run_ended(const RunResult& result) override;
  void performed(const Performed& what) override;
  void wait_began(const MemoryEvent& event, const Await&, std::uint64_t) override;
  void barrier_passed(std::span<const ThreadSlot> threads, Site) override;
  void timeout_fired(ThreadSlot slot) override;
  void grid_began(const ThreadPlace& place, const std::string&, bool crowded,
                  bool programmatic) override;
  void grid_ended(const ThreadPlace& place) override;
  void cta_ended(const ThreadPlace& place, bool crowded) override;
  void thread_began(ThreadSlot slot, const ThreadPlace& place) override;
  void thread_ended(ThreadSlot slot) override;

  // what a step did
  void begin_step(std::size_t index);
  void finish_step();
  void settle_structure();
  // A step behind node `index - 1`, performed or not: who, what, and what must be before it.
  struct Step {
    std::size_t index;
    ThreadId thread;
    bool is_await;
    const Footprint& footprint;
    const VectorClock& before;
  };
  VectorClock find_races(const Step& step);
  bool is_reversible(std::size_t earlier, const Step& step) const;
  void plan_reversal(std::size_t earlier, const Step& step);
  bool happens_before(std::size_t earlier, const VectorClock& clock) const {
    return clock.of(nodes_[earlier].thread) >= nodes_[earlier].tick;
  }
  void check_races_of_waiters();
  ThreadId id_of(const ThreadKey& key);
  ThreadId thread_of(RunnableId who);
  Node& node() { return nodes_[depth_]; }
  bool is_fresh() const { return depth_ >= fresh_from_; }

  const bool gather_;
  const SearchFault fault_;
  std::vector<Node> nodes_;
  std::size_t fresh_from_ = 0;  // nodes before it repeat the last execution
  std::map<ThreadKey, ThreadId> ids_;

  // of the current execution
  std::size_t depth_ = 0;  // the node whose step is being performed
  std::size_t next_answer_ = 0;
  bool finished_ = true;  // its clock is known
  bool redundant_ = false;
  bool ended_early_ = false;  // by a fault or the like, in the current step
  bool pruned_ = false;       // no alternative of the current step is allowed
  const PendingOperations* pending_ = nullptr;
  MemoryEvent operation_;  // what the current step was about to do, at its canonical address
  std::vector<std::uint64_t> taken_;  // the steps whose writes the current step has taken
  // Of a wait in a memory with histories: the step of the oldest write that could have ended it.
  std::optional<std::uint64_t> oldest_end_;
  std::vector<ThreadId> thread_of_slot_;
  std::vector<ThreadState> threads_;
  std::map<StreamKey, StreamState> streams_;
  std::map<CtaKey, CtaState> ctas_;
  VectorClock base_;  // everything before the current run()
  // What has happened since the last step with a known clock.
  std::vector<std::pair<ThreadId, ThreadPlace>> began_;
  std::vector<std::pair<ThreadId, ThreadPlace>> ended_;
  std::vector<ThreadPlace> ended_ctas_;
  std::vector<ThreadPlace> ended_grids_;
  std::vector<ThreadId> met_;  // at a barrier that the current step has completed
  ThreadId timed_out_ = kNobody;
};

}  // namespace assay::machine
