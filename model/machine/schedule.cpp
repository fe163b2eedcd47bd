// The schedule string: printing, parsing, recording, replaying.
#include "model/machine/schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace assay::machine {

namespace {

struct Letter {
  Choice kind;
  char letter;
  const char* meaning;
};
constexpr Letter kLetters[] = {{Choice::kAdmitCta, 'c', "which CTA starts"},
                               {Choice::kWordsFirst, 'v', "which words of a vector move first"},
                               {Choice::kTimeout, 'o', "which wait times out"},
                               {Choice::kReadFrom, 'r', "which write is read"},
                               {Choice::kPlaceWrite, 'w', "where a store lands"}};

const Letter& letter_of(Choice kind) {
  const auto at = std::find_if(std::begin(kLetters), std::end(kLetters),
                               [&](const Letter& entry) { return entry.kind == kind; });
  CONTRACT(at != std::end(kLetters), "a choice without a letter", static_cast<int>(kind));
  return *at;
}

// Longer than any run that the default budget lets through in an hour; a typing error in a count
// must not fill the memory.
constexpr std::uint64_t kMaxSteps = 100'000'000;

const std::string kMisfit = "the schedule does not fit the program at step ";

std::string too_many_answers(std::size_t asked, std::size_t answered) {
  return fmt::format("the program asks {} questions, the schedule answers {}", asked, answered);
}

// Answers of 0 at the end of a step say nothing.
void trim(std::vector<ChoiceAnswer>& answers) {
  while (!answers.empty() && answers.back().value == 0) answers.pop_back();
}

std::string name_of(RunnableId who) {
  return (who & kHostNodeBit) != 0 ? fmt::format("h{}", who & ~kHostNodeBit)
                                   : fmt::format("t{}", who);
}

}  // namespace

// ---- text --------------------------------------------------------------------------------------

std::string print_schedule(const Schedule& schedule) {
  std::string text;
  const auto put = [&](const std::string& token) {
    if (!text.empty()) text += '.';
    text += token;
  };
  const auto put_answers = [&](std::vector<ChoiceAnswer> answers) {
    trim(answers);
    for (const ChoiceAnswer& answer : answers)
      put(fmt::format("{}{}", letter_of(answer.kind).letter, answer.value));
  };
  put_answers(schedule.before);
  for (std::size_t i = 0; i < schedule.steps.size();) {
    const ScheduleStep& step = schedule.steps[i];
    std::vector<ChoiceAnswer> answers = step.answers;
    trim(answers);
    std::size_t same = 1;
    while (answers.empty() && i + same < schedule.steps.size()) {
      const ScheduleStep& next = schedule.steps[i + same];
      const bool plain = std::all_of(next.answers.begin(), next.answers.end(),
                                     [](const ChoiceAnswer& a) { return a.value == 0; });
      if (next.who != step.who || next.run_length != step.run_length || !plain) break;
      ++same;
    }
    put((same > 1 ? fmt::format("{}", same) : "") + name_of(step.who) +
        (step.run_length != 1 ? fmt::format("x{}", step.run_length) : ""));
    put_answers(answers);
    i += same;
  }
  return text.empty() ? "none" : text;
}

namespace {

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Expected<Schedule> parse() {
    Schedule schedule;
    if (text_ == "none") return schedule;
    for (std::size_t begin = 0, number = 1;; ++number) {
      const std::size_t dot = std::min(text_.find('.', begin), text_.size());
      token_ = text_.substr(begin, dot - begin);
      at_ = 0;
      if (Status status = parse_token(schedule); !status)
        return bad_input(fmt::format("schedule, token {} at character {}: '{}' {}", number,
                                     begin + 1, token_, status.error().sentence));
      if (dot == text_.size()) return schedule;
      begin = dot + 1;
    }
  }

 private:
  Status parse_token(Schedule& schedule) {
    std::uint64_t count = 1;
    if (at_ < token_.size() && is_digit(token_[at_])) {
      ASSAY_TRY(count, number(kMaxSteps));
      if (count == 0) return bad_input("repeats a step 0 times; leave it out");
    }
    const bool counted = at_ > 0;
    if (at_ == token_.size()) return bad_input("names no thread or choice");
    const char letter = token_[at_++];
    if (letter == 't' || letter == 'h') {
      ScheduleStep step;
      ASSAY_TRY(const std::uint64_t who, number(kHostNodeBit - 1));
      step.who = static_cast<RunnableId>(who) | (letter == 'h' ? kHostNodeBit : 0);
      if (at_ < token_.size() && token_[at_] == 'x') {
        ++at_;
        ASSAY_TRY(const std::uint64_t length, number(0xFFFFFFFFu));
        if (length == 0) return bad_input("has run length 0; allowed are 1 and more");
        step.run_length = static_cast<std::uint32_t>(length);
      }
      if (schedule.steps.size() + count > kMaxSteps)
        return bad_input(fmt::format("makes more than {} steps", kMaxSteps));
      if (at_ == token_.size())
        schedule.steps.insert(schedule.steps.end(), static_cast<std::size_t>(count), step);
    } else {
      const auto known = std::find_if(std::begin(kLetters), std::end(kLetters),
                                      [&](const Letter& entry) { return entry.letter == letter; });
      if (known == std::end(kLetters))
        return bad_input("begins with none of t (thread), h (host node), r, w, c, v, o (choices)");
      if (counted) return bad_input("repeats a choice; write it as often as it was asked");
      ASSAY_TRY(const std::uint64_t value, number(0xFFFFFFFFu));
      std::vector<ChoiceAnswer>& answers =
          schedule.steps.empty() ? schedule.before : schedule.steps.back().answers;
      answers.push_back({known->kind, static_cast<std::uint32_t>(value)});
    }
    if (at_ != token_.size())
      return bad_input(fmt::format("goes on with '{}'", token_.substr(at_)));
    return Done{};
  }

  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  Expected<std::uint64_t> number(std::uint64_t most) {
    const std::size_t begin = at_;
    std::uint64_t value = 0;
    for (; at_ < token_.size() && is_digit(token_[at_]); ++at_) {
      value = value * 10 + static_cast<std::uint64_t>(token_[at_] - '0');
      if (value > most) return bad_input(fmt::format("has a number above {}", most));
    }
    if (at_ == begin) return bad_input("has no number where one is needed");
    return value;
  }

  std::string_view text_;
  std::string_view token_;
  std::size_t at_ = 0;
};

}  // namespace

Expected<Schedule> parse_schedule(std::string_view text) { return Parser(text).parse(); }

// ---- recording ---------------------------------------------------------------------------------

namespace {

class Recorder final : public Scheduler {
 public:
  Recorder(std::unique_ptr<Scheduler> inner, Schedule* into)
      : inner_(std::move(inner)), into_(*into) {
    into_ = Schedule{};
  }

  std::uint32_t choose_runnable(std::span<const RunnableId> runnable,
                                const PendingOperations& pending) override {
    inner_->begin_step();
    const std::uint32_t chosen = inner_->choose_runnable(runnable, pending);
    if (chosen == kAbandonRun) return chosen;
    trim(answers());
    into_.steps.push_back({runnable[chosen], 1, {}});
    return chosen;
  }
  std::uint32_t run_length() override {
    return into_.steps.back().run_length = inner_->run_length();
  }
  std::uint32_t choose(Choice kind, std::uint32_t n) override {
    return note(kind, n, inner_->choose(kind, n));
  }
  std::string why_abandoned() const override { return inner_->why_abandoned(); }

 protected:
  std::uint32_t choose_among_writes(const WriteChoice& which) override {
    return note(which.kind, static_cast<std::uint32_t>(which.written_at.size()),
                inner_->choose_write(which));
  }

 private:
  std::vector<ChoiceAnswer>& answers() {
    return into_.steps.empty() ? into_.before : into_.steps.back().answers;
  }
  // A question with one answer is none.
  std::uint32_t note(Choice kind, std::uint32_t n, std::uint32_t value) {
    if (n > 1) answers().push_back({kind, value});
    return value;
  }

  std::unique_ptr<Scheduler> inner_;
  Schedule& into_;
};

// ---- replaying ---------------------------------------------------------------------------------

class Replayer final : public Scheduler {
 public:
  Replayer(const Schedule& schedule, ReplayReport* report) : schedule_(schedule), report_(*report) {
    report_ = ReplayReport{};
  }

  std::uint32_t choose_runnable(std::span<const RunnableId> runnable,
                                const PendingOperations&) override {
    check_answers_used();
    if (report_.misfit.empty() && report_.steps == schedule_.steps.size())
      misfit(report_.steps + 1,
             "the schedule has ended, the program has not: what it was recorded on stopped here");
    if (!report_.misfit.empty()) return kAbandonRun;
    const RunnableId who = schedule_.steps[report_.steps].who;
    const auto at = std::find(runnable.begin(), runnable.end(), who);
    if (at == runnable.end()) {
      misfit(report_.steps + 1,
             fmt::format("{} cannot run; {} can", name_of(who), names(runnable)));
      return kAbandonRun;
    }
    ++report_.steps;
    report_.answers_used = 0;
    return static_cast<std::uint32_t>(at - runnable.begin());
  }
  std::uint32_t run_length() override { return schedule_.steps[report_.steps - 1].run_length; }
  std::uint32_t choose(Choice kind, std::uint32_t n) override {
    const std::vector<ChoiceAnswer>& answers = answers_now();
    if (n == 1 || report_.answers_used >= answers.size()) return 0;
    const ChoiceAnswer& answer = answers[report_.answers_used++];
    if (answer.kind != kind) {
      misfit(report_.steps, fmt::format("the program asks {} ({}), the schedule answers {}{}",
                                        letter_of(kind).meaning, letter_of(kind).letter,
                                        letter_of(answer.kind).letter, answer.value));
    } else if (answer.value >= n) {
      misfit(report_.steps,
             fmt::format("{}{} answers {}, and there are {} alternatives", letter_of(kind).letter,
                         answer.value, letter_of(kind).meaning, n));
    } else {
      return answer.value;
    }
    return 0;
  }
  std::string why_abandoned() const override { return report_.misfit; }

 private:
  const std::vector<ChoiceAnswer>& answers_now() const {
    return report_.steps == 0 ? schedule_.before : schedule_.steps[report_.steps - 1].answers;
  }
  void check_answers_used() {
    if (report_.answers_used < answers_now().size())
      misfit(report_.steps, too_many_answers(report_.answers_used, answers_now().size()));
  }
  // The first place is where to look.
  void misfit(std::uint64_t step, const std::string& what) {
    if (report_.misfit.empty()) report_.misfit = kMisfit + std::to_string(step) + ": " + what;
  }
  static std::string names(std::span<const RunnableId> runnable) {
    constexpr std::size_t kMost = 8;
    std::vector<RunnableId> sorted(runnable.begin(), runnable.end());
    std::sort(sorted.begin(), sorted.end());
    std::string text;
    for (std::size_t i = 0; i < sorted.size() && i < kMost; ++i)
      text += (i > 0 ? ", " : "") + name_of(sorted[i]);
    if (sorted.size() > kMost) text += fmt::format(" and {} more", sorted.size() - kMost);
    return text;
  }

  const Schedule& schedule_;
  ReplayReport& report_;
};

}  // namespace

std::unique_ptr<Scheduler> record_schedule(std::unique_ptr<Scheduler> inner, Schedule* into) {
  return std::make_unique<Recorder>(std::move(inner), into);
}

std::unique_ptr<Scheduler> replay_schedule(const Schedule* schedule, ReplayReport* report) {
  return std::make_unique<Replayer>(*schedule, report);
}

Status replay_fitted(const Schedule& schedule, const ReplayReport& report) {
  if (!report.misfit.empty()) return bad_input(report.misfit);
  if (report.steps < schedule.steps.size())
    return bad_input(
        fmt::format("the schedule does not fit the program: it has {} steps, and the "
                    "program ended after {}",
                    schedule.steps.size(), report.steps));
  const std::size_t answers =
      (schedule.steps.empty() ? schedule.before : schedule.steps.back().answers).size();
  if (report.answers_used < answers)
    return bad_input(kMisfit + std::to_string(report.steps) + ": " +
                     too_many_answers(report.answers_used, answers));
  return Done{};
}

}  // namespace assay::machine
