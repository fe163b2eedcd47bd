// Executions with the machine's searches, and the table of what a protocol must come through.
#include "verify/explore/search.hpp"

#include <algorithm>
#include <exception>
#include <memory>
#include <thread>

#include "model/core/case_text.hpp"
#include "model/machine/ptx_memory.hpp"
#include "model/machine/schedule.hpp"
#include "model/machine/schedulers.hpp"
#include "verify/explore/holes.hpp"
#include "verify/explore/ordering.hpp"

namespace assay::verify {

namespace {

// Every token goes to every rank where it can: a row that stays at home shows nothing. (a) has one
// round more than Sentinel has generations, so that a slot is used twice; under Fence flags turn
// over with every phase, and three rounds have one whole round between two others. (d) takes
// combine's ticket in every round. (b) is where
// groups and lanes meet, once all at a time and once at the smallest residency; a token has two
// payloads, so that each lane has a vector to store, and a statistic; two groups share each row of
// combine. (c) has a rank that only signals and waits.
constexpr MustShow kMustShow[] = {
    {"a", "2 ranks, 1 token each, 3 rounds",
     "ep=2 experts=2 top_k=2 hidden=2 max_tokens=1 tokens=1 rounds=3", 1, 1, 0xFFFFFFFFu, 0, false,
     Variant::kNone, 1},
    {"d", "the same, and two groups share each row",
     "ep=2 experts=2 top_k=2 hidden=2 max_tokens=1 tokens=1 rounds=3", 1, 1, 0xFFFFFFFFu, 0, false,
     Variant::kNone, 0, 1},
    {"b", "2 ranks, 2 and 1 tokens, 2 CTAs of 2 lanes",
     "ep=2 experts=2 top_k=2 hidden=6 max_tokens=2 tokens=2,1 rounds=1", 2, 2, 0xFFFFFFFFu, 0,
     false, Variant::kNone, 2, 1},
    {"b1", "the same with one resident CTA",
     "ep=2 experts=2 top_k=2 hidden=6 max_tokens=2 tokens=2,1 rounds=1", 2, 2, 1, 0, false,
     Variant::kNone, 0, 1},
    {"c", "3 ranks, 1 token each but for one without",
     "ep=3 experts=3 top_k=2 hidden=2 max_tokens=1 tokens=1,1,0 rounds=1", 1, 1, 0xFFFFFFFFu, 0,
     false, Variant::kNone, 0, 1},
    {"g", "3 ranks, the first sends nothing",
     "ep=3 experts=3 top_k=2 hidden=2 max_tokens=1 tokens=1 rounds=2", 1, 1, 0xFFFFFFFFu, 0, false,
     Variant::kFirstRankSilent},
    {"h", "2 ranks, the first leaves before its first combine, 2 CTAs",
     "ep=2 experts=2 top_k=2 hidden=2 max_tokens=2 tokens=1,2 rounds=2", 1, 2, 0xFFFFFFFFu, 0,
     false, Variant::kFirstRankLeaves},
    {"r", "3 ranks, up to 3 tokens, 2 rounds, 2 lanes",
     "ep=3 experts=6 top_k=2 hidden=6 max_tokens=3 tokens=3,1,2 rounds=2", 2, 2, 0xFFFFFFFFu, 300,
     false, Variant::kNone, 0, 1},
    {"q", "the same with one resident CTA",
     "ep=3 experts=6 top_k=2 hidden=6 max_tokens=3 tokens=3,1,2 rounds=2", 2, 2, 1, 100, false,
     Variant::kNone, 0, 1},
    {"s", "the same as r in sequential memory, each row of one group",
     "ep=3 experts=6 top_k=2 hidden=6 max_tokens=3 tokens=3,1,2 rounds=2", 2, 2, 0xFFFFFFFFu, 300,
     true},
};

machine::MachineParts with_memory(machine::MachineParts parts, const Program& program) {
  if (!program.setup().sequential)
    parts.make_memory_model = machine::ptx_memory(program.setup().boundary);
  return parts;
}

}  // namespace

SearchResult search(const Program& program, const Mutation& mutation,
                    const machine::ExploreConfig& config, const std::function<void()>& executed) {
  SearchResult result;
  result.exploration = machine::explore(config, [&](machine::MachineParts parts) {
    Execution done = program.run(mutation, with_memory(std::move(parts), program));
    if (executed) executed();
    if (!done.finding.has_value()) return machine::Outcome{};
    return machine::Outcome{false, done.finding->check + ": " + done.finding->sentence};
  });
  if (!result.exploration.counterexample.has_value()) return result;
  auto again = replay(program, mutation, result.exploration.counterexample->schedule);
  CONTRACT(again.has_value() && again->finding.has_value(), "a counterexample does not replay",
           result.exploration.counterexample->schedule);
  result.finding = std::move(again->finding);
  return result;
}

SearchResult search_in_jobs(const Program& program, const Mutation& mutation,
                            const machine::ExploreConfig& config, std::int32_t jobs,
                            const std::function<void()>& executed) {
  const bool shares =
      config.search == machine::Search::kRandom || config.search == machine::Search::kPct;
  if (jobs <= 1 || !shares) return search(program, mutation, config, executed);
  std::vector<SearchResult> results(static_cast<std::size_t>(jobs));
  std::vector<std::exception_ptr> failures(results.size());  // none may leave a thread
  std::vector<std::thread> threads;
  threads.reserve(results.size());
  for (std::int32_t job = 0; job < jobs; ++job) {
    machine::ExploreConfig own = config;
    const auto number = static_cast<std::uint64_t>(job);
    // Seeds of one job are a sequence from its first; another first is another sequence.
    std::uint64_t state = config.seed + number;
    if (number > 0) own.seed = splitmix64(state);
    const auto all = static_cast<std::uint64_t>(jobs);
    own.max_executions = config.max_executions / all + (number < config.max_executions % all);
    const auto work = [&program, &mutation, own, &executed, &results, &failures, number] {
      try {
        results[number] = search(program, mutation, own, executed);
      } catch (...) {
        failures[number] = std::current_exception();
      }
    };
    try {
      threads.emplace_back(work);
    } catch (const std::exception&) {  // no more threads: this one does the job's share
      work();
    }
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures)
    if (failure != nullptr) std::rethrow_exception(failure);
  SearchResult sum = std::move(results.front());
  for (std::size_t job = 1; job < results.size(); ++job) {
    const machine::Exploration& other = results[job].exploration;
    sum.exploration.executions += other.executions;
    sum.exploration.max_depth = std::max(sum.exploration.max_depth, other.max_depth);
    sum.exploration.seconds = std::max(sum.exploration.seconds, other.seconds);
    if (sum.finding.has_value() || !results[job].finding.has_value()) continue;
    sum.finding = std::move(results[job].finding);
    sum.exploration.counterexample = other.counterexample;
  }
  return sum;
}

std::optional<Control> find_control(const Program& program, const machine::ExploreConfig& config) {
  const Execution once = run_default(program, {});
  std::vector<Mutation> mutants = ordering_mutants(once.used);
  const auto is_a = [&](const Mutation& mutation, machine::Operation operation) {
    return once.used[static_cast<std::size_t>(mutation.site)].operation == operation;
  };
  // A store that does not happen is noticed by anybody who reads; that shows no order.
  std::erase_if(mutants, [&](const Mutation& mutation) {
    return mutation.how == Weakening::kDrop && is_a(mutation, machine::Operation::kStore);
  });
  std::stable_partition(mutants.begin(), mutants.end(), [&](const Mutation& mutation) {
    return is_a(mutation, machine::Operation::kFence);
  });
  machine::ExploreConfig short_search = config;
  short_search.minimise_executions = 0;
  short_search.max_executions = std::min<std::uint64_t>(config.max_executions, 1000);
  short_search.max_seconds = std::min(config.max_seconds, 10.0);
  for (const Mutation& mutation : mutants) {
    const SearchResult result = search(program, mutation, short_search);
    if (result.finding.has_value())
      return Control{mutation_name(mutation), result.exploration.counterexample->found_after};
  }
  return std::nullopt;
}

Expected<Execution> replay(const Program& program, const Mutation& mutation,
                           std::string_view schedule, machine::RunRecord* record) {
  ASSAY_TRY(const machine::Schedule parsed, machine::parse_schedule(schedule));
  machine::ReplayReport report;
  machine::MachineParts parts;
  parts.scheduler = machine::replay_schedule(&parsed, &report);
  parts.observer = record;
  Execution done = program.run(mutation, with_memory(std::move(parts), program));
  ASSAY_CHECK(machine::replay_fitted(parsed, report));
  return done;
}

Execution run_default(const Program& program, const Mutation& mutation) {
  machine::MachineParts parts;
  parts.scheduler = std::make_unique<machine::FirstChoices>();
  return program.run(mutation, with_memory(std::move(parts), program));
}

std::span<const MustShow> must_show(Protocol) { return kMustShow; }

void add_statistics(ProgramSetup& setup, std::int32_t words) {
  setup.group.num_statistics = words;
  std::int32_t next = 1000;
  for (Round& round : setup.rounds) {
    round.statistics.assign(static_cast<std::size_t>(setup.group.ep_size), {});
    for (std::vector<std::int32_t>& told : round.statistics)
      for (std::int32_t i = 0; i < words; ++i) told.push_back(++next);
  }
}

Expected<ProgramSetup> setup_of(Protocol protocol, const MustShow& what, const Hole* hole) {
  const bool other = hole != nullptr && !hole->case_text.empty() && what.name == "a";
  ASSAY_TRY(const MoeCase moe_case,
            parse_moe_case(other ? hole->case_text : what.case_text, MoeCase{}));
  const bool moving = hole != nullptr && hole->variant == Variant::kMovingRows;
  ASSAY_TRY(CaseRounds rounds, rounds_of_case(moe_case, moving));
  ProgramSetup setup;
  setup.protocol = protocol;
  setup.group = std::move(rounds.setup);
  setup.rounds = std::move(rounds.rounds);
  setup.group_size = what.group_size;
  setup.ctas = what.ctas;
  if (protocol == Protocol::kFence) setup.parts_log2 = what.parts_log2;
  setup.resident_ctas = what.resident_ctas;
  setup.sequential = what.sequential;
  setup.variant = what.variant;
  if (protocol == Protocol::kFence && what.statistics > 0) add_statistics(setup, what.statistics);
  if (hole != nullptr) {
    if (hole->variant != Variant::kNone) setup.variant = hole->variant;
    setup.kernels = hole->kernels;
  }
  return setup;
}

}  // namespace assay::verify
