// Delta debugging of schedules, and the replayer that bends what does not fit. Decides which
// smaller schedules are tried, not what counts as the same failure of a program.
#include "model/machine/minimise.hpp"

#include <algorithm>
#include <string_view>

namespace assay::machine {

namespace {

class Bender final : public Scheduler {
 public:
  explicit Bender(const Schedule& schedule) : schedule_(schedule), answers_(&schedule.before) {}

  std::uint32_t choose_runnable(std::span<const RunnableId> runnable,
                                const PendingOperations&) override {
    static const std::vector<ChoiceAnswer> kNoAnswers;
    next_answer_ = 0;
    for (; next_step_ < schedule_.steps.size(); ++next_step_) {
      const ScheduleStep& step = schedule_.steps[next_step_];
      const auto at = std::find(runnable.begin(), runnable.end(), step.who);
      if (at == runnable.end()) continue;
      ++next_step_;
      last_ = step.who;
      run_length_ = step.run_length;
      answers_ = &step.answers;
      return static_cast<std::uint32_t>(at - runnable.begin());
    }
    answers_ = &kNoAnswers;
    run_length_ = 1;
    auto at = std::find(runnable.begin(), runnable.end(), last_);
    if (at == runnable.end()) at = std::min_element(runnable.begin(), runnable.end());
    last_ = *at;
    return static_cast<std::uint32_t>(at - runnable.begin());
  }
  std::uint32_t run_length() override { return run_length_; }
  std::uint32_t choose(Choice kind, std::uint32_t n) override {
    if (n == 1 || next_answer_ >= answers_->size()) return 0;
    const ChoiceAnswer& answer = (*answers_)[next_answer_];
    if (answer.kind != kind) return 0;
    ++next_answer_;
    return answer.value < n ? answer.value : 0;
  }

 private:
  const Schedule& schedule_;
  const std::vector<ChoiceAnswer>* answers_;
  std::size_t next_answer_ = 0;
  std::size_t next_step_ = 0;
  std::uint32_t run_length_ = 1;
  RunnableId last_ = ~RunnableId{0};
};

std::string_view first_word(const std::string& sentence) {
  return std::string_view(sentence).substr(0, sentence.find_first_of(" :"));
}

class Minimiser {
 public:
  Minimiser(const Schedule& schedule, const Outcome& found, const Execute& execute,
            std::uint32_t max_executions)
      : best_{schedule, found, 0}, execute_(execute), left_(max_executions) {}

  Minimised run() {
    ScheduleSize before;
    do {
      before = size_of(best_.schedule);
      default_answers();
      drop_segments();
      join_segments();
    } while (left_ > 0 && size_of(best_.schedule) < before);
    return best_;
  }

 private:
  // Takes the candidate, as it really ran, if it fails in the same way and is smaller.
  bool try_schedule(const Schedule& candidate) {
    if (left_ == 0) return false;
    --left_;
    ++best_.executions;
    Schedule ran;
    MachineParts parts;
    parts.scheduler = record_schedule(bend_schedule(&candidate), &ran);
    const Outcome outcome = execute_(std::move(parts));
    if (outcome.ok || first_word(outcome.sentence) != first_word(best_.outcome.sentence) ||
        !(size_of(ran) < size_of(best_.schedule)))
      return false;
    best_.schedule = std::move(ran);
    best_.outcome = outcome;
    return true;
  }

  static void for_each_answer(Schedule& schedule, const auto& each) {
    for (ChoiceAnswer& answer : schedule.before) each(answer);
    for (ScheduleStep& step : schedule.steps)
      for (ChoiceAnswer& answer : step.answers) each(answer);
  }

  // All answers at once, then one by one.
  void default_answers() {
    Schedule plain = best_.schedule;
    for_each_answer(plain, [](ChoiceAnswer& answer) { answer.value = 0; });
    if (size_of(best_.schedule).odd_choices > 0) try_schedule(plain);
    for (std::uint64_t i = 0; left_ > 0 && i < size_of(best_.schedule).odd_choices;) {
      Schedule candidate = best_.schedule;
      std::uint64_t odd = 0;
      for_each_answer(candidate, [&](ChoiceAnswer& answer) {
        if (answer.value != 0 && odd++ == i) answer.value = 0;
      });
      if (!try_schedule(candidate)) ++i;
    }
  }

  // Maximal runs of steps of one thread, as [begin, end).
  using Segments = std::vector<std::pair<std::size_t, std::size_t>>;
  Segments segments() const {
    Segments found;
    const std::vector<ScheduleStep>& steps = best_.schedule.steps;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (i == 0 || steps[i].who != steps[i - 1].who) found.emplace_back(i, i);
      found.back().second = i + 1;
    }
    return found;
  }

  // What a dropped segment would have done happens later, when the schedule has run out.
  void drop_segments() {
    for (std::size_t chunk = std::max<std::size_t>(segments().size() / 2, 1); left_ > 0;
         chunk /= 2) {
      for (std::size_t first = 0; left_ > 0;) {
        const Segments all = segments();
        if (first >= all.size()) break;
        const std::size_t end = all[std::min(first + chunk, all.size()) - 1].second;
        Schedule candidate = best_.schedule;
        candidate.steps.erase(
            candidate.steps.begin() + static_cast<std::ptrdiff_t>(all[first].first),
            candidate.steps.begin() + static_cast<std::ptrdiff_t>(end));
        if (!try_schedule(candidate)) first += chunk;
      }
      if (chunk == 1) return;
    }
  }

  // Two segments of one thread become one, early or late.
  void join_segments() {
    for (std::size_t first = 0; left_ > 0;) {
      const Segments all = segments();
      if (first >= all.size()) return;
      const std::vector<ScheduleStep>& steps = best_.schedule.steps;
      std::size_t second = first + 1;
      while (second < all.size() && steps[all[second].first].who != steps[all[first].first].who)
        ++second;
      bool joined = false;
      if (second < all.size()) {
        const auto at = [](std::size_t i) { return static_cast<std::ptrdiff_t>(i); };
        Schedule late = best_.schedule;
        std::rotate(late.steps.begin() + at(all[first].first),
                    late.steps.begin() + at(all[first].second),
                    late.steps.begin() + at(all[second].first));
        Schedule early = best_.schedule;
        std::rotate(early.steps.begin() + at(all[first].second),
                    early.steps.begin() + at(all[second].first),
                    early.steps.begin() + at(all[second].second));
        joined = try_schedule(late) || try_schedule(early);
      }
      if (!joined) ++first;
    }
  }

  Minimised best_;
  const Execute& execute_;
  std::uint32_t left_;
};

}  // namespace

ScheduleSize size_of(const Schedule& schedule) {
  ScheduleSize size;
  size.steps = schedule.steps.size();
  const auto count = [&](const std::vector<ChoiceAnswer>& answers) {
    for (const ChoiceAnswer& answer : answers) size.odd_choices += answer.value != 0;
  };
  count(schedule.before);
  for (std::size_t i = 0; i < schedule.steps.size(); ++i) {
    count(schedule.steps[i].answers);
    size.switches += i > 0 && schedule.steps[i].who != schedule.steps[i - 1].who;
  }
  return size;
}

Minimised minimise(const Schedule& schedule, const Outcome& found, const Execute& execute,
                   std::uint32_t max_executions) {
  return Minimiser(schedule, found, execute, max_executions).run();
}

std::unique_ptr<Scheduler> bend_schedule(const Schedule* schedule) {
  return std::make_unique<Bender>(*schedule);
}

}  // namespace assay::machine
