// A search over the schedules of a program in weak memory, and the named searches that every
// protocol must come through. Decides SPEC VER-8.5; how schedules are chosen is model/machine
// (explore.hpp), what is wrong with one execution is judge.hpp.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "model/machine/explore.hpp"
#include "model/machine/timeline.hpp"
#include "verify/explore/program.hpp"

namespace assay::verify {

struct SearchResult {
  machine::Exploration exploration;
  // What is wrong under exploration.counterexample->schedule.
  std::optional<Mismatch> finding;
};

// `executed` is called after every execution.
SearchResult search(const Program& program, const Mutation& mutation,
                    const machine::ExploreConfig& config,
                    const std::function<void()>& executed = {});

// One execution under a schedule that was printed; `record`, if any, is told everything. Errors: a
// string that is no schedule, or one that does not fit the program.
Expected<Execution> replay(const Program& program, const Mutation& mutation,
                           std::string_view schedule, machine::RunRecord* record = nullptr);
// One execution under the schedule of all first choices.
Execution run_default(const Program& program, const Mutation& mutation);

// The same search by several threads, each with seeds of its own; only random and PCT share out.
// The first counterexample of the lowest-numbered job is kept.
SearchResult search_in_jobs(const Program& program, const Mutation& mutation,
                            const machine::ExploreConfig& config, std::int32_t jobs,
                            const std::function<void()>& executed = {});

// An ordering mutant that this search catches: without one, a search that finds nothing has proven
// nothing (SPEC VER-8.5). Fences are tried first. Nothing if it catches none.
struct Control {
  std::string mutant;
  std::uint64_t executions = 0;
};
std::optional<Control> find_control(const Program& program, const machine::ExploreConfig& config);

// A program that is searched through, by name: "a", "d", "b", "b1", "c", "g", "h" exhaustively;
// "r", "q" and "s", which are too large for that, by random schedules.
struct MustShow {
  std::string_view name;
  std::string_view title;
  std::string_view case_text;
  std::uint32_t group_size = 1;
  std::uint32_t ctas = 0;  // as ProgramSetup::ctas
  std::uint32_t resident_ctas = 0xFFFFFFFFu;
  std::uint64_t random_executions = 0;  // 0: exhaustive
  // Sequential memory: there a wait misses what was overwritten before it looked, which weak memory
  // lets it see for ever.
  bool sequential = false;
  Variant variant = Variant::kNone;  // of those in which a peer stops
  std::int32_t statistics = 0;       // words that each rank tells all, by Fence (SPEC KER-1.8)
  std::uint32_t parts_log2 = 0;      // as ProgramSetup::parts_log2
};
std::span<const MustShow> must_show(Protocol protocol);

// Every rank tells all ranks so many words in every round, no two of them equal. By Fence only.
void add_statistics(ProgramSetup& setup, std::int32_t words);

// `hole`: instead of the right protocol.
Expected<ProgramSetup> setup_of(Protocol protocol, const MustShow& what,
                                const struct Hole* hole = nullptr);

}  // namespace assay::verify
