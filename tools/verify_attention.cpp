// assay verify --suite attention: the table of properties and profiles, or a subject held to what
// its profile promises. Decides SPEC VER-23.5.
#include "tools/verify_attention.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "tools/cli/document.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/progress.hpp"
#include "verify/attention/mutants.hpp"
#include "verify/attention/suite.hpp"

namespace assay::tools {
namespace {

constexpr std::string_view kSuite = "attention";
constexpr std::string_view kDot = "attention.";

// What is run: a subject, columns and rows.
struct Plan {
  std::unique_ptr<verify::AttentionSubject> subject;
  std::vector<const attention::Profile*> profiles;
  std::vector<const verify::Property*> properties;
  std::string mutant;
};

Status choose_subject(const VerifyAttentionArguments& from, Plan& plan) {
  const std::string subject = from.subject.value_or("sim");
  if (from.mutant && subject != "cuda") {
    if (subject != "sim")
      return bad_input(
          fmt::format("mutant \"{}\" is a simulated subject; --subject \"{}\" cannot "
                      "be it",
                      *from.mutant, subject));
    ASSAY_TRY(const verify::AttentionMutant* mutant, verify::find_attention_mutant(*from.mutant));
    plan.subject = verify::mutant_subject(*mutant);
    plan.mutant = mutant->name;
    if (from.profile) return Done{};
    ASSAY_TRY(const attention::Profile* profile, attention::find_profile(mutant->profile));
    plan.profiles = {profile};
    return Done{};
  }
  ASSAY_TRY(plan.subject, verify::load_attention_subject(subject, from.mutant));
  plan.mutant = from.mutant.value_or("");
  if (from.profile) return Done{};
  for (const std::string_view name : plan.subject->profiles()) {
    ASSAY_TRY(const attention::Profile* profile, attention::find_profile(name));
    plan.profiles.push_back(profile);
  }
  if (!plan.subject->is_profile() && plan.profiles.empty())
    return bad_input(
        fmt::format("--subject \"{}\" needs --profile: which implementation is it "
                    "held to? assay profiles lists them",
                    subject));
  return Done{};
}

// Names before the subject, which may need a device: a name that nobody knows is told on every
// machine.
Expected<Plan> make_plan(const VerifyAttentionArguments& from) {
  Plan plan;
  if (from.profile) {
    ASSAY_TRY(const attention::Profile* profile, attention::find_profile(*from.profile));
    plan.profiles = {profile};
  }
  if (*from.suite == kSuite) {
    for (const verify::Property& property : verify::properties())
      plan.properties.push_back(&property);
  } else {
    ASSAY_TRY(const verify::Property* property,
              verify::find_property(std::string_view(*from.suite).substr(kDot.size())));
    plan.properties = {property};
  }
  ASSAY_CHECK(choose_subject(from, plan));
  if (plan.profiles.empty()) {
    for (const attention::Profile& profile : attention::profiles())
      plan.profiles.push_back(&profile);
  }
  return plan;
}

Expected<verify::AttentionSuiteOptions> parse_options(const VerifyAttentionArguments& from) {
  ASSAY_TRY(verify::AttentionSuiteOptions options, parse_suite_options(from));
  if (!from.case_text) return options;
  if (*from.suite == kSuite)
    return bad_input(
        "--case needs one property, because each makes its own data of a case: "
        "--suite attention.ones, for example");
  ASSAY_TRY(options.only, verify::parse_attention_case(*from.case_text));
  return options;
}

verify::AttentionTable run_with_progress(const Plan& plan, verify::AttentionSuiteOptions& options) {
  const std::size_t cells = plan.properties.size() * plan.profiles.size();
  Progress progress("cells", static_cast<std::int64_t>(cells));
  options.progress = [&] { progress.advance(); };
  verify::AttentionTable table =
      verify::run_attention_suite(*plan.subject, plan.profiles, plan.properties, options);
  table.options.progress = nullptr;
  return table;
}

std::int64_t cells_in(const verify::AttentionTable& table, verify::AttentionCell::State state) {
  std::int64_t count = 0;
  for (const verify::AttentionCell& cell : table.cells) count += cell.state == state;
  return count;
}

}  // namespace

bool is_attention(const OptionalText& suite) {
  return suite && (*suite == kSuite || std::string_view(*suite).substr(0, kDot.size()) == kDot);
}

std::string attention_case_help() {
  return fmt::format("of attention, keys are {}; those missing are from \"{}\"",
                     verify::attention_case_keys(), print(verify::AttentionCase{}));
}

Expected<verify::AttentionSuiteOptions> parse_suite_options(const VerifyAttentionArguments& from) {
  verify::AttentionSuiteOptions options;
  ASSAY_TRY(options.budget_seconds, integer_or<std::int32_t>("--budget", from.budget, 0, 86400, 5));
  ASSAY_TRY(options.seed, integer_or<std::uint64_t>("--seed", from.seed, 0, ~std::uint64_t{0}, 1));
  options.allow_vacuous = from.allow_vacuous;
  options.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  if (from.recipe) return bad_input("--recipe is of dispatch and combine; attention has none");
  if (from.options) return bad_input("--options are of dispatch and combine; attention has none");
  return options;
}

Expected<ExitCode> run_verify_attention(const VerifyAttentionArguments& from) {
  if (*from.suite == "attention.long") return run_verify_long(from);
  ASSAY_TRY(const Output output, Output::open(from.json, {plugin_file(from.subject)}));
  ASSAY_TRY(verify::AttentionSuiteOptions options, parse_options(from));
  ASSAY_TRY(const Plan plan, make_plan(from));
  const verify::AttentionTable table = run_with_progress(plan, options);
  const verify::Verdict verdict = table.verdict();
  std::int64_t cases = 0, declined = 0, kept = 0, skipped = 0;
  for (const verify::AttentionCell& cell : table.cells) {
    cases += cell.cases;
    declined += cell.declined;
    kept += cell.coverage.kept;
    skipped += cell.coverage.skipped;
  }
  using State = verify::AttentionCell::State;
  Document document;
  document.field("verdict", std::string(verify::verdict_name(verdict)));
  document.field("subject", table.subject);
  document.field("holds", cells_in(table, State::kHolds));
  document.field("violated_by_design",
                 cells_in(table, State::kViolated) + cells_in(table, State::kNotPromised));
  document.field("not_applicable", cells_in(table, State::kNotApplicable));
  document.field("wrong", cells_in(table, State::kMismatch));
  document.field("mistrusted", cells_in(table, State::kMistrusted));
  document.field("unsupported", cells_in(table, State::kUnsupported));
  document.field("cases", cases);
  document.field("cases_declined", declined);
  document.field("tiles_kept", kept);
  document.field("tiles_skipped", skipped);
  document.rendered("table", verify::to_text(table), verify::to_json(table));
  if (verdict != verify::Verdict::kConforms || table.cells.size() == 1) {
    const verify::Report report = verify::worst_report(table, plan.mutant);
    document.rendered("report", verify::to_text(report), verify::to_json(report));
  }
  ASSAY_CHECK(output.write(document));
  return static_cast<ExitCode>(verify::exit_code(verdict));
}

}  // namespace assay::tools
