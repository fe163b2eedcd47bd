// The axes under test as data: which cases, with which oddities, must have exercised what. A suite
// that routed nothing, or saw no duplicate where duplicates are its subject, has proven nothing and
// says MISTRUSTED (SPEC VER-4). Adding a suite touches suites.cpp only.
//
//   auto result = run_suite("invalid", subject, {.budget_seconds = 5, .seed = 1});
//   if (result->verdict == Verdict::kMismatch) std::cout << to_text(result->report);
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
#include "verify/gen/gen.hpp"
#include "verify/subject/driver.hpp"
#include "verify/subject/subject.hpp"

namespace assay::verify {

// What a suite must have exercised, as minimum counts of Coverage.
struct Need {
  std::string_view what;  // "duplicate picks"
  std::int64_t Coverage::* count;
  std::int64_t at_least = 1;
};

struct Suite {
  std::string_view name;    // "dispatch", "invalid", ...
  std::string_view title;   // a sentence
  std::string_view clause;  // of what is exercised
  Axes axes;
  std::span<const std::string_view> cases;  // case lines, run first and always
  bool random_cases = true;                 // more, drawn from the seed, while the budget lasts
  std::span<const Need> needs;
};

std::span<const Suite> suites();
Expected<const Suite*> find_suite(std::string_view name);

struct SuiteOptions {
  double budget_seconds = 10;      // for random cases; the listed ones always run
  std::uint64_t seed = 1;          // of random cases and schedules
  std::int32_t random_cases_max = 1000;
  std::optional<MoeCase> only;     // run this case and nothing else (REPRO)
  const moe::CombineProfile* profile = nullptr;  // nullptr: the suite's own choice, or the default
  std::optional<moe::Recipe> recipe;             // nothing: the suite's
  std::string options;             // appended to the subject's options
  bool shrink = true;              // a failing case is made smaller before it is reported
  bool allow_vacuous = false;
  // Called after every case with what has been done; false stops the run.
  std::function<bool(std::int64_t cases, const Coverage&)> progress;
};

struct SuiteResult {
  Verdict verdict = Verdict::kConforms;
  Report report;
  std::int64_t cases = 0;
  std::int64_t skipped = 0;  // cases that the subject does not support
};

// Errors: no such suite, a case that is no legal group. A wrong subject is a verdict.
Expected<SuiteResult> run_suite(std::string_view name, const Subject& subject,
                                const SuiteOptions& options = {});

}  // namespace assay::verify
