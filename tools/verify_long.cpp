// assay verify --suite attention.long: problems of 65536 keys, as a whole, on a GPU. Which there
// are and what is compared is verify/attention/long.hpp.
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "model/core/text.hpp"
#include "tools/cli/document.hpp"
#include "tools/cli/output.hpp"
#include "tools/verify_attention.hpp"
#include "verify/attention/long.hpp"
#include "verify/attention/suite.hpp"

namespace assay::tools {

using namespace verify;

std::string long_case_help() {
  return fmt::format("of attention.long, missing keys are from \"{}\"", print(LongCase{}));
}

Expected<ExitCode> run_verify_long(const VerifyAttentionArguments& from) {
  ASSAY_TRY(const Output output, Output::open(from.json, {}));
  if (from.subject.value_or("sim") != "cuda")
    return bad_input(
        fmt::format("suite attention.long is run by --subject cuda alone, not {}: nobody else "
                    "emulates problems of this size",
                    in_quotes(from.subject.value_or("sim"))));
  if (from.profile && *from.profile != "assay-prefill-sm90" && *from.profile != "assay-decode-sm90")
    return bad_input(
        fmt::format("--profile is {}; suite attention.long has assay-prefill-sm90 "
                    "and assay-decode-sm90",
                    in_quotes(*from.profile)));
  ASSAY_TRY(const AttentionSuiteOptions common, parse_suite_options(from));
  std::vector<LongCase> cases = long_cases();
  if (from.case_text) {
    LongCase usual;
    usual.decode = from.profile && *from.profile == "assay-decode-sm90";
    ASSAY_TRY(const LongCase one, parse_long_case(*from.case_text, usual));
    if (from.profile && one.decode != usual.decode)
      return bad_input(
          fmt::format("--profile is {} and --case says kernel={}; allowed is one "
                      "kernel, or no --profile",
                      in_quotes(*from.profile), one.decode ? "decode" : "prefill"));
    cases = {one};
  } else if (from.profile) {
    std::erase_if(cases, [&](const LongCase& c) {
      return c.decode != (*from.profile == "assay-decode-sm90");
    });
  }
  LongOptions options;
  options.mutant = from.mutant.value_or("");
  options.allow_vacuous = common.allow_vacuous;
  options.threads = common.threads;
  Table table{{"case", "verdict", "lambda", "tiles", "skipped", "sparsity", "elements",
               "units_on_host", "kernel_ms", "emulator_ms"},
              {}};
  std::optional<Report> worst;
  Document document;
  bool stopped = false;
  for (const LongCase& c : cases) {
    auto ran = run_long(c, options);
    if (!ran && table.rows.empty()) return ran.error();
    if (!ran) {  // what was found before stands
      document.field("stopped", fmt::format("{}: {}", print(c), ran.error().sentence));
      stopped = true;
      break;
    }
    LongResult& result = *ran;
    const double visited = static_cast<double>(std::max<std::int64_t>(1, result.visited));
    table.rows.push_back({print(c), std::string(verdict_name(result.report.verdict)),
                          static_cast<double>(result.lambda), result.visited, result.skipped,
                          static_cast<double>(result.skipped) / visited, result.elements,
                          std::int64_t{c.samples}, result.kernel_ms, result.emulator_ms});
    const bool worse = !worst || (worst->verdict == Verdict::kConforms &&
                                  result.report.verdict != Verdict::kConforms);
    const bool wrong = result.report.verdict == Verdict::kMismatch;
    if (worse || (wrong && worst->verdict != Verdict::kMismatch)) worst = std::move(result.report);
    if (wrong) break;  // a kernel that went wrong is not run on
  }
  document.field("verdict", std::string(verdict_name(worst->verdict)));
  document.table("cases", std::move(table));
  if (worst->verdict != Verdict::kConforms || cases.size() == 1)
    document.rendered("report", to_text(*worst), to_json(*worst));
  ASSAY_CHECK(output.write(document));
  if (stopped && worst->verdict == Verdict::kConforms) return ExitCode::kUnsupported;
  return static_cast<ExitCode>(exit_code(worst->verdict));
}

}  // namespace assay::tools
