// A single case of the attention suite, as a REPRO line or a user gives it: trusted no more than a
// cell of the table, and never a reason to accuse a kernel that is right.
#include <set>

#include "verify/attention/check.hpp"
#include "verify/attention/suite_testing.hpp"

namespace {

using namespace assay;
using namespace assay::verify;
using namespace assay::verify::testing;
using State = AttentionCell::State;

}  // namespace

TEST_CASE("a case that is repeated and shows nothing says so", "[VER-23.2][VER-23.5]") {
  const attention::Profile& profile = profile_named("assay-prefill-sm90");
  const auto replay = [&](const char* property, const AttentionCase& c,
                          const AttentionSubject& subject = simulated_attention()) {
    AttentionSuiteOptions options = quick();
    options.only = c;
    return run_attention_cell(property_named(property), profile, subject, options);
  };
  const AttentionFunction right("right", emulated);
  const auto case_of = [](const char* line) {
    const auto parsed = parse_attention_case(line);
    REQUIRE(parsed.has_value());
    return *parsed;
  };
  // The property's own case is as good when it is repeated as it was the first time.
  const AttentionCase good = property_named("trace").cases(profile)[0];
  for (const AttentionSubject* subject :
       {&simulated_attention(), static_cast<const AttentionSubject*>(&right)})
    CHECK(replay("trace", good, *subject).state == State::kHolds);
  CHECK_FALSE(replay("trace", good).turned_by.empty());
  // One key: there is one tile, and it is kept.
  for (const AttentionSubject* subject :
       {&simulated_attention(), static_cast<const AttentionSubject*>(&right)}) {
    const AttentionCell cell = replay("trace", case_of("q=1 kv=1 lambda=0.5"), *subject);
    CHECK(cell.state == State::kMistrusted);
    CHECK(cell.reason == "no tile was skipped");
  }
  // No row: nothing is compared, whatever the property is about.
  for (const AttentionSubject* subject :
       {&simulated_attention(), static_cast<const AttentionSubject*>(&right)}) {
    const AttentionCell cell = replay("repeat", case_of("q=0 kv=64"), *subject);
    CHECK(cell.state == State::kMistrusted);
    CHECK(cell.reason == "no call has a query row, so nothing was compared");
  }
  // Tiles are kept and skipped, and yet no wrong kernel would show: there is no second head.
  const AttentionCell alone = replay("heads_alone", case_of("q=1 kv=300 lambda=0.01 contrast=30"));
  CAPTURE(alone.reason, cell_name(alone.state));
  CHECK(alone.state == State::kMistrusted);
  CHECK(alone.reason.find("on this case") != std::string::npos);
  // Without a key there is nothing to look at, and scores beyond f32 are no look: not the subject's
  // fault.
  CHECK(replay("one_hot", case_of("q=3 kv=0"), right).state == State::kUnsupported);
  const AttentionCell senseless = replay("one_hot", case_of("q=2 kv=9 scale=1e4"), right);
  CAPTURE(senseless.reason, cell_name(senseless.state));
  CHECK(senseless.state == State::kMistrusted);
  CHECK(senseless.reason.find("the profile's own emulation") != std::string::npos);
  // By design violated, but not here: not "holds".
  const AttentionCell unseen = replay("chunked_factor", case_of("q=2 kv=2"));
  CHECK(unseen.state == State::kMistrusted);
  CHECK(unseen.reason.find("does not show it") != std::string::npos);
  // The report repeats the case, and --allow-vacuous takes it.
  AttentionTable table;
  table.subject = "sim";
  table.options.only = case_of("q=1 kv=1 lambda=0.5");
  const Property& trace = property_named("trace");
  table.properties = {&trace};
  table.profiles = {&profile};
  table.cells = {replay("trace", *table.options.only)};
  CHECK(table.verdict() == Verdict::kMistrusted);
  CHECK(worst_report(table, "").repro.print().find(print(*table.options.only)) !=
        std::string::npos);
  table.options.allow_vacuous = true;
  CHECK(table.verdict() == Verdict::kConforms);
}

TEST_CASE("no case, however odd, makes a right subject wrong", "[VER-23.5]") {
  const AttentionFunction right("right", emulated);
  std::set<State> states;
  for (const char* name : {"assay-prefill-sm90", "assay-decode-sm90", "modelopt-triton"}) {
    const attention::Profile& profile = profile_named(name);
    for (const char* line :
         {"q=1 kv=1", "q=0 kv=0", "q=0 kv=5", "q=3 kv=0", "q=1 kv=1 dim=16/1",
          "q=5 kv=1 mask=causal", "q=2 kv=2 heads=2/1 dim=16 mask=causal lambda=0.5",
          "q=1 kv=2 mask=window:1 factor=0", "q=0,1 kv=0,1 factor=0.1",
          "q=70 kv=157 heads=3/1 page=16 lambda=0.1",
          "q=1,1,1 kv=1,0,300 splits=9 lambda=0.9 contrast=4 block=7",
          "q=2 kv=9 mask=chunked:3 scale=1e4 contrast=90", "q=2 kv=9 scale=1e-40 contrast=90",
          "q=1 kv=3 align=top_left mask=causal", "q=1 kv=64 custom=1 dtype=F8_E4M3 dim=32",
          "q=0,3 kv=7,9 lambda=2"}) {
      const auto parsed = parse_attention_case(line);
      CAPTURE(name, line);
      REQUIRE(parsed.has_value());
      for (const Property& property : properties()) {
        AttentionSuiteOptions options = quick();
        options.only = *parsed;
        const AttentionCell cell = run_attention_cell(property, profile, right, options);
        CAPTURE(property.name, cell.reason);
        REQUIRE(cell.state != State::kMismatch);
        states.insert(cell.state);
      }
    }
  }
  CHECK(states == std::set<State>{State::kHolds, State::kNotApplicable, State::kNotPromised,
                                  State::kUnsupported, State::kMistrusted});
}

TEST_CASE("why one case was declined is not told of a cell that ran the others", "[VER-23.5]") {
  Property property = property_named("trace");
  property.cases = [](const attention::Profile& p) {
    return std::vector<AttentionCase>{
        check::with(check::usual_case(p), [](AttentionCase& c) { c.dtype = Dtype::kBf16; }),
        check::usual_case(p)};
  };
  const AttentionFunction wrong(
      "wrong", [](const attention::Profile& p, const attention::Problem& problem, int threads) {
        if (problem.dtype == Dtype::kBf16)
          return AttentionRun{AttentionRun::State::kUnsupported, "not today", {}};
        AttentionRun run = emulated(p, problem, threads);
        run.answer.out[0] ^= 1;
        return run;
      });
  const AttentionCell cell =
      run_attention_cell(property, profile_named("assay-prefill-sm90"), wrong, quick());
  REQUIRE(cell.state == State::kMismatch);
  CHECK(cell.declined == 1);
  CHECK(cell.reason.empty());
}

// A subject that skips nothing has the outputs that these properties speak of.
TEST_CASE("properties of skipping are not served by a subject that reports no decisions",
          "[VER-23.5]") {
  const AttentionFunction dense(
      "dense", [](const attention::Profile& p, const attention::Problem& problem, int threads) {
        attention::Problem without = problem;
        for (attention::Request& r : without.requests) r.threshold = {};
        AttentionRun run = emulated(p, without, threads);
        run.answer.decision.reset();
        run.answer.visited = run.answer.skipped = std::nullopt;
        return run;
      });
  std::set<std::string_view> served, seen;
  for (const char* const name : {"modelopt-triton", "paper"}) {
    const attention::Profile& profile = profile_named(name);
    for (const Property& property : properties()) {
      if (!property.about_skipping || property.name == "large_offsets") continue;
      const AttentionCell cell = run_attention_cell(property, profile, dense, quick());
      if (cell.state == State::kNotPromised || cell.state == State::kNotApplicable) continue;
      CAPTURE(name, property.name, cell.reason);
      if (!property.by_decisions) {
        if (cell.state == State::kHolds) served.insert(property.name);
        continue;
      }
      CHECK((cell.state == State::kUnsupported || cell.state == State::kMismatch));
      if (cell.state == State::kUnsupported)
        CHECK(cell.reason == "the subject reports no decisions");
      seen.insert(property.name);
    }
  }
  for (const std::string_view name :
       {"trace", "veto", "padding_vote", "masked_tiles", "tie", "own_length", "heads_alone",
        "lambda_above_one", "certificate", "chunked", "thresholds", "lambda_zero", "shift",
        "counts"}) {
    CAPTURE(name);
    CHECK(seen.count(name) == 1);
  }
  // What says nothing of tiles is asked nevertheless.
  for (const std::string_view name : {"ones", "paged", "repeat"}) CHECK(served.count(name) == 1);
  AttentionTable table = run_attention_suite(dense, std::vector{&profile_named("modelopt-triton")},
                                             std::vector{&property_named("trace")}, quick());
  CHECK(table.verdict() == Verdict::kUnsupported);
}

// A property makes its own data of a case, which somebody's masks and lengths can undo.
TEST_CASE("on a case of somebody's choice the profile itself is at worst mistrusted",
          "[VER-23.5]") {
  const char* lines[] = {
      "q=4 kv=300 lambda=0.02 contrast=8",
      "q=4 kv=300 factor=2 contrast=8 custom=1",
      "q=4 kv=130 page=3 lambda=0.02 contrast=8",
      "q=5 kv=300 heads=4/2 mask=window:20 lambda=0.3 contrast=8 block=50",
      "q=5,2 kv=300,40 mask=chunked:7 lambda=0.02 contrast=2",
      "q=9 kv=5 mask=causal align=top_left lambda=0.02",
      "q=130 kv=200 mask=causal align=top_left lambda=0.5 contrast=8 block=64",
      "q=0,3 kv=7,0 lambda=20",
  };
  AttentionSuiteOptions options = quick();
  options.flips = false;
  std::set<std::string_view> undone;
  for (const char* line : lines) {
    const auto c = parse_attention_case(line);
    REQUIRE(c.has_value());
    options.only = *c;
    for (const char* name : {"assay-prefill-sm90", "assay-decode-sm90", "trtllm-fmha_v2-sm90"})
      for (const Property& property : properties()) {
        CAPTURE(line, name, property.name);
        const AttentionCell cell =
            run_attention_cell(property, profile_named(name), simulated_attention(), options);
        REQUIRE(cell.state != State::kMismatch);
        if (cell.reason.find("own emulation breaks") == std::string::npos) continue;
        REQUIRE(cell.state == State::kMistrusted);
        undone.insert(property.name);
      }
  }
  CHECK(undone.count("one_hot") == 1);
  // These make of any case what they ask about.
  for (const char* name : {"own_length", "large_offsets", "groups", "paged", "repeat"}) {
    CAPTURE(name);
    CHECK(undone.count(name) == 0);
  }
}

TEST_CASE("lambdas and pages and custom masks of a case stay what they are", "[VER-23.5]") {
  const auto cell = [](const char* property, const char* line) {
    const auto c = parse_attention_case(line);
    REQUIRE(c.has_value());
    AttentionSuiteOptions options = quick();
    options.only = *c;
    return run_attention_cell(property_named(property), profile_named("assay-prefill-sm90"),
                              simulated_attention(), options);
  };
  CHECK(cell("own_length", "q=4 kv=300 lambda=0.02 contrast=8").state == State::kUnsupported);
  const AttentionCell pages = cell("large_offsets", "q=4 kv=130 page=3 lambda=0.02 contrast=8");
  CHECK(pages.state == State::kHolds);
  CHECK(pages.turned_by == "offsets_in_32_bits");
  CHECK(cell("groups", "q=4 kv=300 heads=4/2 custom=1 contrast=8").state == State::kHolds);
}
