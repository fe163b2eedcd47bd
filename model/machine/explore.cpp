// The loop over executions, and what is reported of them.
#include "model/machine/explore.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "model/machine/explore_reduced.hpp"
#include "model/machine/explore_tree.hpp"
#include "model/machine/fiber.hpp"
#include "model/machine/minimise.hpp"
#include "model/machine/schedule.hpp"
#include "model/machine/schedulers.hpp"

namespace assay::machine {

namespace {

// Random and PCT: one seed per execution, derived from the search's, without end (SPEC MAC-7.2).
class SeededSearch final : public Strategy {
 public:
  explicit SeededSearch(const ExploreConfig& config) : config_(config), state_(config.seed) {}

  std::unique_ptr<Scheduler> scheduler() override {
    const std::uint64_t seed = splitmix64(state_);
    std::unique_ptr<Scheduler> inner;
    if (config_.search == Search::kPct) {
      inner = std::make_unique<PctScheduler>(seed, config_.change_points,
                                             longest_ == 0 ? kFirstGuess : longest_);
    } else {
      inner = std::make_unique<RandomScheduler>(seed, config_.longest_run);
    }
    return record_schedule(std::move(inner), &schedule_);
  }
  void conclude() override { longest_ = std::max<std::uint64_t>(longest_, num_steps()); }
  Schedule schedule() const override { return schedule_; }
  std::uint64_t num_steps() const override { return schedule_.steps.size(); }
  bool advance() override { return true; }

 private:
  const ExploreConfig& config_;
  std::uint64_t state_;
  static constexpr std::uint64_t kFirstGuess = 64;
  std::uint64_t longest_ = 0;  // steps of a run so far: how long PCT expects the next to be
  Schedule schedule_;
};

std::unique_ptr<Strategy> make_strategy(const ExploreConfig& config) {
  switch (config.search) {
    case Search::kRandom:
    case Search::kPct:
      return std::make_unique<SeededSearch>(config);
    case Search::kBounded:
      return std::make_unique<TreeSearch>(config.max_preemptions);
    case Search::kExhaustive:
      break;
  }
  if (!config.reduce) return std::make_unique<TreeSearch>(TreeSearch::kNoBound);
  return std::make_unique<ReducedSearch>(config.collect_outcomes, config.search_fault);
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

Counterexample make_counterexample(const ExploreConfig& config, const Execute& execute,
                                   const Schedule& found, const Outcome& outcome,
                                   std::uint64_t after) {
  Counterexample example;
  example.found_schedule = print_schedule(found);
  example.found_after = after;
  const Minimised small = minimise(found, outcome, execute, config.minimise_executions);
  example.outcome = small.outcome;
  example.schedule = print_schedule(small.schedule);
  const ScheduleSize size = size_of(small.schedule);
  example.steps = size.steps;
  example.switches = size.switches;
  example.odd_choices = size.odd_choices;
  // Only what replays is shown.
  const Expected<Outcome> again = replay(example.schedule, execute);
  CONTRACT(again && !again->ok && again->sentence == small.outcome.sentence,
           "a counterexample does not replay; the program is not deterministic", example.schedule);
  return example;
}

}  // namespace

Exploration explore(const ExploreConfig& config, const Execute& execute) {
  const auto begin = std::chrono::steady_clock::now();
  const auto stacks = std::make_shared<StackPool>(MachineConfig{}.stack_bytes);
  const Execute on_stacks = [&](MachineParts parts) {
    parts.stacks = stacks;
    return execute(std::move(parts));
  };
  const std::unique_ptr<Strategy> strategy = make_strategy(config);
  Exploration result;
  for (;;) {
    if (result.executions + result.blocked >= config.max_executions ||
        seconds_since(begin) >= config.max_seconds)
      break;
    MachineParts parts;
    parts.scheduler = strategy->scheduler();
    parts.observer = strategy->observer();
    Outcome outcome = on_stacks(std::move(parts));
    strategy->conclude();
    result.max_depth = std::max<std::uint64_t>(result.max_depth, strategy->num_steps());
    if (strategy->is_redundant()) {
      ++result.blocked;
    } else {
      ++result.executions;
      if (config.collect_outcomes) {
        SeenOutcome& seen = result.outcomes[outcome.sentence];
        if (seen.executions++ == 0) seen.schedule = print_schedule(strategy->schedule());
        seen.ok = seen.ok && outcome.ok;
      } else if (!outcome.ok) {
        result.counterexample = make_counterexample(config, on_stacks, strategy->schedule(),
                                                    outcome, result.executions);
        break;
      }
    }
    if (!strategy->advance()) {
      result.exhausted = true;
      break;
    }
  }
  result.seconds = seconds_since(begin);
  return result;
}

Expected<Outcome> replay(const std::string& schedule_text, const Execute& execute,
                         Observer* observer) {
  ASSAY_TRY(const Schedule schedule, parse_schedule(schedule_text));
  ReplayReport report;
  MachineParts parts;
  parts.scheduler = replay_schedule(&schedule, &report);
  parts.observer = observer;
  Outcome outcome = execute(std::move(parts));
  ASSAY_CHECK(replay_fitted(schedule, report));
  return outcome;
}

std::string summary(const Exploration& exploration) {
  const char* how = exploration.counterexample ? "counterexample"
                    : exploration.exhausted    ? "exhausted"
                                               : "budget ended";
  return fmt::format("{}: {} executions ({} blocked), at most {} steps, {:.1f} s", how,
                     exploration.executions, exploration.blocked, exploration.max_depth,
                     exploration.seconds);
}

}  // namespace assay::machine
