// The suite of attention checked: every cell is as predicted and turned, every mutant is caught by
// the property that should, and a suite that proves nothing says so.
#include "verify/attention/suite.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "verify/attention/check.hpp"
#include "verify/attention/judge.hpp"
#include "verify/attention/suite_testing.hpp"

namespace {

using namespace assay;
using namespace assay::verify;
using namespace assay::verify::testing;
using State = AttentionCell::State;

template <class T>
std::vector<const T*> pointers(std::span<const T> list) {
  std::vector<const T*> out;
  for (const T& one : list) out.push_back(&one);
  return out;
}

}  // namespace

TEST_CASE("every cell of properties and profiles is as predicted, and something turns it",
          "[long][VER-23.1][VER-23.2]") {
  const auto rows = pointers(properties());
  const auto columns = pointers(attention::profiles());
  const AttentionTable table = run_attention_suite(simulated_attention(), columns, rows, quick());
  REQUIRE(table.cells.size() == rows.size() * columns.size());
  std::set<std::string_view> held, broken;
  for (const AttentionCell& cell : table.cells) {
    CAPTURE(cell.property->name, cell.profile->name, cell.reason, cell_name(cell.state));
    CHECK((cell.state == State::kHolds || cell.state == State::kViolated ||
           cell.state == State::kNotApplicable));
    CHECK(cell.declined == 0);
    if (cell.state == State::kNotApplicable) continue;
    CHECK(cell.cases > 0);
    CHECK_FALSE(cell.turned_by.empty());
    if (cell.state == State::kHolds && cell.property->about_skipping &&
        !cell.profile->skip.dense_only) {
      CHECK(cell.coverage.kept > 0);
      CHECK(cell.coverage.skipped > 0);
    }
    (cell.state == State::kHolds ? held : broken).insert(cell.property->name);
  }
  CHECK(table.verdict() == Verdict::kConforms);
  CHECK(held.size() == rows.size());  // no property is impossible
  CHECK(broken.size() >= 16);
  // Ours violate nothing but what needs one decision for several heads or pieces.
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const bool pieces = rows[i]->name == "chunked_factor", heads = rows[i]->name == "heads_alone";
    CHECK((table.at(i, 0).state == State::kViolated) == pieces);
    CHECK((table.at(i, 1).state == State::kViolated) == (pieces || heads));
  }
  const std::string text = to_text(table);
  CHECK(text.find("violated by design") != std::string::npos);
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    CHECK(end - begin <= 160);
    begin = end + 1;
  }
  CHECK(to_json(table).size() == table.cells.size());
}

TEST_CASE("every mutant is caught by the property that should, and not by all",
          "[long][VER-24.1][VER-24.2]") {
  AttentionSuiteOptions options = quick();
  options.flips = false;
  CHECK(attention_mutants().size() >= 40);
  for (const AttentionMutant& mutant : attention_mutants()) {
    const attention::Profile& profile = profile_named(mutant.profile);
    const auto wrong = mutant_subject(mutant);
    CAPTURE(mutant.name, mutant.property, mutant.profile);
    REQUIRE((mutant.change == nullptr) != (mutant.fault == nullptr));
    const bool bits = mutant.property == kBitsProperty;
    const AttentionCell cell = run_attention_cell(property_named(bits ? "truth" : mutant.property),
                                                  profile, *wrong, options);
    REQUIRE(cell.state == State::kMismatch);
    if (bits) {
      // Nothing but the comparison with the profile sees it.
      REQUIRE(cell.finding->bits.has_value());
      REQUIRE_FALSE(cell.finding->violation.has_value());
    } else {
      REQUIRE(cell.finding->violation.has_value());
    }
    // Its case repeats it.
    AttentionSuiteOptions again = options;
    again.only = cell.finding->c;
    const AttentionCell repeated = run_attention_cell(*cell.property, profile, *wrong, again);
    REQUIRE(repeated.state == State::kMismatch);
    // Where the fault's need is absent, nothing is found: refusals look at no value, and equal
    // scores at neither refusals nor LSE.
    const bool mean = mutant.property == "refused" || profile.skip.dense_only;
    const AttentionCell other =
        run_attention_cell(property_named(mean ? "mean" : "refused"), profile, *wrong, options);
    REQUIRE(other.cases > 0);
    REQUIRE_FALSE((other.finding && other.finding->violation));
  }
}

TEST_CASE("names of properties and mutants are unique and refer to each other",
          "[VER-23.2][VER-24.2]") {
  std::set<std::string_view> names;
  for (const Property& property : properties()) {
    CAPTURE(property.name);
    REQUIRE(names.insert(property.name).second);
    REQUIRE_FALSE(property.flips.empty());
    for (const std::string_view flip : property.flips)
      REQUIRE(find_attention_mutant(flip).has_value());
  }
  names.clear();
  for (const AttentionMutant& mutant : attention_mutants()) {
    CAPTURE(mutant.name);
    REQUIRE(names.insert(mutant.name).second);
    if (mutant.property == kBitsProperty) continue;
    const Prediction prediction =
        property_named(mutant.property).predict(profile_named(mutant.profile));
    REQUIRE(prediction.cell == Prediction::Cell::kHolds);
  }
  REQUIRE_FALSE(find_property("unity").has_value());
  REQUIRE(find_property("unity").error().sentence.find("one_hot") != std::string::npos);
  REQUIRE_FALSE(find_attention_mutant("none").has_value());
}

TEST_CASE("a cell that skips nothing, that nothing turns, or that was predicted wrong is told",
          "[VER-23.1][VER-23.2]") {
  const attention::Profile& profile = profile_named("assay-prefill-sm90");
  Property property = property_named("trace");
  const auto state = [&] {
    return run_attention_cell(property, profile, simulated_attention(), quick()).state;
  };
  REQUIRE(state() == State::kHolds);
  // Cases without a threshold.
  property = property_named("truth");
  property.random = false;
  property.cases = [](const attention::Profile& p) {
    return std::vector<AttentionCase>{
        check::with(check::usual_case(p), [](AttentionCase& c) { c.threshold = {}; })};
  };
  REQUIRE(state() == State::kMistrusted);
  // A mutant that cannot violate it.
  property = property_named("trace");
  property.flips = {"lse_of_dense_sum"};
  REQUIRE(state() == State::kMistrusted);
  // Said to be violated, and is not.
  property = property_named("trace");
  property.predict = [](const attention::Profile&) {
    return violated("skip.strict = true", "ATT-4.3", [](attention::Profile&) {});
  };
  REQUIRE(state() == State::kMismatch);
  // Said to hold, and does not.
  property = property_named("chunked_factor");
  property.predict = [](const attention::Profile&) { return holds(); };
  REQUIRE(state() == State::kMismatch);
  // Violated, and by another field than the one that is named.
  property.predict = [](const attention::Profile&) {
    return violated("skip.strict = true", "ATT-4.3",
                    [](attention::Profile& p) { p.skip.strict = false; });
  };
  REQUIRE(state() == State::kMistrusted);
}

TEST_CASE("a subject is held to its profile's promises and bits, and no others", "[VER-23.5]") {
  const attention::Profile& xqa = profile_named("trtllm-xqa-sm90");
  const attention::Profile& ours = profile_named("assay-decode-sm90");
  const AttentionFunction right("right", emulated);
  AttentionSuiteOptions options = quick();
  REQUIRE(run_attention_cell(property_named("trace"), ours, right, options).state == State::kHolds);
  REQUIRE(run_attention_cell(property_named("splits"), xqa, right, options).state ==
          State::kNotPromised);
  REQUIRE(run_attention_cell(property_named("lse"), xqa, right, options).state ==
          State::kNotApplicable);
  // Every property holds of a kernel that computes another profile, but its bits do not.
  const AttentionFunction other(
      "other", [&](const attention::Profile&, const attention::Problem& problem, int threads) {
        return emulated(profile_named("trtllm-fmha_v2-sm90"), problem, threads);
      });
  const AttentionCell cell = run_attention_cell(
      property_named("trace"), profile_named("assay-prefill-sm90"), other, options);
  REQUIRE(cell.state == State::kMismatch);
  REQUIRE(cell.finding->bits.has_value());
  REQUIRE_FALSE(cell.finding->violation.has_value());

  const AttentionFunction declines(
      "declines", [](const attention::Profile&, const attention::Problem&, int) {
        return AttentionRun{AttentionRun::State::kUnsupported, "not today", {}};
      });
  const AttentionCell declined =
      run_attention_cell(property_named("trace"), ours, declines, options);
  REQUIRE(declined.state == State::kUnsupported);
  REQUIRE(declined.reason == "not today");
  CHECK(declined.coverage.runs == 0);
  CHECK(declined.coverage.kept == 0);
  AttentionTable table;
  table.properties = {declined.property};
  table.profiles = {&ours};
  table.cells = {declined};
  CHECK(to_text(worst_report(table, "")).find("\nCOMPARED   nothing\n") != std::string::npos);
  const AttentionFunction fails(
      "fails", [](const attention::Profile&, const attention::Problem&, int) {
        return AttentionRun{AttentionRun::State::kFailed, "illegal address", {}};
      });
  const AttentionCell failed = run_attention_cell(property_named("trace"), ours, fails, options);
  REQUIRE(failed.state == State::kMismatch);
  REQUIRE(failed.finding->violation->sentence.find("illegal address") != std::string::npos);
}

TEST_CASE("a failing random case is replaced by a smaller one, and the report repeats it",
          "[VER-22.3][VER-23.5]") {
  Property property = property_named("truth");
  property.cases = [](const attention::Profile&) { return std::vector<AttentionCase>{}; };
  const attention::Profile& profile = profile_named("assay-prefill-sm90");
  const auto wrong = mutant_named("eight_lanes");
  AttentionSuiteOptions options = quick();
  options.budget_seconds = 20;
  const AttentionCell cell = run_attention_cell(property, profile, *wrong, options);
  REQUIRE(cell.state == State::kMismatch);
  const AttentionCase& c = cell.finding->c;
  CAPTURE(print(c));
  REQUIRE(c.q.size() == 1);
  REQUIRE(c.q[0] == 1);
  REQUIRE(c.kv[0] <= 2);
  REQUIRE(c.q_heads == 1);
  AttentionTable table;
  table.subject = "plugin:mine.so";
  table.properties = {&property};
  table.profiles = {&profile};
  table.cells = {cell};
  const Report report = worst_report(table, "");
  REQUIRE(report.verdict == Verdict::kMismatch);
  const std::string line = report.repro.print();
  REQUIRE(line.find("--suite attention.truth") != std::string::npos);
  REQUIRE(line.find("--profile assay-prefill-sm90") != std::string::npos);
  REQUIRE(line.find("--subject plugin:mine.so") != std::string::npos);
  REQUIRE(line.find(print(c)) != std::string::npos);
}

TEST_CASE("random cases of every profile are within the bound of fp64",
          "[long][VER-23.3][VER-23.4]") {
  AttentionSuiteOptions options = quick();
  options.flips = false;
  options.budget_seconds = 100;  // each; not reached
  options.random_cases_max = 200;
  const auto columns = pointers(attention::profiles());
  const std::vector<const Property*> rows = {&property_named("truth")};
  AttentionSuiteOptions all = options;
  all.budget_seconds = options.budget_seconds * static_cast<double>(columns.size());
  const AttentionTable table = run_attention_suite(simulated_attention(), columns, rows, all);
  std::int64_t cases = 0;
  for (const AttentionCell& cell : table.cells) {
    CAPTURE(cell.profile->name, cell.finding ? print(cell.finding->c) : "");
    REQUIRE(cell.state == State::kHolds);
    cases += cell.cases;
  }
  REQUIRE(cases > 3000);
}

// The places where implementations differ on purpose: the same inputs, other bits or decisions; and
// the judge names whose they are.
TEST_CASE("profiles that must differ do, and the judge names the right one", "[VER-23.1]") {
  struct Pair {
    const char* what;
    const char* mine;
    const char* other;
    const char* property;  // whose first case is taken, and which tells the two apart if promised
    std::function<void(AttentionCase&)> change;
    std::function<void(Built&)> prepare;
    bool other_judges = true;
  };
  const Pair pairs[] = {
      {"lambda above 1", "assay-prefill-sm90", "trtllm-fmha_v2-sm90", "forgets", {}, {}},
      {"lambda above 1, switch", "trtllm-xqa-sm90", "trtllm-xqa-sm90@nofix", "forgets", {}, {}},
      {"masked tiles counted", "assay-prefill-sm90", "trtllm-fmha_v2-sm90", "masked_tiles", {}, {}},
      {"padding vetoes",
       "assay-prefill-sm90",
       "trtllm-fmha_v2-sm90",
       "padding_vote",
       [](AttentionCase& c) {  // what is left out shows in bits
         c.contrast = 6;
         c.threshold.value = 0.02f;
       },
       {}},
      {"split count",
       "assay-decode-sm90",
       "trtllm-xqa-sm90",
       "splits",
       [](AttentionCase& c) { c.splits = 3; },
       {}},
      // Unsplit: three chunks with a maximum each, of which the second is low, or one run of tiles.
      {"chunks of keys",
       "assay-decode-sm90",
       "trtllm-xqa-sm90",
       "splits",
       [](AttentionCase& c) { c.block = 2048; },
       {}},
      // Scores are exactly 0 or 30 nats lower: at lambda 1 every tile but the low ones is a tie.
      // The
      // other profile leaves out all of them, so that its own judge has nothing to hold rows
      // against.
      {"tie", "assay-prefill-sm90", "modelopt-pytorch", "tie",
       [](AttentionCase& c) {
         c.threshold = {attention::Threshold::Kind::kLambda, 1.0f};
       },
       [](Built& b) {
         for (std::int32_t d = 1; d < b.q.dim; ++d) check::set_q_column(b, d, 0);
       },
       false},
  };
  for (const Pair& pair : pairs) {
    const attention::Profile& mine = profile_named(pair.mine);
    const attention::Profile& other = profile_named(pair.other);
    const Property& property = property_named(pair.property);
    AttentionCase c = property.cases(mine)[0];
    if (pair.change) pair.change(c);
    const BuiltPtr b = build(c);
    if (pair.prepare) pair.prepare(*b);
    const AttentionRun run = emulated(mine, b->problem, 1);
    REQUIRE(run.state == AttentionRun::State::kOk);
    CAPTURE(pair.what, print(c));
    AttentionOutputs outputs{run.answer.out, {}, &*run.answer.decision};
    const auto right = judge_attention(mine, b->problem, outputs);
    REQUIRE(right.has_value());
    CHECK((right->verdict == AttentionVerdict::kBitEqual ||
           right->verdict == AttentionVerdict::kWithinGrade));
    // Where the other has other units, decisions cannot be compared, and bits are.
    const AttentionRun its = emulated(other, b->problem, 1);
    if (its.answer.decision->extents != run.answer.decision->extents) outputs.decision = nullptr;
    const auto wrong = judge_attention(other, b->problem, outputs);
    REQUIRE(wrong.has_value());
    CHECK((wrong->verdict == AttentionVerdict::kOtherProfile ||
           wrong->verdict == AttentionVerdict::kWrong) == pair.other_judges);
    if (mine.grade <= Grade::kBitsClaimed && pair.other_judges) {
      CHECK(wrong->verdict == AttentionVerdict::kOtherProfile);
      CHECK(std::find(wrong->fitting.begin(), wrong->fitting.end(), pair.mine) !=
            wrong->fitting.end());
    }
    // A kernel of the one that is held to the other is found out on the same case, whichever of the
    // two promises the property.
    const auto promises = [&](const attention::Profile& p) {
      return property.predict(p).cell == Prediction::Cell::kHolds;
    };
    const attention::Profile& held = promises(mine) ? mine : other;
    const attention::Profile& kernel = promises(mine) ? other : mine;
    REQUIRE(promises(held));
    const AttentionFunction subject(
        std::string(kernel.name), [&](const attention::Profile&, const attention::Problem& problem,
                                      int threads) { return emulated(kernel, problem, threads); });
    AttentionSuiteOptions options = quick();
    options.only = c;
    CHECK(run_attention_cell(property, held, subject, options).state == State::kMismatch);
  }
}
