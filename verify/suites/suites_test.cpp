// Suites can say MISTRUSTED and UNSUPPORTED, and a failing case ends as a line that fails again.
#include "verify/suites/suites.hpp"

#include <set>
#include <string>

#include "model/core/testing.hpp"
#include "verify/subject/broken_subject.hpp"

namespace assay::verify {
namespace {

using testing::broken_subject;

Subject example() { return broken_subject({}); }

// Spoils one row whenever a block has two: the smallest failing case needs two tokens.
Subject swapping_subject() {
  return broken_subject({.after_dispatch = [](const assay_round& r, std::int64_t) {
    for (int dst = 0; dst < testing::config().ep_size; ++dst) {
      for (int src = 0; src < testing::config().ep_size; ++src) {
        if (r.recv_counters[dst][src] < 2) continue;
        for (int p = 0; p < r.num_payloads; ++p) {
          const auto x = testing::recv_row(r, p, dst, src, 0);
          const auto y = testing::recv_row(r, p, dst, src, 1);
          std::swap_ranges(x.begin(), x.end(), y.begin());
        }
      }
    }
  }});
}

TEST_CASE("suites are named once, and their needs are counts that exist", "[VER-4.3]") {
  std::set<std::string_view> names;
  for (const Suite& suite : suites()) {
    CHECK(names.insert(suite.name).second);
    CHECK(!suite.title.empty());
    CHECK(!suite.needs.empty());
    CHECK(!suite.cases.empty());
    for (const std::string& line : suite.cases) {
      const auto c = parse_moe_case(line, MoeCase{});
      INFO(line);
      REQUIRE(c.has_value());
    }
  }
  const auto unknown = find_suite("speed");
  REQUIRE(!unknown.has_value());
  CHECK(unknown.error().sentence.find("suite is \"speed\"; allowed are dispatch, ") == 0);
}

TEST_CASE("a suite that did not see what it is for is MISTRUSTED and says what is missing",
          "[VER-4.2]") {
  // The same axes without their oddity: uniform routing of one pick has no duplicates.
  Suite suite = **find_suite("duplicates");
  suite.axes.routing = Axes::Routing::kUniform;
  suite.cases = {"ep=2 experts=4 top_k=1 hidden=8 max_tokens=2 tokens=2 rounds=1 seed=1"};
  suite.random_cases = false;
  auto result = run_suite(suite, example());
  REQUIRE(result.has_value());
  CHECK(result->report.verdict == Verdict::kMistrusted);
  REQUIRE(result->report.reasons.size() == 1);
  CHECK(result->report.reasons[0] ==
        "vacuous: 0 duplicate_picks were exercised; the suite needs at least 1");
  result = run_suite(suite, example(), {.allow_vacuous = true});
  CHECK(result->report.verdict == Verdict::kConforms);
}

TEST_CASE("a case that routes nothing is MISTRUSTED, whatever the suite", "[VER-4.2]") {
  MoeCase nothing;
  nothing.tokens = {0};
  const auto result = run_suite("dispatch", example(), {.only = nothing});
  REQUIRE(result.has_value());
  CHECK(result->report.verdict == Verdict::kMistrusted);
}

TEST_CASE("a subject that serves no case of a suite is UNSUPPORTED with its reason", "[VER-4.2]") {
  const auto result = run_suite("combine_f32", example());
  REQUIRE(result.has_value());
  CHECK(result->report.verdict == Verdict::kUnsupported);
  REQUIRE(!result->report.reasons.empty());
  CHECK(result->report.reasons[0].find("only bf16 rows") == 0);
}

TEST_CASE("a failing case is made smaller and its REPRO line fails again", "[VER-6.4]") {
  const auto result = run_suite("dispatch", swapping_subject());
  REQUIRE(result.has_value());
  REQUIRE(result->report.verdict == Verdict::kMismatch);
  REQUIRE(result->failing.has_value());
  CHECK(print(*result->failing) ==
        "ep=1 experts=1 top_k=1 hidden=1 max_tokens=2 tokens=2 rounds=1 seed=1");
  CHECK(result->report.repro.print() ==
        "assay verify --suite dispatch --case \"" + print(*result->failing) +
            "\" --recipe bf16 --profile assay-oneside --subject broken --seed 1");
  const auto again = run_suite("dispatch", swapping_subject(), {.only = *result->failing});
  REQUIRE(again.has_value());
  CHECK(again->report.verdict == Verdict::kMismatch);
  CHECK(to_text(again->report) == to_text(result->report));
}

TEST_CASE("what is reported happened in the case that is reported, be it once", "[VER-6.4]") {
  int spoilt = 2;  // the first case, and one smaller one
  const Subject race = broken_subject({.after_dispatch = [&](const assay_round& r, std::int64_t) {
    if (spoilt-- > 0) r.recv_counters[0][0] += 1;
  }});
  const auto result = run_suite("dispatch", race);
  REQUIRE(result.has_value());
  REQUIRE(result->report.verdict == Verdict::kMismatch);
  REQUIRE(!result->report.mismatches.empty());
  CHECK(result->report.mismatches.front().check == "dispatch.counters");
}

TEST_CASE("a profile without what a suite is about is unsupported there, not a mistake",
          "[VER-3.1]") {
  const auto profile = moe::find_combine_profile("flashinfer-oneside@0.6.0");
  REQUIRE(profile.has_value());
  const auto subject = load_subject("sim");
  REQUIRE(subject.has_value());
  const auto result = run_suite("combine_fp8", *subject, {.profile = *profile});
  REQUIRE(result.has_value());
  CHECK(result->report.verdict == Verdict::kUnsupported);
  CHECK(result->report.reasons ==
        std::vector<std::string>{"profile flashinfer-oneside@0.6.0 has no low-precision combine"});
}

}  // namespace
}  // namespace assay::verify
