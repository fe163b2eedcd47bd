// The tree of all choices, walked depth first: one path per execution. Decides the order in which
// schedules come, and which switches count as preemptions.
#include "model/machine/explore_tree.hpp"

#include <algorithm>

namespace assay::machine {

class TreeSearch::Asker final : public Scheduler {
 public:
  explicit Asker(TreeSearch& search) : search_(search) {}
  std::uint32_t choose_runnable(std::span<const RunnableId> runnable,
                                const PendingOperations&) override {
    return search_.choose_runnable(runnable);
  }
  std::uint32_t choose(Choice kind, std::uint32_t n) override { return search_.choose(kind, n); }
  std::uint32_t run_length() override { return 1; }

 private:
  TreeSearch& search_;
};

TreeSearch::TreeSearch(std::uint32_t max_preemptions)
    : max_preemptions_(max_preemptions), bound_(max_preemptions == kNoBound ? kNoBound : 0) {}

std::unique_ptr<Scheduler> TreeSearch::scheduler() {
  depth_ = 0;
  preemptions_ = 0;
  num_steps_ = 0;
  last_ = ~RunnableId{0};
  return std::make_unique<Asker>(*this);
}

bool TreeSearch::advance() {
  path_.resize(depth_);  // an execution that ended early has not come to the rest
  while (!path_.empty() && path_.back().chosen + 1 >= path_.back().n) path_.pop_back();
  if (!path_.empty()) {
    ++path_.back().chosen;
    return true;
  }
  if (bound_ == max_preemptions_) return false;
  ++bound_;
  return true;
}

Schedule TreeSearch::schedule() const {
  Schedule schedule;
  for (std::size_t i = 0; i < depth_; ++i) {
    const Entry& entry = path_[i];
    if (!entry.threads.empty()) {
      schedule.steps.push_back({entry.threads[entry.chosen], 1, {}});
    } else if (schedule.steps.empty()) {
      schedule.before.push_back({entry.kind, entry.chosen});
    } else {
      schedule.steps.back().answers.push_back({entry.kind, entry.chosen});
    }
  }
  return schedule;
}

std::uint32_t TreeSearch::choose_runnable(std::span<const RunnableId> runnable) {
  ++num_steps_;
  const bool can_go_on = std::find(runnable.begin(), runnable.end(), last_) != runnable.end();
  if (depth_ == path_.size()) {
    Entry entry;
    if (can_go_on) entry.threads.push_back(last_);
    if (!can_go_on || preemptions_ < bound_)
      for (const RunnableId who : runnable)
        if (who != last_) entry.threads.push_back(who);
    entry.n = static_cast<std::uint32_t>(entry.threads.size());
    path_.push_back(std::move(entry));
  }
  const Entry& entry = path_[depth_++];
  CONTRACT(!entry.threads.empty(), "the program is not deterministic: a step instead of a choice");
  const RunnableId who = entry.threads[entry.chosen];
  if (can_go_on && who != last_) ++preemptions_;
  last_ = who;
  const auto at = std::find(runnable.begin(), runnable.end(), who);
  CONTRACT(at != runnable.end(), "the program is not deterministic: a thread that ran cannot", who);
  return static_cast<std::uint32_t>(at - runnable.begin());
}

std::uint32_t TreeSearch::choose(Choice kind, std::uint32_t n) {
  if (n == 1) return 0;
  if (depth_ == path_.size()) path_.push_back({{}, kind, n, 0});
  const Entry& entry = path_[depth_++];
  CONTRACT(entry.threads.empty() && entry.kind == kind && entry.n == n,
           "the program is not deterministic: another question", entry.n, n);
  return entry.chosen;
}

}  // namespace assay::machine
