// The axes under test as data: which cases, with which oddities, must have exercised what. A suite
// that routed nothing, or saw no duplicate where duplicates are its subject, has proven nothing and
// says MISTRUSTED (SPEC VER-4.2). Together the suites must catch every mutant (SPEC VER-4.4).
// Adding a suite touches suite_table.cpp only.
//
//   auto result = run_suite("invalid", subject, {.budget_seconds = 5, .seed = 1});
//   std::cout << to_text(result->report);
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/core/case_text.hpp"
#include "model/core/expected.hpp"
#include "verify/compare/report.hpp"
#include "verify/gen/cases.hpp"
#include "verify/gen/gen.hpp"
#include "verify/subject/driver.hpp"
#include "verify/subject/subject.hpp"

namespace assay::verify {

// What a suite must have exercised, as a minimum of one count of Coverage (SPEC VER-4.2).
struct Need {
  std::int64_t Coverage::*count;
  std::int64_t at_least = 1;
};

struct Suite {
  std::string_view name;    // "dispatch", "invalid", ... as --suite takes it
  std::string_view title;   // a sentence
  std::string_view clause;  // of what is exercised
  Axes axes;
  std::vector<std::string> cases;  // case lines, run first and always
  bool random_cases = true;        // more, drawn from the seed, while the budget lasts
  bool all_profiles = false;       // every case under every profile, not only the default
  std::vector<Need> needs;
};

std::span<const Suite> suites();
Expected<const Suite*> find_suite(std::string_view name);  // the error lists the names

struct SuiteOptions {
  double budget_seconds = 10;  // for random cases; the listed ones always run
  std::uint64_t seed = 1;      // of random cases, and of the subject's schedules
  std::int32_t random_cases_max = 1000;
  std::optional<MoeCase> only;                   // this case and nothing else: a REPRO line
  const moe::CombineProfile* profile = nullptr;  // nullptr: the suite's
  std::optional<moe::Recipe> recipe;             // nothing: bf16
  std::string subject_options;                   // added to the suite's
  bool shrink = true;                            // a failing case is made smaller first
  bool allow_vacuous = false;
  // Called after every case with what has been done; false stops the run.
  std::function<bool(std::int64_t cases, const Coverage&)> progress;
};

struct SuiteResult {
  Report report;
  std::int64_t cases = 0;          // that the subject served
  std::int64_t skipped = 0;        // that it does not support
  std::optional<MoeCase> failing;  // the smallest case found
};

// Errors: no such suite, a case that is no legal group. A wrong subject is a verdict.
Expected<SuiteResult> run_suite(std::string_view name, const Subject& subject,
                                const SuiteOptions& options = {});
Expected<SuiteResult> run_suite(const Suite& suite, const Subject& subject,
                                const SuiteOptions& options = {});

// All rounds of one scenario on a new group, in runs of one to three rounds. Stops at the first run
// with a mismatch. What a suite does with each case.
Expected<Outcome> run_scenario(const Subject& subject, const Scenario& scenario);

}  // namespace assay::verify
