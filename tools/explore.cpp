// assay explore: a one-sided protocol under adversarial schedules in weak memory. Prints what was
// explored, and the first thing that goes wrong with the schedule that shows it.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "model/core/mapped_file.hpp"
#include "model/core/text.hpp"
#include "model/machine/timeline.hpp"
#include "tools/cli/document.hpp"
#include "tools/cli/progress.hpp"
#include "tools/explore.hpp"

namespace assay::tools {
namespace {

using machine::ExploreConfig;
using machine::Search;
using verify::ProgramSetup;
using verify::Protocol;
using verify::Verdict;

// A trace shows what went wrong.
constexpr const char* kNoTrace = "nothing written: nothing went wrong, so there is nothing to show";

// What one program's search came to.
struct Explored {
  std::string name;
  std::string title;
  std::string case_text;
  verify::SearchResult result;
  std::optional<verify::Control> control;
};

std::string where_of(const verify::Mismatch& finding) {
  std::string text;
  for (const verify::Coordinate& at : finding.where)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", at.name, at.value);
  return text;
}

void add_timeline(Document& document, const machine::RunRecord& record) {
  const std::string text = machine::print_timeline(record);
  nlohmann::ordered_json lines = nlohmann::ordered_json::array();
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  document.rendered("timeline", text, lines);
}

Status add_finding(Document& document, const ExploreArguments& from, const verify::MustShow* what,
                   const verify::Program& program, const Subject& subject,
                   const verify::Mismatch& finding, const std::string& schedule,
                   const machine::Counterexample* found) {
  machine::RunRecord record;
  ASSAY_CHECK(verify::replay(program, subject.mutation, schedule, &record));
  document.field("check", finding.check, finding.clause);
  document.field("finding", finding.sentence);
  document.field("where", where_of(finding));
  document.field("schedule", schedule);
  if (found != nullptr) {
    document.field("steps", found->steps);
    document.field("switches", found->switches);
    document.field("found_after", found->found_after, "executions");
  }
  add_timeline(document, record);
  document.field("repro", repro_of(from, what, schedule));
  if (!from.perfetto) return Done{};
  const std::string trace = machine::chrome_trace(record);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(trace));
  const std::span<const std::byte> parts[] = {bytes};
  return write_file(*from.perfetto, parts);
}

Expected<ExitCode> run_schedule(const ExploreArguments& from, const verify::MustShow* what,
                                const ProgramSetup& setup, const Subject& subject,
                                const Output& output) {
  ASSAY_TRY(const verify::Program program, verify::Program::make(setup));
  ASSAY_TRY(const verify::Execution done,
            verify::replay(program, subject.mutation, *from.schedule));
  Document document;
  const bool wrong = done.finding.has_value();
  document.field("verdict",
                 std::string(verdict_name(wrong ? Verdict::kMismatch : Verdict::kConforms)));
  document.field("protocol", *from.protocol);
  if (from.mutant) document.field("mutant", *from.mutant);
  document.field("boundary", std::string(verify::boundary_name(setup.boundary)));
  document.field("explored", "one schedule");
  if (!wrong) document.field("repro", repro_of(from, what, *from.schedule));
  if (!wrong && from.perfetto) document.field("perfetto", kNoTrace);
  if (wrong)
    ASSAY_CHECK(add_finding(document, from, what, program, subject, *done.finding, *from.schedule,
                            nullptr));
  ASSAY_CHECK(output.write(document));
  return wrong ? ExitCode::kMismatch : ExitCode::kConforms;
}

Table table_of(const std::vector<Explored>& explored) {
  Table table{{"search", "program", "case", "executions", "blocked", "steps", "exhausted",
               "seconds", "control", "control_executions"},
              {}};
  for (const Explored& one : explored) {
    const machine::Exploration& e = one.result.exploration;
    table.rows.push_back({one.name, one.title, one.case_text, e.executions, e.blocked, e.max_depth,
                          e.exhausted, e.seconds, one.control ? one.control->mutant : "",
                          one.control ? one.control->executions : std::uint64_t{0}});
  }
  return table;
}

// A mutant that changes nothing in what is run would look as if nothing could notice it.
Status check_applies(const ExploreArguments& from, const std::vector<Wanted>& wanted,
                     const Subject& subject) {
  if (!from.mutant || subject.hole != nullptr) return Done{};
  for (const Wanted& one : wanted) {
    ASSAY_TRY(const verify::Program program, verify::Program::make(one.setup));
    const verify::Execution once = verify::run_default(program, {});
    for (const verify::Mutation& mutation : verify::ordering_mutants(once.used))
      if (verify::mutation_name(mutation) == *from.mutant) return Done{};
  }
  return bad_input(
      fmt::format("the mutant {} changes nothing here: no program of this run performs "
                  "that operation with that order; assay explore {} --mutants lists "
                  "what can be taken away",
                  in_quotes(*from.mutant), *from.protocol));
}

// How much a verdict without a finding says.
std::string explored_text(const ExploreConfig& config, const std::vector<Explored>& explored) {
  std::uint64_t executions = 0;
  bool all = true;
  for (const Explored& one : explored) {
    executions += one.result.exploration.executions;
    all = all && one.result.exploration.exhausted;
  }
  if (config.search == Search::kExhaustive && all)
    return fmt::format("every schedule, as {} classes of equivalent ones", executions);
  if (config.search == Search::kBounded && all)
    return fmt::format("every schedule with few preemptions, {} executions", executions);
  return fmt::format("a sample of {} executions", executions);
}

Expected<ExitCode> run_searches(const ExploreArguments& from, Protocol protocol,
                                const Subject& subject, const Output& output) {
  ASSAY_TRY(const ExploreConfig config, parse_config(from));
  ASSAY_TRY(const std::int32_t jobs, integer_or<std::int32_t>("--jobs", from.jobs, 1, 256, 1));
  ASSAY_TRY(const std::vector<Wanted> wanted, wanted_programs(from, protocol, subject));
  if (from.schedule && wanted.size() != 1)
    return bad_input("--schedule is a run of one program; --case or --routing must say which one");
  ASSAY_CHECK(check_applies(from, wanted, subject));
  if (from.schedule) return run_schedule(from, wanted[0].what, wanted[0].setup, subject, output);
  const bool right = !from.mutant.has_value();
  std::vector<Explored> explored;
  std::vector<std::string> reasons;
  Document finding;
  bool wrong = false;
  const bool counted = config.max_executions != ~std::uint64_t{0};
  Progress progress(counted ? "executions" : "executions of an unknown number",
                    counted ? static_cast<std::int64_t>(config.max_executions * wanted.size()) : 0);
  for (const Wanted& one : wanted) {
    ASSAY_TRY(const verify::Program program, verify::Program::make(one.setup));
    Explored& done = explored.emplace_back();
    done.name = one.what == nullptr ? "case" : std::string(one.what->name);
    done.title = one.what == nullptr ? "" : std::string(one.what->title);
    done.case_text = one.case_text;
    done.result = verify::search_in_jobs(program, subject.mutation, config, jobs,
                                         [&] { progress.advance(); });
    const machine::Exploration& e = done.result.exploration;
    if (done.result.finding.has_value()) {
      ASSAY_CHECK(add_finding(finding, from, one.what, program, subject, *done.result.finding,
                              e.counterexample->schedule, &*e.counterexample));
      wrong = true;
      break;
    }
    const bool all = config.search == Search::kExhaustive || config.search == Search::kBounded;
    if (all && !e.exhausted)
      reasons.push_back(
          fmt::format("search {} is not exhausted after {} executions in {:.0f} s; a larger "
                      "--budget goes on",
                      done.name, e.executions, e.seconds));
    if (!right) {
      reasons.push_back(fmt::format("search {} does not notice the mutant", done.name));
      continue;
    }
    done.control = verify::find_control(program, config);
    if (!done.control)
      reasons.push_back(fmt::format("search {} catches no ordering mutant", done.name));
  }
  const Verdict verdict = wrong              ? Verdict::kMismatch
                          : !reasons.empty() ? Verdict::kMistrusted
                                             : Verdict::kConforms;
  Document document;
  document.field("verdict", std::string(verdict_name(verdict)));
  document.field("protocol", *from.protocol);
  if (from.mutant) document.field("mutant", *from.mutant);
  document.field("boundary", std::string(verify::boundary_name(wanted[0].setup.boundary)));
  document.field("scheduler", scheduler_name(config.search));
  document.field("explored", explored_text(config, explored));
  document.field("seed", config.seed);
  document.table("searches", table_of(explored));
  if (!reasons.empty()) document.list("reasons", {reasons.begin(), reasons.end()});
  if (wrong) document.group("counterexample") = std::move(finding);
  if (!wrong) document.field("repro", repro_of(from, nullptr, ""));
  if (!wrong && from.perfetto) document.field("perfetto", kNoTrace);
  ASSAY_CHECK(output.write(document));
  return static_cast<ExitCode>(verify::exit_code(verdict));
}

Expected<ExitCode> run_explore(const ExploreArguments& from) {
  ASSAY_TRY(const Output output, Output::open(from.json, {from.routing, from.perfetto}));
  if (from.perfetto) {
    ASSAY_CHECK(check_writable(*from.perfetto));
    ASSAY_CHECK(check_not_input(*from.perfetto, {from.routing}));
  }
  for (const auto& [flag, given] : {std::pair("--ep", &from.ep),
                                    {"--steps", &from.steps},
                                    {"--layers", &from.layers},
                                    {"--hidden", &from.hidden}})
    if (given->has_value() && !from.routing && !from.mutants)
      return bad_input(fmt::format("{} belongs to --routing; a --case has keys for sizes", flag));
  if (from.mutants) return run_mutants(from, output);
  if (!from.protocol)
    return bad_input(
        "PROTOCOL is missing; allowed are fence, sentinel, or --mutants for all protocols");
  ASSAY_TRY(const Protocol protocol, verify::parse_protocol(*from.protocol));
  ASSAY_TRY(const Subject subject, parse_mutant(from.mutant, protocol));
  return run_searches(from, protocol, subject, output);
}

}  // namespace

Action declare_explore(Arguments& arguments) {
  const ExploreArguments from{
      arguments.optional_positional("PROTOCOL", "fence or sentinel"),
      arguments.option("--case", "LINE",
                       "only this case; missing keys are those of search a: \"ep=2 experts=2 "
                       "top_k=2 hidden=2 max_tokens=1 tokens=1 rounds=3\""),
      arguments.option("--routing", "FILE", "a captured step in place of a case"),
      arguments.option("--ep", "N", "ranks for --routing (default 4)"),
      arguments.option("--steps", "A:B", "steps of --routing (default the first)"),
      arguments.option("--layers", "A:B", "layers of --routing (default the first)"),
      arguments.option("--hidden", "N", "hidden size for --routing, elements (default 8)"),
      arguments.option("--lanes", "N", "threads of a CTA (default 1)"),
      arguments.option("--ctas", "N", "CTAs of a Sentinel kernel (default as on a GPU)"),
      arguments.option("--parts", "N",
                       "CTAs of combine that share a row, by fence (default: as the search)"),
      arguments.option("--resident", "N", "CTAs of a rank in flight at once (default all)"),
      arguments.option("--statistics", "N",
                       "words that each rank tells all, by fence (default: as the search)"),
      arguments.option("--stops", "WHEN",
                       "the first rank stops at the start, or before its first combine; the "
                       "others' waits run out"),
      arguments.option("--scheduler", "NAME", "random, pct, bounded or exhaustive (default)"),
      arguments.option("--boundary", "NAME",
                       "what a kernel's end orders: ptx (default), flush, pdl"),
      arguments.option("--budget", "N",
                       "executions, or seconds as 60s (default 10000, or 60s where all schedules "
                       "are run)"),
      arguments.option("--seed", "N", "of random and pct (default 1)"),
      arguments.option("--jobs", "N", "threads that share the executions of random and pct"),
      arguments.option("--mutant", "NAME", "SITE.HOW or a hole, as --mutants lists them"),
      arguments.option("--schedule", "STRING", "this run of the case and no other"),
      arguments.option("--perfetto", "FILE", "the counterexample as a trace for ui.perfetto.dev"),
      arguments.flag("--mutants", "every ordering mutant against the searches of every protocol"),
      arguments.json()};
  return [from] { return run_explore(from); };
}

}  // namespace assay::tools
