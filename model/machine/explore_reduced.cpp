// The search of explore_reduced.hpp: the tree, and the questions of the machine. Which steps race
// is explore_races.cpp.
#include "model/machine/explore_reduced.hpp"

#include <algorithm>

namespace assay::machine {

// Hands the machine's questions to the search.
class ReducedSearch::Asker final : public Scheduler {
 public:
  explicit Asker(ReducedSearch& search) : search_(search) {}
  std::uint32_t choose_runnable(std::span<const RunnableId> runnable,
                                const PendingOperations& pending) override {
    return search_.choose_runnable(runnable, pending);
  }
  std::uint32_t choose(Choice kind, std::uint32_t n) override { return search_.choose(kind, n); }
  std::uint32_t run_length() override { return 1; }
  std::string why_abandoned() const override { return "what follows is explored elsewhere"; }

 protected:
  std::uint32_t choose_among_writes(const WriteChoice& which) override {
    return search_.choose_write(which);
  }

 private:
  ReducedSearch& search_;
};

ReducedSearch::ReducedSearch(bool gather, SearchFault fault) : gather_(gather), fault_(fault) {
  nodes_.emplace_back();
}

std::unique_ptr<Scheduler> ReducedSearch::scheduler() {
  depth_ = 0;
  next_answer_ = 0;
  finished_ = true;
  redundant_ = ended_early_ = pruned_ = false;
  pending_ = nullptr;
  operation_ = MemoryEvent{};
  taken_.clear();
  thread_of_slot_.clear();
  // Of everybody who has a number: what is repeated from the last execution asks nobody for one.
  threads_.assign(ids_.size(), ThreadState{});
  streams_.clear();
  ctas_.clear();
  base_.clear();
  began_.clear();
  ended_.clear();
  ended_ctas_.clear();
  ended_grids_.clear();
  met_.clear();
  timed_out_ = kNobody;
  return std::make_unique<Asker>(*this);
}

// Depth first: the deepest node that has another answer or another thread to try.
bool ReducedSearch::advance() {
  for (;;) {
    Node& last = nodes_.back();
    fresh_from_ = nodes_.size() - 1;
    last.explored.add(last.footprint);
    for (; !last.answers.empty(); last.answers.pop_back()) {
      Answer& answer = last.answers.back();
      for (std::uint32_t next = answer.chosen + 1; next < answer.n; ++next) {
        if (!answer.allows(next)) continue;
        answer.chosen = next;
        return true;
      }
    }
    if (fresh_from_ == 0) return false;
    // A thread goes to sleep when all its answers have been explored.
    last.sleep.push_back({last.thread, std::move(last.explored)});
    last.explored = Footprint{};
    const auto sleeps = [&](ThreadId thread) {
      return std::any_of(last.sleep.begin(), last.sleep.end(),
                         [&](const Sleeper& sleeper) { return sleeper.thread == thread; });
    };
    for (const Runnable& other : last.runnable) {
      if (sleeps(other.thread) || std::find(last.backtrack.begin(), last.backtrack.end(),
                                            other.thread) == last.backtrack.end())
        continue;
      last.thread = other.thread;
      last.who = other.who;
      return true;
    }
    nodes_.pop_back();
  }
}

Schedule ReducedSearch::schedule() const {
  Schedule schedule;
  for (std::size_t i = 0; i < nodes_.size() && i <= depth_; ++i) {
    std::vector<ChoiceAnswer>* answers = &schedule.before;
    if (i > 0) {
      schedule.steps.push_back({nodes_[i].who, 1, {}});
      answers = &schedule.steps.back().answers;
    }
    for (const Answer& answer : nodes_[i].answers) answers->push_back({answer.kind, answer.chosen});
  }
  return schedule;
}

// ---- the machine's questions -------------------------------------------------------------------

std::uint32_t ReducedSearch::choose_runnable(std::span<const RunnableId> runnable,
                                             const PendingOperations& pending) {
  pending_ = &pending;
  finish_step();
  if (pruned_) {
    redundant_ = true;
    return kAbandonRun;
  }
  if (depth_ + 1 == nodes_.size() && !grow(runnable)) {
    redundant_ = true;
    return kAbandonRun;
  }
  const RunnableId who = nodes_[depth_ + 1].who;
  const auto at = std::find(runnable.begin(), runnable.end(), who);
  CONTRACT(at != runnable.end(), "the program is not deterministic: a thread that ran cannot", who,
           depth_ + 1);
  begin_step(depth_ + 1);
  return static_cast<std::uint32_t>(at - runnable.begin());
}

// A new node. False when everybody who can run sleeps: then all that follows is equivalent to
// something that has been explored.
bool ReducedSearch::grow(std::span<const RunnableId> runnable) {
  Node next;
  for (const Sleeper& sleeper : node().sleep)
    if (!sleeper.footprint.depends_on(node().footprint) || fault_ == SearchFault::kKeepAsleep)
      next.sleep.push_back(sleeper);
  const Runnable* best = nullptr;
  int best_rank = 0;
  next.runnable.reserve(runnable.size());
  for (const RunnableId who : runnable) {
    const MemoryEvent* event = pending_->pending(who);
    next.runnable.push_back({thread_of(who), who});
    const Runnable& candidate = next.runnable.back();
    if (std::any_of(next.sleep.begin(), next.sleep.end(),
                    [&](const Sleeper& s) { return s.thread == candidate.thread; }))
      continue;
    // First what nobody can notice, then the thread that is running.
    const bool local = event == nullptr && (who & kHostNodeBit) == 0;
    const int rank = local ? 3 : candidate.thread == node().thread ? 2 : 1;
    if (rank <= best_rank) continue;
    best = &candidate;
    best_rank = rank;
  }
  if (best == nullptr) return false;
  next.thread = best->thread;
  next.who = best->who;
  next.backtrack.push_back(best->thread);
  nodes_.push_back(std::move(next));
  return true;
}

std::uint32_t ReducedSearch::choose(Choice kind, std::uint32_t n) {
  return n == 1 ? 0 : answer(kind, n, ~std::uint64_t{0});
}

std::uint32_t ReducedSearch::choose_write(const WriteChoice& which) {
  const auto n = static_cast<std::uint32_t>(which.written_at.size());
  const std::uint64_t allowed = is_fresh() ? allowed_writes(which) : ~std::uint64_t{0};
  if (n == 1 && (allowed & 1) == 0) pruned_ = true;
  if (operation_.operation == Operation::kAwait)
    oldest_end_ = *std::min_element(which.written_at.begin(), which.written_at.end());
  const std::uint32_t chosen = n == 1 ? 0 : answer(which.kind, n, allowed);
  taken_.push_back(which.written_at[chosen]);
  return chosen;
}

std::uint32_t ReducedSearch::answer(Choice kind, std::uint32_t n, std::uint64_t allowed) {
  std::vector<Answer>& answers = node().answers;
  if (next_answer_ == answers.size()) {
    Answer fresh{kind, n, 0, allowed};
    while (fresh.chosen < n && !fresh.allows(fresh.chosen)) ++fresh.chosen;
    if (fresh.chosen == n) {
      pruned_ = true;
      fresh.chosen = n - 1;
    }
    answers.push_back(fresh);
  }
  const Answer& known = answers[next_answer_++];
  CONTRACT(known.kind == kind && known.n == n, "the program is not deterministic: another question",
           depth_, known.n, n);
  return known.chosen;
}

// An operation that takes an old write although the newest was performed since its thread could
// have come to it, might as well have run before that write: that order is explored, so this one is
// not (SPEC MAC-7.7). The answer depends only on what is ordered before the step.
std::uint64_t ReducedSearch::allowed_writes(const WriteChoice& which) const {
  const std::uint64_t first = pending_->canonical(which.address).raw;
  const std::uint64_t end = first + which.bytes;
  const std::uint64_t operation_first = operation_.address.raw;
  const std::uint64_t operation_end = operation_first + operation_.bytes;
  constexpr std::uint64_t kAll = ~std::uint64_t{0};
  if (which.written_at.size() > 64 || first < operation_first || end > operation_end) return kAll;
  std::size_t newest = depth_;
  while (newest > 0 && (newest == depth_ || !nodes_[newest].footprint.writes(first, which.bytes)))
    --newest;
  const ThreadState& state = threads_[nodes_[depth_].thread];
  if (newest == 0 || happens_before(newest, state.clock)) return kAll;
  // Other elements of the same access may still take, or have taken, that write or a later one.
  const auto rest = static_cast<std::uint32_t>(operation_end - end);
  if (rest > 0 && nodes_[newest].footprint.writes(end, rest)) return kAll;
  if (std::find(taken_.begin(), taken_.end(), newest) != taken_.end()) return kAll;
  for (std::size_t later = newest + 1; later < depth_; ++later)
    if (nodes_[later].footprint.writes(operation_first, operation_.bytes) &&
        happens_before(newest, nodes_[later].clock))
      return kAll;
  std::uint64_t same = 0;
  for (std::size_t i = 0; i < which.written_at.size(); ++i)
    if (which.written_at[i] == newest) same |= std::uint64_t{1} << i;
  if (which.kind == Choice::kReadFrom) return same;
  // A store that lands behind the write in coherence order: newer places come first.
  return same == 0 ? kAll : same | (same - 1);
}

}  // namespace assay::machine
