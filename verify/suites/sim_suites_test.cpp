// Our own kernels in the simulated machine: they pass every suite, no arithmetic passes for
// another, and every mutant is caught by the check that is named for it.
#include <algorithm>
#include <initializer_list>
#include <set>
#include <string>

#include "model/core/testing.hpp"
#include "verify/mutants/mutants.hpp"
#include "verify/subject/sim_subject.hpp"
#include "verify/suites/suites.hpp"

namespace assay::verify {
namespace {

TEST_CASE("the simulated kernels conform in every suite by Sentinel as well",
          "[KER-6.2][KER-6.3][KER-6.4][KER-6.6][KER-6.8][KER-6.9][KER-1.5]") {
  const auto subject = load_subject("sim");
  REQUIRE(subject.has_value());
  for (const char* options : {"protocol=sentinel", "protocol=auto sentinel_max_tokens=3"}) {
    for (const Suite& suite : suites()) {
      const bool by_turns = options[9] == 'a';
      if (by_turns && suite.all_profiles) continue;  // one round: there are no turns
      INFO(suite.name << " with " << options);
      SuiteOptions how{.budget_seconds = 0, .random_cases_max = 0};
      how.subject_options = options;
      const auto result = run_suite(suite.name, *subject, how);
      REQUIRE(result.has_value());
      INFO(to_text(result->report));
      // Rounds of 900,000 tokens would have slots for as many; statistics travel by Fence only.
      const bool declined =
          (suite.name == "large_offsets" || suite.name == "statistics") && !by_turns;
      CHECK(result->report.verdict == (declined ? Verdict::kUnsupported : Verdict::kConforms));
    }
  }
}

// Every suite of `names` on the simulated kernels, without random cases, under each of `options`.
void conform(std::initializer_list<const char*> names, std::initializer_list<const char*> options) {
  const auto subject = load_subject("sim");
  REQUIRE(subject.has_value());
  for (const char* option : options) {
    for (const char* name : names) {
      INFO(name << " with " << option);
      SuiteOptions how{.budget_seconds = 0, .random_cases_max = 0};
      how.subject_options = option;
      const auto result = run_suite(name, *subject, how);
      REQUIRE(result.has_value());
      INFO(to_text(result->report));
      CHECK(result->report.verdict == Verdict::kConforms);
    }
  }
}

TEST_CASE("groups of one thread and of a warp conform by Sentinel", "[KER-6.4][KER-6.5]") {
  conform({"sentinel", "sentinel_ones", "protocol_switch"},
          {"group_size=1 longest_run=1", "group_size=32", "group_size=3 resident_ctas=2"});
}

TEST_CASE(
    "the simulated kernels conform in every suite",
    "[VER-4.3][KER-1.1][KER-1.2][KER-1.3][KER-1.4][KER-1.5][KER-1.6][KER-1.7][KER-1.8][KER-1.9]"
    "[KER-2.3][KER-2.6]"
    "[KER-4.1][KER-4.2][KER-4.3]") {
  const auto subject = load_subject("sim");
  REQUIRE(subject.has_value());
  for (const Suite& suite : suites()) {
    INFO(suite.name);
    const auto result =
        run_suite(suite.name, *subject, {.budget_seconds = 2, .random_cases_max = 25});
    REQUIRE(result.has_value());
    INFO(to_text(result->report));
    CHECK(result->report.verdict == Verdict::kConforms);
  }
}

TEST_CASE("slots, statistics and lists do not depend on how many threads and groups there are",
          "[KER-1.7][KER-1.8][KER-1.9]") {
  conform({"ordered_slots", "ordered_masks", "statistics", "slot_lists", "sentinel_lists"},
          {"group_size=1 longest_run=1", "group_size=3", "group_size=32 resident_ctas=1"});
}

TEST_CASE("groups of several teams, whole and not, send every byte", "[KER-1.4][KER-2.7]") {
  conform({"dispatch", "payload_bytes", "payload_changes", "combine_bf16"},
          {"group_size=64", "group_size=70", "group_size=33"});
}

// The simulated kernels told to compute another profile than the driver demands.
const char* pretended = "";
int create_other(const assay_group_config* config, void** group, assay_message* message) {
  assay_group_config other = *config;
  other.profile = pretended;
  return simulated_subject().create(&other, group, message);
}

// Whether two arithmetics are one for rows of this type.
bool same_for(const moe::CombineArithmetic& a, const moe::CombineArithmetic& b, moe::Dtype dtype) {
  const bool f32_rows = dtype == moe::Dtype::kF32;  // the payload's type is f32 itself
  // 16-bit additions never flush; f32 additions of f16 values never meet a subnormal.
  const bool in_f32 = a.accumulate == moe::CombineArithmetic::Accumulate::kF32;
  const bool flush_matters = f32_rows || (dtype == moe::Dtype::kBf16 && in_f32);
  return (f32_rows || a.accumulate == b.accumulate) && a.holes == b.holes && a.trees == b.trees &&
         (a.flush_subnormals == b.flush_subnormals || !flush_matters);
}

TEST_CASE("no arithmetic passes for another in the combine suites", "[VER-4.3]") {
  const assay_subject table{
      ASSAY_SUBJECT_ABI_VERSION, sizeof(assay_subject),      "pretender", create_other,
      simulated_subject().run,   simulated_subject().destroy};
  const auto subject = Subject::wrap(&table, "pretender");
  REQUIRE(subject.has_value());
  int told_apart = 0;
  for (const char* name : {"combine_bf16", "combine_f16", "combine_f32"}) {
    const Suite& suite = **find_suite(name);
    for (const moe::CombineProfile& demanded : moe::combine_profiles()) {
      for (const moe::CombineProfile& computed : moe::combine_profiles()) {
        if (same_for(demanded.arithmetic, computed.arithmetic, suite.axes.dtype)) continue;
        pretended = computed.name.data();
        const auto result = run_suite(suite, *subject, {.profile = &demanded, .shrink = false});
        REQUIRE(result.has_value());
        if (result->report.verdict == Verdict::kUnsupported) continue;
        INFO(name << ": " << computed.name << " for " << demanded.name);
        INFO(to_text(result->report));
        CHECK(result->report.verdict == Verdict::kMismatch);
        if (result->report.verdict != Verdict::kMismatch) continue;
        CHECK(result->report.mismatches.front().check == "combine.bits");
        ++told_apart;
      }
    }
  }
  CHECK(told_apart >= 20);
}

// Cases without anything odd: what a fault needs is absent from one of them at least. Some need a
// value (-0, a subnormal), which one of the seeds does not draw.
bool harmless_somewhere(const Subject& subject) {
  for (const char* line : {"ep=1 experts=1 top_k=1 hidden=8 max_tokens=1 tokens=1 rounds=1",
                           "ep=4 experts=4 top_k=4 hidden=8 max_tokens=1 tokens=1 rounds=1",
                           "ep=2 experts=2 top_k=1 hidden=8 max_tokens=1 tokens=1 rounds=1"}) {
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
      auto c = parse_moe_case(line, MoeCase{});
      c->seed = seed;
      const auto scenario = make_scenario(*c);
      const auto outcome = run_scenario(subject, *scenario);
      if (outcome.has_value() && outcome->state == Outcome::State::kConforms) return true;
    }
  }
  return false;
}

TEST_CASE("every mutant is caught, by the check that is named for it", "[long][VER-4.4]") {
  for (const Mutant& mutant : mutants()) {
    INFO(mutant.name << ": " << mutant.title);
    const auto subject = load_subject("sim", mutant.name);
    REQUIRE(subject.has_value());
    std::string caught_in;
    std::set<std::string> by;
    for (const Suite& suite : suites()) {
      const auto result = run_suite(suite.name, *subject,
                                    {.budget_seconds = 1, .random_cases_max = 10, .shrink = false});
      REQUIRE(result.has_value());
      if (result->report.verdict != Verdict::kMismatch) continue;
      caught_in += std::string(suite.name) + " ";
      for (const Mismatch& mismatch : result->report.mismatches) by.insert(mismatch.check);
      if (by.count(mutant.caught_by) == 1) break;
    }
    std::string names;
    for (const std::string& check : by) names += check + " ";
    INFO("caught in " << caught_in << "by " << names << "and not by " << mutant.caught_by);
    CHECK(by.count(mutant.caught_by) == 1);
    if (mutant.needs[0] != '\0') CHECK(harmless_somewhere(*subject));
  }
}

}  // namespace
}  // namespace assay::verify
