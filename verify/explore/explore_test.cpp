// Explored programs: the right protocols are right under every schedule, everything that is taken
// from them is noticed, and a counterexample is a string that shows it again.
#include "verify/explore/explore.hpp"

#include <set>
#include <string>

#include "model/core/testing.hpp"

namespace assay::verify {
namespace {

using machine::Boundary;

Program program_of(Protocol protocol, const MustShow& what, Boundary boundary = Boundary::kPtx,
                   const Hole* hole = nullptr) {
  auto setup = setup_of(protocol, what, hole);
  REQUIRE(setup.has_value());
  setup->boundary = boundary;
  auto program = Program::make(*std::move(setup));
  REQUIRE(program.has_value());
  return *std::move(program);
}

machine::ExploreConfig exhaustive() {
  machine::ExploreConfig config;
  config.max_seconds = 60;
  config.minimise_executions = 0;
  return config;
}

const MustShow& named(Protocol protocol, std::string_view name) {
  for (const MustShow& what : must_show(protocol))
    if (what.name == name) return what;
  FAIL("no search " << std::string(name));
  return must_show(protocol)[0];
}

TEST_CASE("both protocols come through every search to its end, whatever a kernel's end orders",
          "[VER-8.1][VER-8.3][VER-8.5][KER-2.3][KER-2.4][KER-2.5][KER-6.4]") {
  for (const Protocol protocol : {Protocol::kFence, Protocol::kSentinel}) {
    for (const MustShow& what : must_show(protocol)) {
      if (what.random_executions != 0) continue;
      for (const Boundary boundary : {Boundary::kPtx, Boundary::kFlush, Boundary::kPdl}) {
        INFO(protocol_name(protocol) << " " << what.name << " " << boundary_name(boundary));
        const Program program = program_of(protocol, what, boundary);
        const SearchResult result = search(program, {}, exhaustive());
        INFO(machine::summary(result.exploration));
        INFO((result.finding.has_value() ? result.finding->sentence : ""));
        CHECK(result.exploration.exhausted);
        CHECK_FALSE(result.finding.has_value());
        CHECK(result.exploration.executions >= 1);
      }
    }
  }
}

TEST_CASE("a search that finds nothing in the protocol finds a missing fence in it", "[VER-8.5]") {
  for (const Protocol protocol : {Protocol::kFence, Protocol::kSentinel}) {
    for (const MustShow& what : must_show(protocol)) {
      if (what.random_executions != 0) continue;
      INFO(protocol_name(protocol) << " " << what.name);
      CHECK(find_control(program_of(protocol, what), exhaustive()).has_value());
    }
  }
  // One rank has nobody to be out of order with.
  auto rounds = rounds_of_case({.ep = 1, .experts = 1, .top_k = 1, .hidden = 2});
  REQUIRE(rounds.has_value());
  auto alone = Program::make({.group = rounds->setup, .rounds = rounds->rounds});
  REQUIRE(alone.has_value());
  CHECK(run_default(*alone, {}).finding.has_value() == false);
}

TEST_CASE("a counterexample replays from its string, and a string that does not fit is refused",
          "[VER-8.4]") {
  const Program program = program_of(Protocol::kFence, named(Protocol::kFence, "a"));
  const Mutation mutation{Site::kDispatchRelease, Weakening::kDrop};
  machine::ExploreConfig config = exhaustive();
  config.minimise_executions = 100;
  const SearchResult found = search(program, mutation, config);
  REQUIRE(found.finding.has_value());
  CHECK(found.finding->check == "explore.complete");
  CHECK(found.finding->coordinate("rank").has_value());
  const std::string& schedule = found.exploration.counterexample->schedule;
  const auto again = replay(program, mutation, schedule);
  REQUIRE(again.has_value());
  REQUIRE(again->finding.has_value());
  CHECK(again->finding->sentence == found.finding->sentence);
  CHECK_FALSE(replay(program, mutation, "t99").has_value());
  CHECK_FALSE(replay(program, mutation, "q").has_value());
}

TEST_CASE("every ordering mutant and every hole is killed, or listed as changing nothing",
          "[VER-8.6][VER-8.7][VER-8.8]") {
  for (const Protocol protocol : {Protocol::kFence, Protocol::kSentinel}) {
    MutantOptions options;
    options.minimise_executions = 0;
    options.trials = 0;
    const auto report = run_mutants(protocol, options);
    REQUIRE(report.has_value());
    INFO(protocol_name(protocol));
    for (const std::string& reason : report->reasons) CHECK(reason == "");
    CHECK(report->verdict == Verdict::kConforms);
    CHECK(report->killed >= 25);
  }
}

TEST_CASE("rounds that change between the protocols are right, and so are growing ones",
          "[VER-8.1][VER-8.2][KER-6.8]") {
  auto rounds = rounds_of_case({.ep = 2,
                                .experts = 2,
                                .top_k = 2,
                                .hidden = 4,
                                .max_tokens = 2,
                                .tokens = {2, 1},
                                .rounds = 3},
                               true);
  REQUIRE(rounds.has_value());
  for (const auto sentinel_max : {0, 1, 2}) {
    ProgramSetup setup;
    setup.protocol = Protocol::kSentinel;
    setup.group = rounds->setup;
    setup.rounds = rounds->rounds;
    setup.sentinel_max_tokens = sentinel_max;
    auto program = Program::make(setup);
    REQUIRE(program.has_value());
    machine::ExploreConfig config;
    config.search = machine::Search::kRandom;
    config.max_executions = 300;
    const SearchResult result = search(*program, {}, config);
    INFO(sentinel_max << ": " << (result.finding ? result.finding->sentence : ""));
    CHECK_FALSE(result.finding.has_value());
  }
}

TEST_CASE("when a rank stops, the others give up on it and touch nothing more",
          "[VER-8.9][KER-3.2][KER-3.3]") {
  for (const Protocol protocol : {Protocol::kFence, Protocol::kSentinel})
    for (const Variant variant : {Variant::kFirstRankSilent, Variant::kFirstRankLeaves}) {
      // As many experts as ranks and picks: every token goes everywhere, so everybody misses rank
      // 0.
      MustShow what{"", "", "ep=4 experts=4 top_k=4 hidden=6 max_tokens=3 tokens=2,3,1,3 rounds=3",
                    2, 2};
      what.variant = variant;
      const Program program = program_of(protocol, what);
      machine::ExploreConfig config;
      config.search = machine::Search::kRandom;
      config.max_executions = 300;
      const SearchResult result = search(program, {}, config);
      INFO(protocol_name(protocol) << ": " << (result.finding ? result.finding->sentence : ""));
      CHECK_FALSE(result.finding.has_value());
      // Only the failure's word and its particulars say so.
      CHECK(run_default(program, {Site::kStatusStore, Weakening::kDrop}).finding.has_value());
    }
  MustShow what{"", "", "ep=3 experts=3 top_k=1 hidden=2 max_tokens=1 tokens=1 rounds=1", 1, 1};
  what.variant = Variant::kFirstRankLeaves;
  auto setup = setup_of(Protocol::kSentinel, what, nullptr);
  REQUIRE(setup.has_value());
  const auto program = Program::make(*std::move(setup));
  REQUIRE_FALSE(program.has_value());
  CHECK(program.error().sentence.find("sends rank 0 nothing in round 0") != std::string::npos);
}

TEST_CASE("mutations have names that read back", "[VER-8.6]") {
  const Program program = program_of(Protocol::kFence, named(Protocol::kFence, "b"));
  std::set<std::string> names;
  for (const Mutation& mutation : ordering_mutants(run_default(program, {}).used)) {
    const std::string name = mutation_name(mutation);
    CHECK(names.insert(name).second);
    const auto back = parse_mutation(name);
    REQUIRE(back.has_value());
    CHECK(back->site == mutation.site);
    CHECK(back->how == mutation.how);
  }
  CHECK(names.count("DispatchRelease.drop") == 1);
  CHECK(names.count("DispatchTicket.relaxed") == 1);
  CHECK_FALSE(parse_mutation("DispatchRelease").has_value());
  CHECK_FALSE(parse_mutation("DispatchRelease.stronger").has_value());
  CHECK_FALSE(parse_mutation("Nowhere.drop").has_value());
}

TEST_CASE("programs that cannot be explored are refused with a sentence", "[VER-8.2]") {
  CHECK_FALSE(rounds_of_case({.ep = 2, .experts = 2, .hidden = 3, .tokens = {1, 1}}).has_value());
  auto rounds = rounds_of_case({.ep = 2, .experts = 8, .top_k = 8, .hidden = 2, .tokens = {1, 1}});
  REQUIRE(rounds.has_value());
  const auto program = Program::make({.group = rounds->setup, .rounds = rounds->rounds});
  REQUIRE_FALSE(program.has_value());
  CHECK(program.error().sentence.find("top_k is 8") != std::string::npos);
}

TEST_CASE("10000 random executions of 4 ranks, 3 tokens, 4 rounds find nothing",
          "[.long][VER-8.5]") {
  for (const Protocol protocol : {Protocol::kFence, Protocol::kSentinel}) {
    const MustShow what{"", "", "ep=4 experts=8 top_k=2 hidden=4 max_tokens=3 tokens=3 rounds=4",
                        1};
    machine::ExploreConfig config;
    config.search = machine::Search::kRandom;
    config.max_executions = 10000;
    const SearchResult result = search(program_of(protocol, what), {}, config);
    INFO((result.finding ? result.finding->sentence : ""));
    CHECK_FALSE(result.finding.has_value());
    CHECK(result.exploration.executions == 10000);
  }
}

}  // namespace
}  // namespace assay::verify
