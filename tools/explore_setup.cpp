// From the words of the command line to searches and programs, and back to a line that repeats one.
// Decides defaults and spellings.
#include <fmt/format.h>

#include <bit>

#include "model/core/text.hpp"
#include "tools/explore.hpp"
#include "traces/readers/readers.hpp"
#include "traces/replay/rounds.hpp"

namespace assay::tools {
namespace {

using machine::Boundary;
using machine::ExploreConfig;
using machine::Search;
using verify::ProgramSetup;
using verify::Protocol;

constexpr std::uint64_t kDefaultExecutions = 10000;  // random, pct
constexpr double kDefaultSeconds = 60;               // bounded, exhaustive

template <class T>
struct Named {
  std::string_view name;
  T value;
};
constexpr Named<Search> kSchedulers[] = {{"random", Search::kRandom},
                                         {"pct", Search::kPct},
                                         {"bounded", Search::kBounded},
                                         {"exhaustive", Search::kExhaustive}};
constexpr Named<verify::Variant> kStops[] = {{"start", verify::Variant::kFirstRankSilent},
                                             {"combine", verify::Variant::kFirstRankLeaves}};
constexpr Named<Boundary> kBoundaries[] = {
    {"ptx", Boundary::kPtx}, {"flush", Boundary::kFlush}, {"pdl", Boundary::kPdl}};

template <class T, std::size_t N>
Expected<T> parse_named(std::string_view flag, const OptionalText& text, const Named<T> (&table)[N],
                        T otherwise) {
  if (!text) return otherwise;
  std::vector<std::string> names;
  for (const Named<T>& entry : table) {
    if (entry.name == *text) return entry.value;
    names.emplace_back(entry.name);
  }
  return bad_input(fmt::format("{} is {}; allowed are {}", flag, in_quotes(*text), joined(names)));
}

template <class T, std::size_t N>
std::string name_in(const Named<T> (&table)[N], T value) {
  for (const Named<T>& entry : table)
    if (entry.value == value) return std::string(entry.name);
  return "";
}

}  // namespace

std::string scheduler_name(Search search) { return name_in(kSchedulers, search); }

Expected<ExploreConfig> parse_config(const ExploreArguments& from) {
  ExploreConfig config;
  ASSAY_TRY(config.search,
            parse_named("--scheduler", from.scheduler, kSchedulers, Search::kExhaustive));
  ASSAY_TRY(config.seed, integer_or<std::uint64_t>("--seed", from.seed, 0, ~std::uint64_t{0}, 1));
  const bool draws = config.search == Search::kRandom || config.search == Search::kPct;
  if (!from.budget) {
    if (draws) config.max_executions = kDefaultExecutions;
    if (!draws) config.max_seconds = kDefaultSeconds;
    return config;
  }
  std::string_view number = *from.budget;
  const bool seconds = !number.empty() && number.back() == 's';
  if (seconds) number.remove_suffix(1);
  const auto value = parse_integer<std::uint64_t>("--budget", number, 1, 1'000'000'000'000);
  if (!value)
    return bad_input(fmt::format("--budget is {}; allowed are executions (10000) or seconds (60s)",
                                 in_quotes(*from.budget)));
  if (seconds) config.max_seconds = static_cast<double>(*value);
  if (!seconds) config.max_executions = *value;
  return config;
}

namespace {

// One selected (step, layer) of captured routing, at a hidden size that can be explored.
Status read_routing(const ExploreArguments& from, ProgramSetup& setup) {
  ASSAY_TRY(const traces::Trace trace, traces::read_trace(*from.routing));
  traces::RoundsSetup rounds_setup;
  ASSAY_TRY(rounds_setup.ep_size, integer_or<std::int32_t>("--ep", from.ep, 1, 256, 4));
  ASSAY_TRY(rounds_setup.hidden_size,
            integer_or<std::int32_t>("--hidden", from.hidden, 1, 4096, 8));
  ASSAY_TRY(const IndexRange steps, parse_range("--steps", from.steps));
  ASSAY_TRY(const IndexRange layers, parse_range("--layers", from.layers));
  rounds_setup.steps = {steps.begin, from.steps ? steps.end : steps.begin + 1};
  rounds_setup.layers = {layers.begin, from.layers ? layers.end : layers.begin + 1};
  ASSAY_TRY(const traces::Rounds rounds, traces::Rounds::make(trace, rounds_setup));
  setup.group = rounds.group();
  for (std::int64_t step = 0; step < rounds.num_steps(); ++step)
    for (std::int32_t layer = 0; layer < rounds.num_layers(); ++layer)
      rounds.fill(step, layer, setup.rounds.emplace_back());
  return Done{};
}

Status parse_stops(const ExploreArguments& from, ProgramSetup& setup) {
  ASSAY_TRY(setup.variant, parse_named("--stops", from.stops, kStops, setup.variant));
  return Done{};
}

Status parse_sizes(const ExploreArguments& from, ProgramSetup& setup) {
  const auto size = [](const char* name, const OptionalText& text, std::uint32_t max,
                       std::uint32_t& into) -> Status {
    ASSAY_TRY(into, integer_or<std::uint32_t>(name, text, 1, max, into));
    return Done{};
  };
  ASSAY_CHECK(size("--lanes", from.lanes, 1024, setup.group_size));
  ASSAY_CHECK(size("--ctas", from.ctas, 1024, setup.ctas));
  if (from.parts) {
    if (setup.protocol != Protocol::kFence)
      return bad_input("--parts goes with fence: by Sentinel no CTAs share a row (SPEC KER-2.7)");
    std::uint32_t parts = 1;
    ASSAY_CHECK(size("--parts", from.parts, 16, parts));
    if (!std::has_single_bit(parts))
      return bad_input(fmt::format("--parts is {}; allowed are 1, 2, 4, 8 and 16", parts));
    setup.parts_log2 = static_cast<std::uint32_t>(std::countr_zero(parts));
  }
  return size("--resident", from.resident, 0xFFFFFFFFu, setup.resident_ctas);
}

}  // namespace

Expected<Subject> parse_mutant(const OptionalText& name, Protocol protocol) {
  Subject subject;
  if (!name) return subject;
  subject.hole = verify::find_hole(*name);
  if (subject.hole == nullptr) {
    ASSAY_TRY(subject.mutation, verify::parse_mutation(*name));
  } else if (subject.hole->protocol != protocol) {
    return bad_input(fmt::format("the mutant {} is one of {}; the protocol is {}", in_quotes(*name),
                                 verify::protocol_name(subject.hole->protocol),
                                 verify::protocol_name(protocol)));
  }
  return subject;
}

Expected<std::vector<Wanted>> wanted_programs(const ExploreArguments& from, Protocol protocol,
                                              const Subject& subject) {
  std::vector<Wanted> wanted;
  ASSAY_TRY(const Boundary boundary,
            parse_named("--boundary", from.boundary, kBoundaries, Boundary::kPtx));
  const auto add = [&](const verify::MustShow* what, ProgramSetup setup,
                       std::string case_text) -> Status {
    setup.protocol = protocol;
    setup.boundary = boundary;
    ASSAY_CHECK(parse_stops(from, setup));
    if (from.stops && subject.hole != nullptr && subject.hole->variant != verify::Variant::kNone)
      return bad_input(
          fmt::format("the mutant {} is a misuse of its own; --stops does not go with "
                      "it",
                      in_quotes(*from.mutant)));
    if (subject.hole != nullptr) {
      if (subject.hole->variant != verify::Variant::kNone) setup.variant = subject.hole->variant;
      setup.kernels = subject.hole->kernels;
    }
    ASSAY_CHECK(parse_sizes(from, setup));
    if (from.statistics) {
      if (protocol != Protocol::kFence)
        return bad_input("--statistics goes with fence: Sentinel carries none (SPEC KER-1.8)");
      ASSAY_TRY(const std::int32_t words,
                integer_or<std::int32_t>("--statistics", from.statistics, 1, 1024, 1));
      verify::add_statistics(setup, words);
    }
    wanted.push_back({what, std::move(setup), std::move(case_text)});
    return Done{};
  };
  if (from.routing) {
    if (from.case_text)
      return bad_input("--routing and --case both say what is explored; allowed is one of them");
    ProgramSetup setup;
    ASSAY_CHECK(read_routing(from, setup));
    ASSAY_CHECK(add(nullptr, std::move(setup), *from.routing));
    return wanted;
  }
  const auto searches = verify::must_show(protocol);
  if (from.case_text) {
    ASSAY_TRY(const MoeCase defaults, parse_moe_case(searches[0].case_text, MoeCase{}));
    MoeCase loose = defaults;
    loose.tokens = {1};
    ASSAY_TRY(const MoeCase moe_case, parse_moe_case(*from.case_text, loose));
    const bool moving =
        subject.hole != nullptr && subject.hole->variant == verify::Variant::kMovingRows;
    ASSAY_TRY(verify::CaseRounds rounds, verify::rounds_of_case(moe_case, moving));
    ProgramSetup setup;
    setup.group = std::move(rounds.setup);
    setup.rounds = std::move(rounds.rounds);
    ASSAY_CHECK(add(nullptr, std::move(setup), print(moe_case)));
    return wanted;
  }
  for (const verify::MustShow& what : searches) {
    if (what.random_executions != 0) continue;  // of the table of mutants
    ASSAY_TRY(ProgramSetup setup, verify::setup_of(protocol, what, subject.hole));
    ASSAY_CHECK(add(&what, std::move(setup), std::string(what.case_text)));
  }
  return wanted;
}

std::string repro_of(const ExploreArguments& from, const verify::MustShow* what,
                     const std::string& schedule) {
  verify::Repro repro;
  repro.verb = "explore";
  repro.arguments = {*from.protocol};
  const auto add = [&](const char* flag, const OptionalText& text, std::string otherwise = "") {
    if (text) otherwise = *text;
    if (!otherwise.empty()) repro.flags.emplace_back(flag, otherwise);
  };
  add("--routing", from.routing);
  add("--ep", from.ep);
  add("--steps", from.steps);
  add("--layers", from.layers);
  add("--hidden", from.hidden);
  add("--case", from.case_text, what == nullptr ? "" : std::string(what->case_text));
  const auto number = [&](std::uint64_t value, std::uint64_t absent) {
    return what == nullptr || value == absent ? std::string() : std::to_string(value);
  };
  add("--lanes", from.lanes, what == nullptr ? "" : number(what->group_size, 1));
  add("--ctas", from.ctas, what == nullptr ? "" : number(what->ctas, 0));
  add("--resident", from.resident, what == nullptr ? "" : number(what->resident_ctas, 0xFFFFFFFFu));
  const bool fence = *from.protocol == "fence";
  add("--parts", from.parts,
      what != nullptr && fence ? number(1u << what->parts_log2, 1) : std::string());
  const bool tells = what != nullptr && fence;
  add("--statistics", from.statistics,
      tells ? number(static_cast<std::uint64_t>(what->statistics), 0) : "");
  add("--stops", from.stops, what == nullptr ? "" : name_in(kStops, what->variant));
  add("--boundary", from.boundary);
  add("--mutant", from.mutant);
  if (schedule.empty()) {
    add("--scheduler", from.scheduler);
    add("--budget", from.budget);
    add("--seed", from.seed);
    add("--jobs", from.jobs);  // each job has a seed of its own
  } else {
    repro.flags.emplace_back("--schedule", schedule);
  }
  return repro.print();
}

}  // namespace assay::tools
