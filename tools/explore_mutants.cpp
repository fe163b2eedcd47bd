// assay explore --mutants: the table that proves that the searches can find anything.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "model/core/text.hpp"
#include "tools/cli/document.hpp"
#include "tools/cli/progress.hpp"
#include "tools/explore.hpp"

namespace assay::tools {
namespace {

using verify::Protocol;
using verify::Verdict;

std::string_view fate_name(verify::MutantRow::Fate fate) {
  switch (fate) {
    case verify::MutantRow::Fate::kKilled:
      return "killed";
    case verify::MutantRow::Fate::kChangesNothing:
      return "changes nothing";
    case verify::MutantRow::Fate::kSurvived:
      return "SURVIVED";
  }
  return "";
}

void add_report(Document& document, const verify::MutantReport& report) {
  Table searches{{"search", "title", "boundary", "executions", "blocked", "steps", "complete",
                  "seconds", "found", "kills"},
                 {}};
  for (const verify::SearchRow& row : report.searches)
    searches.rows.push_back(
        {row.search, row.title, std::string(verify::boundary_name(row.boundary)), row.executions,
         row.blocked, row.steps, row.exhausted, row.seconds, row.found, row.kills});
  Table mutants{{"mutant", "fate", "search", "boundary", "check", "executions", "random_mean",
                 "pct_mean", "steps", "remark", "schedule"},
                {}};
  double random_sum = 0, pct_sum = 0, sum = 0;
  for (const verify::MutantRow& row : report.mutants) {
    const bool killed = row.fate == verify::MutantRow::Fate::kKilled;
    mutants.rows.push_back({row.name, std::string(fate_name(row.fate)), row.search,
                            killed ? std::string(verify::boundary_name(row.boundary)) : "",
                            row.check, row.executions, row.random_mean, row.pct_mean, row.steps,
                            row.remark, row.schedule});
    sum += static_cast<double>(row.executions);
    random_sum += row.random_mean;
    pct_sum += row.pct_mean;
  }
  Document& group = document.group(std::string(verify::protocol_name(report.protocol)));
  group.field("verdict", std::string(verdict_name(report.verdict)));
  group.table("searches", std::move(searches));
  group.table("mutants", std::move(mutants));
  group.field("killed", report.killed);
  group.field("change_nothing", report.change_nothing);
  group.field("survived", static_cast<std::int64_t>(report.mutants.size()) - report.killed -
                              report.change_nothing);
  const double killed = std::max<double>(1, static_cast<double>(report.killed));
  group.field("mean_executions", sum / killed,
              "of the search that kills it, to its counterexample");
  group.field("mean_executions_random", random_sum / killed);
  group.field("mean_executions_pct", pct_sum / killed);
  group.field("seconds", report.seconds);
  if (!report.reasons.empty())
    group.list("reasons", {report.reasons.begin(), report.reasons.end()});
}

}  // namespace

Expected<ExitCode> run_mutants(const ExploreArguments& from, const Output& output) {
  for (const OptionalText* other :
       {&from.case_text, &from.routing, &from.schedule, &from.mutant, &from.scheduler,
        &from.boundary, &from.ep, &from.steps, &from.layers, &from.hidden, &from.lanes, &from.ctas,
        &from.parts, &from.resident, &from.statistics, &from.stops, &from.seed, &from.jobs,
        &from.perfetto})
    if (other->has_value())
      return bad_input(
          "--mutants runs every mutant through every search and takes --budget and --json alone; "
          "--case, --mutant, --scheduler and all others belong to a run without it");
  ASSAY_TRY(const machine::ExploreConfig config, parse_config(from));
  if (config.max_executions != ~std::uint64_t{0})
    return bad_input(
        fmt::format("--budget is {}; with --mutants it is the seconds of one search, "
                    "as 60s",
                    in_quotes(*from.budget)));
  std::vector<Protocol> protocols = {Protocol::kFence, Protocol::kSentinel};
  if (from.protocol) {
    ASSAY_TRY(const Protocol only, verify::parse_protocol(*from.protocol));
    protocols = {only};
  }
  Verdict worst = Verdict::kConforms;
  std::vector<verify::MutantReport> reports;
  for (const Protocol protocol : protocols) {
    std::optional<Progress> progress;
    verify::MutantOptions options;
    options.search_seconds_max = config.max_seconds;
    options.progress = [&](std::int64_t done, std::int64_t total) {
      if (!progress) progress.emplace("mutants", total).advance(done - 1);
      progress->advance();
    };
    ASSAY_TRY(verify::MutantReport report, verify::run_mutants(protocol, options));
    if (report.verdict == Verdict::kMismatch || worst == Verdict::kConforms) worst = report.verdict;
    reports.push_back(std::move(report));
  }
  Document document;
  document.field("verdict", std::string(verdict_name(worst)));
  for (const verify::MutantReport& report : reports) add_report(document, report);
  ASSAY_CHECK(output.write(document));
  return static_cast<ExitCode>(verify::exit_code(worst));
}

}  // namespace assay::tools
