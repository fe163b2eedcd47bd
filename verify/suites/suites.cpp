// Running the cases of a suite, making a failing one smaller, and judging what was exercised.
#include "verify/suites/suites.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "model/core/case_text.hpp"
#include "verify/gen/routing_gen.hpp"

namespace assay::verify {

namespace {

using Clock = std::chrono::steady_clock;

// What runs: one case under one profile.
struct Job {
  MoeCase moe_case;
  const moe::CombineProfile* profile;
};

struct Runner {
  const Suite& suite;
  const Subject& subject;
  const SuiteOptions& options;
  SuiteResult result;
  Coverage coverage;
  std::string unsupported;  // the first reason

  Expected<Outcome> run(const Job& job) const;
  Expected<Scenario> scenario_of(const Job& job) const;
  Status run_and_count(const Job& job);
  Status report_mismatch(const Job& job, Outcome outcome);
  Job shrink(Job job, Outcome& outcome) const;
  bool go_on() const { return !options.progress || options.progress(result.cases, coverage); }
  bool failed() const { return result.report.verdict == Verdict::kMismatch; }
};

moe::Recipe recipe_of(const Suite& suite, const SuiteOptions& options) {
  return options.recipe.value_or(suite.axes.recipe);
}

// Whether a subject's options demand that every id names an expert (SPEC CUD-5.6).
bool demands_valid_ids(std::string_view options) {
  const auto fields = parse_key_values(options);
  return fields && std::any_of(fields->begin(), fields->end(), [](const KeyValue& field) {
           return field.key == "valid_ids" && field.value == "1";
         });
}

bool is_about_invalid_ids(const Suite& suite) {
  return std::any_of(suite.needs.begin(), suite.needs.end(),
                     [](const Need& need) { return need.count == &Coverage::invalid_picks; });
}

Expected<Scenario> Runner::scenario_of(const Job& job) const {
  Axes axes = suite.axes;
  axes.valid_ids = demands_valid_ids(options.subject_options) && !is_about_invalid_ids(suite);
  ASSAY_TRY(Scenario scenario,
            make_scenario(job.moe_case, axes, recipe_of(suite, options), job.profile));
  scenario.setup.seed = options.seed;
  if (!options.subject_options.empty()) {
    std::string& all = scenario.setup.options;
    all += (all.empty() ? "" : " ") + options.subject_options;
  }
  return scenario;
}

Expected<Outcome> Runner::run(const Job& job) const {
  ASSAY_TRY(const Scenario scenario, scenario_of(job));
  return run_scenario(subject, scenario);
}

Status Runner::run_and_count(const Job& job) {
  ASSAY_TRY(Outcome outcome, run(job));
  if (outcome.state == Outcome::State::kUnsupported) {
    ++result.skipped;
    if (unsupported.empty())
      unsupported = fmt::format("{} (case {})", outcome.unsupported, print(job.moe_case));
    return Done{};
  }
  ++result.cases;
  coverage += outcome.coverage;
  if (outcome.state == Outcome::State::kMismatch) return report_mismatch(job, std::move(outcome));
  return Done{};
}

// Greedy: the first smaller case that still fails in the same check, again and again; `outcome` is
// what it did, for a race may not happen a second time. Bounded in time, because the smallest case
// is a convenience.
Job Runner::shrink(Job job, Outcome& outcome) const {
  const std::string check = outcome.mismatches.front().check;
  constexpr double kShrinkSeconds = 10;
  const auto start = Clock::now();
  for (bool smaller = true; smaller;) {
    smaller = false;
    for (const MoeCase& next : smaller_cases(job.moe_case)) {
      if (std::chrono::duration<double>(Clock::now() - start).count() > kShrinkSeconds) return job;
      auto smaller_outcome = run({next, job.profile});
      // A size that the recipe does not fit is no case; neither is one the subject declines.
      if (!smaller_outcome || smaller_outcome->state != Outcome::State::kMismatch) continue;
      if (smaller_outcome->mismatches.front().check != check) continue;
      job.moe_case = next;
      outcome = *std::move(smaller_outcome);
      smaller = true;
      break;
    }
  }
  return job;
}

Status Runner::report_mismatch(const Job& job, Outcome outcome) {
  const Job smallest = options.shrink ? shrink(job, outcome) : job;
  ASSAY_TRY(const Scenario scenario, scenario_of(smallest));
  Report& report = result.report;
  report.verdict = Verdict::kMismatch;
  report.title = fmt::format("suite {}, case \"{}\"", suite.name, print(smallest.moe_case));
  report.mismatches = std::move(outcome.mismatches);
  report.mismatching_rounds = outcome.mismatching_rounds;
  report.coverage = outcome.coverage;
  report.provenance = group_provenance(subject, scenario.setup);
  for (auto& entry : oracle_provenance()) report.provenance.push_back(std::move(entry));
  report.repro.flags = {{"--suite", std::string(suite.name)},
                        {"--case", print(smallest.moe_case)},
                        {"--recipe", std::string(moe::recipe_name(scenario.recipe))},
                        {"--profile", std::string(scenario.setup.profile->name)},
                        {"--subject", subject.spec()}};
  if (!subject.mutant().empty()) report.repro.flags.emplace_back("--mutant", subject.mutant());
  if (!options.subject_options.empty())
    report.repro.flags.emplace_back("--options", options.subject_options);
  report.repro.flags.emplace_back("--seed", std::to_string(options.seed));
  result.failing = smallest.moe_case;
  return Done{};
}

bool has_low_precision(const moe::CombineProfile& profile) {
  return profile.arithmetic.low_precision != moe::CombineArithmetic::LowPrecision::kNone;
}

// The one profile that was asked for has not what the suite is about.
bool lacks_low_precision(const Suite& suite, const SuiteOptions& options) {
  return suite.axes.low_precision && options.profile != nullptr &&
         !has_low_precision(*options.profile);
}

SuiteResult unsupported_profile(Runner& runner) {
  Report& report = runner.result.report;
  report.verdict = Verdict::kUnsupported;
  report.title = fmt::format("suite {}, 0 cases", runner.suite.name);
  report.reasons = {
      fmt::format("profile {} has no low-precision combine", runner.options.profile->name)};
  return std::move(runner.result);
}

std::vector<const moe::CombineProfile*> profiles_of(const Suite& suite,
                                                    const SuiteOptions& options) {
  if (options.profile != nullptr) return {options.profile};
  if (!suite.all_profiles) return {&moe::default_combine_profile()};
  std::vector<const moe::CombineProfile*> all;
  for (const moe::CombineProfile& profile : moe::combine_profiles()) {
    if (!suite.axes.low_precision || has_low_precision(profile)) all.push_back(&profile);
  }
  return all;
}

Expected<std::vector<MoeCase>> listed_cases(const Suite& suite, const SuiteOptions& options) {
  if (options.only) return std::vector<MoeCase>{*options.only};
  std::vector<MoeCase> cases;
  for (const std::string& line : suite.cases) {
    ASSAY_TRY(MoeCase c, parse_moe_case(line, MoeCase{}));
    cases.push_back(std::move(c));
  }
  return cases;
}

std::string_view count_name(std::int64_t Coverage::*count) {
  for (const CoverageField& field : coverage_fields())
    if (field.count == count) return field.name;
  return "?";
}

// The verdict of a run without mismatch.
void judge(Runner& runner) {
  Report& report = runner.result.report;
  report.title = fmt::format("suite {}, {} cases", runner.suite.name, runner.result.cases);
  if (runner.result.skipped > 0)
    report.title += fmt::format(", {} skipped as unsupported", runner.result.skipped);
  report.coverage = runner.coverage;
  report.provenance = {
      {"subject", fmt::format("{} ({})", runner.subject.spec(), runner.subject.name())}};
  for (auto& entry : oracle_provenance()) report.provenance.push_back(std::move(entry));
  if (runner.result.cases == 0 && runner.result.skipped > 0) {
    report.verdict = Verdict::kUnsupported;
    report.reasons = {runner.unsupported};
    return;
  }
  // One case on its own is asked for rows only: it may be what is left of a shrunk one.
  const std::vector<Need> rows{{&Coverage::rows}};
  for (const Need& need : runner.options.only ? rows : runner.suite.needs) {
    const std::int64_t got = runner.coverage.*need.count;
    if (got >= need.at_least) continue;
    report.reasons.push_back(
        fmt::format("vacuous: {} {} were exercised; the suite needs at "
                    "least {}",
                    got, count_name(need.count), need.at_least));
  }
  report.verdict = report.reasons.empty() || runner.options.allow_vacuous ? Verdict::kConforms
                                                                          : Verdict::kMistrusted;
  if (runner.result.skipped > 0) report.reasons.push_back("skipped: " + runner.unsupported);
}

}  // namespace

Expected<Outcome> run_scenario(const Subject& subject, const Scenario& scenario) {
  ASSAY_TRY(Driver driver, Driver::make(subject, scenario.setup));
  Outcome all;
  std::vector<Round> rounds(3);
  for (std::int32_t next = 0; next < scenario.num_rounds;) {
    // One, two and three rounds per run, so that both kinds of boundary lie between any two rounds
    // of some case.
    const std::int32_t count_max = std::min(scenario.num_rounds - next, 1 + next % 3);
    std::int32_t count = 0;
    for (; count < count_max; ++count) {
      Round& round = rounds[static_cast<std::size_t>(count)];
      fill_round(scenario, next + count, round);
      if (!(round.alive == rounds.front().alive)) break;  // ranks come and go between runs
    }
    ASSAY_TRY(Outcome one, driver.run(std::span(rounds.data(), static_cast<std::size_t>(count))));
    all.coverage += one.coverage;
    all.mismatching_rounds += one.mismatching_rounds;
    all.subject_seconds += one.subject_seconds;
    all.experts_seconds += one.experts_seconds;
    all.check_seconds += one.check_seconds;
    if (one.state != Outcome::State::kConforms) {
      all.state = one.state;
      all.mismatches = std::move(one.mismatches);
      all.unsupported = std::move(one.unsupported);
      return all;
    }
    next += count;
  }
  return all;
}

Expected<SuiteResult> run_suite(std::string_view name, const Subject& subject,
                                const SuiteOptions& options) {
  ASSAY_TRY(const Suite* suite, find_suite(name));
  return run_suite(*suite, subject, options);
}

Expected<SuiteResult> run_suite(const Suite& suite, const Subject& subject,
                                const SuiteOptions& options) {
  Runner runner{suite, subject, options, {}, {}, {}};
  const auto start = Clock::now();
  if (lacks_low_precision(suite, options)) return unsupported_profile(runner);
  const auto profiles = profiles_of(suite, options);
  ASSAY_TRY(const std::vector<MoeCase> cases, listed_cases(suite, options));
  for (const MoeCase& c : cases) {
    for (const moe::CombineProfile* profile : profiles) {
      ASSAY_CHECK(runner.run_and_count({c, profile}));
      if (runner.failed()) return std::move(runner.result);
      if (!runner.go_on()) break;
    }
  }
  for (std::int32_t i = 0; suite.random_cases && !options.only && i < options.random_cases_max;
       ++i) {
    if (std::chrono::duration<double>(Clock::now() - start).count() > options.budget_seconds) break;
    const MoeCase c = random_case({}, options.seed, static_cast<std::uint64_t>(i));
    const auto profile = profiles[static_cast<std::size_t>(i) % profiles.size()];
    ASSAY_CHECK(runner.run_and_count({c, profile}));
    if (runner.failed()) return std::move(runner.result);
    if (!runner.go_on()) break;
  }
  judge(runner);
  return std::move(runner.result);
}

}  // namespace assay::verify
