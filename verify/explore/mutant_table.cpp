// Runs the table, protocol first: what a search finds in the protocol itself makes the rest moot.
#include "verify/explore/mutant_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "verify/explore/holes.hpp"

namespace assay::verify {

namespace {

using machine::Boundary;
using machine::ExploreConfig;
using machine::Search;

// A program of one of the named searches, under one boundary.
struct Ready {
  const MustShow* what;
  Boundary boundary;
  Program program;
};

Expected<Program> make_program(Protocol protocol, const MustShow& what, Boundary boundary,
                               const Hole* hole) {
  ASSAY_TRY(ProgramSetup setup, setup_of(protocol, what, hole));
  setup.boundary = boundary;
  return Program::make(std::move(setup));
}

class Table {
 public:
  Table(Protocol protocol, const MutantOptions& options) : options_(options) {
    report_.protocol = protocol;
  }

  Expected<MutantReport> run() {
    const auto start = std::chrono::steady_clock::now();
    ASSAY_CHECK(search_protocol());
    const std::vector<Mutation> generated = all_mutations();
    const std::vector<Hole> patched = holes(report_.protocol);
    total_ = static_cast<std::int64_t>(generated.size() + patched.size());
    for (const Mutation& mutation : generated) try_mutation(mutation);
    for (const Hole& hole : patched) ASSAY_CHECK(try_hole(hole));
    judge();
    report_.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return std::move(report_);
  }

 private:
  ExploreConfig config_of(const MustShow& what) const {
    ExploreConfig config;
    if (what.random_executions != 0) {
      config.search = Search::kRandom;
      config.max_executions = what.random_executions;
    }
    config.max_seconds = options_.search_seconds_max;
    config.minimise_executions = options_.minimise_executions;
    return config;
  }

  // What an ended kernel orders more under flush than under ptx, so what passes under ptx passes
  // there; it is run all the same, as a check of the machine.
  Status search_protocol() {
    for (const Boundary boundary : {Boundary::kPtx, Boundary::kPdl, Boundary::kFlush}) {
      for (const MustShow& what : must_show(report_.protocol)) {
        ASSAY_TRY(Program program, make_program(report_.protocol, what, boundary, nullptr));
        const SearchResult result = search(program, {}, config_of(what));
        SearchRow& row = report_.searches.emplace_back();
        row.search = what.name;
        row.title = what.title;
        row.boundary = boundary;
        row.exhaustive = what.random_executions == 0;
        row.executions = result.exploration.executions;
        row.blocked = result.exploration.blocked;
        row.steps = result.exploration.max_depth;
        row.seconds = result.exploration.seconds;
        row.exhausted = what.random_executions != 0 || result.exploration.exhausted;
        if (result.finding.has_value()) row.found = result.finding->check;
        // A search that speaks against the protocol itself says nothing about its mutants.
        if (boundary != Boundary::kFlush && row.found.empty())
          ready_.push_back({&what, boundary, std::move(program)});
      }
    }
    return Done{};
  }

  // Of all operations that any search's program performs; what one program performs once with an
  // order, no other performs without.
  std::vector<Mutation> all_mutations() const {
    std::array<SiteUse, kNumSites> used{};
    for (const Ready& ready : ready_) {
      const Execution done = run_default(ready.program, {});
      for (std::size_t s = 0; s < kNumSites; ++s)
        if (done.used[s].operation != machine::Operation::kNone) used[s] = done.used[s];
    }
    return ordering_mutants(used);
  }

  SearchRow& row_of(const Ready& ready) {
    return *std::find_if(report_.searches.begin(), report_.searches.end(), [&](const SearchRow& r) {
      return r.search == ready.what->name && r.boundary == ready.boundary;
    });
  }

  // All exhaustive searches under ptx are tried; the others only for what these have not killed.
  void try_program(MutantRow& row, const Ready& ready, const Program& program,
                   const Mutation& mutation) {
    const bool extra = ready.boundary == Boundary::kPdl || ready.what->random_executions != 0;
    if (extra && row.fate == MutantRow::Fate::kKilled) return;
    const SearchResult result = search(program, mutation, config_of(*ready.what));
    if (!result.finding.has_value()) return;
    ++row_of(ready).kills;
    row.killed_by += fmt::format("{}{}:{}", row.killed_by.empty() ? "" : " ", ready.what->name,
                                 result.finding->check);
    if (row.fate == MutantRow::Fate::kKilled) return;
    row.fate = MutantRow::Fate::kKilled;
    row.search = ready.what->name;
    row.boundary = ready.boundary;
    row.check = result.finding->check;
    row.sentence = result.finding->sentence;
    const machine::Counterexample& found = *result.exploration.counterexample;
    row.executions = found.found_after;
    row.steps = found.steps;
    row.switches = found.switches;
    row.schedule = found.schedule;
    row.random_mean = mean_executions(program, mutation, Search::kRandom);
    row.pct_mean = mean_executions(program, mutation, Search::kPct);
  }

  double mean_executions(const Program& program, const Mutation& mutation, Search how) const {
    std::uint64_t sum = 0;
    for (std::int32_t trial = 0; trial < options_.trials; ++trial) {
      ExploreConfig config;
      config.search = how;
      config.seed = static_cast<std::uint64_t>(trial) + 1;
      config.max_executions = options_.trial_executions_max;
      config.minimise_executions = 0;
      const SearchResult result = search(program, mutation, config);
      sum += result.exploration.counterexample.has_value()
                 ? result.exploration.counterexample->found_after
                 : options_.trial_executions_max;
    }
    return static_cast<double>(sum) / std::max(1, options_.trials);
  }

  void try_mutation(const Mutation& mutation) {
    MutantRow row;
    row.name = mutation_name(mutation);
    for (const Ready& ready : ready_) try_program(row, ready, ready.program, mutation);
    const Equivalent* equivalent = find_equivalent(row.name);
    if (equivalent != nullptr && row.fate == MutantRow::Fate::kKilled)
      report_.reasons.push_back(
          fmt::format("{} is listed as changing nothing, and {} catches it", row.name, row.check));
    if (equivalent != nullptr && row.fate == MutantRow::Fate::kSurvived) {
      row.fate = MutantRow::Fate::kChangesNothing;
      row.remark = fmt::format("{}: {}", equivalent->clause, equivalent->reason);
    }
    finish(std::move(row));
  }

  Status try_hole(const Hole& hole) {
    MutantRow row;
    row.kind = MutantRow::Kind::kHole;
    row.name = hole.name;
    row.remark = hole.title;
    for (const Ready& ready : ready_) {
      auto program = make_program(report_.protocol, *ready.what, ready.boundary, &hole);
      // Some holes need more rounds than a search has.
      if (!program) continue;
      try_program(row, ready, *program, {});
    }
    if (row.fate == MutantRow::Fate::kKilled &&
        row.killed_by.find(hole.caught_by) == std::string::npos)
      report_.reasons.push_back(
          fmt::format("{} is caught by {}, and not by {}, which is named for it", hole.name,
                      row.killed_by, hole.caught_by));
    finish(std::move(row));
    return Done{};
  }

  void finish(MutantRow row) {
    report_.killed += row.fate == MutantRow::Fate::kKilled ? 1 : 0;
    report_.change_nothing += row.fate == MutantRow::Fate::kChangesNothing ? 1 : 0;
    if (row.fate == MutantRow::Fate::kSurvived)
      report_.reasons.push_back(
          fmt::format("no search kills {}, and no clause says that it changes nothing", row.name));
    report_.mutants.push_back(std::move(row));
    if (options_.progress)
      options_.progress(static_cast<std::int64_t>(report_.mutants.size()), total_);
  }

  void judge() {
    bool wrong = false;
    for (const SearchRow& row : report_.searches) {
      const std::string name =
          fmt::format("search {} under {}", row.search, boundary_name(row.boundary));
      wrong = wrong || !row.found.empty();
      if (!row.found.empty())
        report_.reasons.push_back(fmt::format("{}: {} found", name, row.found));
      else if (!row.exhausted)
        report_.reasons.push_back(
            fmt::format("{} is not exhausted after {:.0f} s", name, row.seconds));
      if (row.boundary == Boundary::kPtx && row.exhaustive && row.kills == 0)
        report_.reasons.push_back(fmt::format("{} kills no mutant", name));
    }
    report_.verdict = wrong                      ? Verdict::kMismatch
                      : !report_.reasons.empty() ? Verdict::kMistrusted
                                                 : Verdict::kConforms;
  }

  const MutantOptions& options_;
  MutantReport report_;
  std::vector<Ready> ready_;
  std::int64_t total_ = 0;
};

}  // namespace

Expected<MutantReport> run_mutants(Protocol protocol, const MutantOptions& options) {
  return Table(protocol, options).run();
}

std::string_view boundary_name(machine::Boundary boundary) {
  switch (boundary) {
    case machine::Boundary::kPtx:
      return "ptx";
    case machine::Boundary::kFlush:
      return "flush";
    case machine::Boundary::kPdl:
      return "pdl";
  }
  return "unknown";
}

}  // namespace assay::verify
