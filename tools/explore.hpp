// What the files of assay explore share: its command line, and what that asks for. explore.cpp runs
// searches and schedules, explore_mutants.cpp the table of mutants; explore_setup.cpp turns words
// into programs and programs into the line that repeats them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/cli/arguments.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/tools.hpp"
#include "verify/explore/explore.hpp"

namespace assay::tools {

struct ExploreArguments {
  const OptionalText& protocol;
  const OptionalText& case_text;
  const OptionalText& routing;
  const OptionalText& ep;
  const OptionalText& steps;
  const OptionalText& layers;
  const OptionalText& hidden;
  const OptionalText& lanes;
  const OptionalText& ctas;
  const OptionalText& parts;
  const OptionalText& resident;
  const OptionalText& statistics;
  const OptionalText& stops;
  const OptionalText& scheduler;
  const OptionalText& boundary;
  const OptionalText& budget;
  const OptionalText& seed;
  const OptionalText& jobs;
  const OptionalText& mutant;
  const OptionalText& schedule;
  const OptionalText& perfetto;
  const bool& mutants;
  const OptionalText& json;
};

// What is explored: our own bodies, or something that is wrong with them.
struct Subject {
  verify::Mutation mutation;
  const verify::Hole* hole = nullptr;
};

// The programs that the command line asks for: its case or routing, or the named searches.
struct Wanted {
  const verify::MustShow* what = nullptr;
  verify::ProgramSetup setup;
  std::string case_text;
};

Expected<machine::ExploreConfig> parse_config(const ExploreArguments& from);
Expected<Subject> parse_mutant(const OptionalText& name, verify::Protocol protocol);
Expected<std::vector<Wanted>> wanted_programs(const ExploreArguments& from,
                                              verify::Protocol protocol, const Subject& subject);
std::string scheduler_name(machine::Search search);

// Everything that makes the program what it is, then the schedule or, without one, the search.
std::string repro_of(const ExploreArguments& from, const verify::MustShow* what,
                     const std::string& schedule);

// assay explore --mutants
Expected<ExitCode> run_mutants(const ExploreArguments& from, const Output& output);

}  // namespace assay::tools
