// assay verify: the suites of conformance tests on a subject. Prints a line per suite, and the
// whole report of the first one that does not conform. Attention has a table of its own
// (verify_attention.cpp), because its columns are profiles.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "model/core/text.hpp"
#include "tools/cli/arguments.hpp"
#include "tools/cli/document.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/progress.hpp"
#include "tools/cli/tools.hpp"
#include "tools/verify_attention.hpp"
#include "verify/suites/suites.hpp"

namespace assay::tools {
namespace {

struct VerifyArguments {
  const OptionalText& suite;
  const OptionalText& case_text;
  const OptionalText& recipe;
  const OptionalText& profile;
  const OptionalText& subject;
  const OptionalText& options;
  const OptionalText& mutant;
  const OptionalText& budget;
  const OptionalText& seed;
  const bool& allow_vacuous;
  const OptionalText& json;
};

constexpr std::int32_t kDefaultBudget = 5;

// Small enough to be read in a report, with more picks than ranks so that tokens have duplicates.
MoeCase default_case() {
  MoeCase c;
  c.ep = 4;
  c.experts = 32;
  c.top_k = 8;
  c.hidden = 128;
  c.max_tokens = 16;
  c.tokens = {16};
  c.rounds = 3;
  return c;
}

Expected<verify::SuiteOptions> parse_options(const VerifyArguments& from) {
  verify::SuiteOptions options;
  ASSAY_TRY(options.budget_seconds,
            integer_or<std::int32_t>("--budget", from.budget, 0, 86400, kDefaultBudget));
  ASSAY_TRY(options.seed, integer_or<std::uint64_t>("--seed", from.seed, 0, ~std::uint64_t{0}, 1));
  if (from.case_text) {
    ASSAY_TRY(options.only, parse_moe_case(*from.case_text, default_case()));
  }
  if (from.recipe) {
    ASSAY_TRY(options.recipe, moe::parse_recipe(*from.recipe));
  }
  if (from.profile) {
    ASSAY_TRY(options.profile, moe::find_combine_profile(*from.profile));
  }
  options.subject_options = from.options.value_or("");
  options.allow_vacuous = from.allow_vacuous;
  return options;
}

Expected<std::vector<std::string_view>> wanted_suites(const OptionalText& name) {
  std::vector<std::string_view> names;
  for (const verify::Suite& suite : verify::suites()) names.push_back(suite.name);
  if (!name) return names;
  const auto suite = verify::find_suite(*name);
  if (!suite)
    return bad_input(suite.error().sentence + ", attention, attention.PROPERTY, attention.long");
  return std::vector<std::string_view>{(*suite)->name};
}

// Mismatch is worse than mistrust. A suite that the subject does not serve at all is told in its
// line, and decides the verdict only if it serves none.
int badness(verify::Verdict verdict) {
  switch (verdict) {
    case verify::Verdict::kUnsupported:
      return 0;
    case verify::Verdict::kConforms:
      return 1;
    case verify::Verdict::kMistrusted:
      return 2;
    case verify::Verdict::kMismatch:
      return 3;
  }
  return 3;
}

Expected<ExitCode> run_verify(const VerifyArguments& from) {
  ASSAY_TRY(const Output output, Output::open(from.json, {plugin_file(from.subject)}));
  ASSAY_TRY(verify::SuiteOptions options, parse_options(from));
  ASSAY_TRY(const auto names, wanted_suites(from.suite));
  ASSAY_TRY(const verify::Subject subject,
            verify::load_subject(from.subject.value_or("sim"), from.mutant));
  Table table{
      {"suite", "verdict", "cases", "skipped", "rounds", "rows", "mismatching_rounds", "reason"},
      {}};
  std::optional<verify::SuiteResult> worst;
  {
    Progress progress("suites", static_cast<std::int64_t>(names.size()));
    for (const std::string_view name : names) {
      ASSAY_TRY(verify::SuiteResult result, verify::run_suite(name, subject, options));
      table.rows.push_back({std::string(name), std::string(verdict_name(result.report.verdict)),
                            result.cases, result.skipped, result.report.coverage.rounds,
                            result.report.coverage.rows, result.report.mismatching_rounds,
                            result.report.reasons.empty() ? "" : result.report.reasons.front()});
      if (!worst || badness(result.report.verdict) > badness(worst->report.verdict))
        worst = std::move(result);
      progress.advance();
    }
  }
  CONTRACT(worst.has_value(), "there is no suite");
  Document document;
  if (names.size() > 1) {
    document.field("verdict", std::string(verdict_name(worst->report.verdict)));
    document.table("suites", std::move(table));
  }
  const bool conforms = worst->report.verdict == verify::Verdict::kConforms;
  if (names.size() == 1 || !conforms)
    document.rendered("report", verify::to_text(worst->report), verify::to_json(worst->report));
  ASSAY_CHECK(output.write(document));
  return static_cast<ExitCode>(verify::exit_code(worst->report.verdict));
}

std::string suite_names() {
  std::vector<std::string> names;
  for (const verify::Suite& suite : verify::suites()) names.emplace_back(suite.name);
  return joined(names);
}

}  // namespace

Action declare_verify(Arguments& arguments) {
  const VerifyArguments from{
      arguments.option("--suite", "NAME",
                       "attention, attention.PROPERTY or attention.long; else of dispatch and "
                       "combine, only one of " +
                           suite_names()),
      arguments.option(
          "--case", "LINE",
          fmt::format("only this case; of dispatch and combine, missing keys are from \"{}\"; {}; "
                      "{}",
                      print(default_case()), attention_case_help(), long_case_help())),
      arguments.option("--recipe", "NAME",
                       "bf16, fp8_block128, mxfp8 or nvfp4 (default: the suite's)"),
      arguments.option("--profile", "NAME",
                       "arithmetic of combine, or the kernel of attention; see assay profiles"),
      arguments.option("--subject", "WHAT", "sim (default), cuda, plugin:FILE or kernels:FILE"),
      arguments.option("--options", "LINE", "key=value options that the subject takes"),
      arguments.option("--mutant", "NAME", "a wrong kernel instead of the right one"),
      arguments.option("--budget", "SECONDS", "for random cases, per suite (default 5)"),
      arguments.option("--seed", "N", "of random cases and schedules (default 1)"),
      arguments.flag("--allow-vacuous", "exit 0 even if a suite exercised too little"),
      arguments.json()};
  return [from]() -> Expected<ExitCode> {
    if (!is_attention(from.suite)) return run_verify(from);
    return run_verify_attention({from.suite, from.case_text, from.recipe, from.options,
                                 from.profile, from.subject, from.mutant, from.budget, from.seed,
                                 from.allow_vacuous, from.json});
  };
}

}  // namespace assay::tools
