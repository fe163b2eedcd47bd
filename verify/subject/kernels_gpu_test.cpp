// Somebody's kernels on this machine's GPUs: the example conforms under every kind of stress, each
// of its faults is found for what it is, and one that never ends ends nothing else. The program's
// main is cuda_subject_test.cpp's, and the example lies beside the program.
#include <filesystem>
#include <string>
#include <vector>

#include "cuda/launch/communicator.hpp"
#include "model/core/testing.hpp"
#include "model/moe/profile.hpp"
#include "verify/bench/bench.hpp"
#include "verify/subject/subject.hpp"
#include "verify/suites/suites.hpp"

namespace assay::verify {
namespace {

const std::string kExample =
    "kernels:" +
    (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "example_kernels.so").string();

Expected<SuiteResult> run_example(std::string_view suite, const std::string& subject_options,
                                  SuiteOptions options = {}) {
  const auto subject = load_subject(kExample);
  REQUIRE(subject.has_value());
  options.budget_seconds = 0;
  options.profile = &moe::default_combine_profile();
  options.subject_options = subject_options;
  return run_suite(suite, *subject, options);
}

TEST_CASE("the example's kernels conform, whoever waits for whom", "[VER-1.8][CUD-5.5]") {
  std::vector<std::string> places{"ranks=emulated"};
  if (cuda::device_count() >= 8) places.emplace_back("ranks=devices");  // as the cases have ranks
  for (const std::string& place : places)
    for (const char* stress : {"", " graph=1", " replays=3", " skew_us=300",
                               " graph=1 replays=3 skew_us=50", " keep_recv=1"})
      for (const char* suite : {"rounds", "sizes", "dying_ranks", "combine_bf16"}) {
        const auto result = run_example(suite, place + stress);
        INFO(suite << " " << place << stress << (result ? "" : result.error().sentence));
        REQUIRE(result.has_value());
        INFO(to_text(result->report));
        CHECK(result->report.verdict == Verdict::kConforms);
      }
}

TEST_CASE("each fault of the example is found by the check that is about it",
          "[VER-1.8][CUD-5.5]") {
  struct Fault {
    const char *option, *suite, *check, *says;
  };
  for (const Fault& fault : {Fault{"fault=1", "rounds", "dispatch.rows", ""},
                             Fault{"fault=2", "rounds", "dispatch.rows", ""},
                             Fault{"fault=3", "combine_bf16", "combine.bits", ""},
                             Fault{"fault=4", "rounds", "dispatch.padding", ""},
                             Fault{"fault=6", "rounds", "progress", "wrote beyond its"}}) {
    const auto result = run_example(fault.suite, std::string("ranks=emulated ") + fault.option);
    INFO(fault.option << (result ? "" : result.error().sentence));
    REQUIRE(result.has_value());
    INFO(to_text(result->report));
    REQUIRE(result->report.verdict == Verdict::kMismatch);
    bool found = false;
    for (const Mismatch& mismatch : result->report.mismatches)
      found = found || (mismatch.check == fault.check &&
                        mismatch.sentence.find(fault.says) != std::string::npos);
    CHECK(found);
  }
}

TEST_CASE("a bad option of a library is the caller's mistake, an unknown one skips",
          "[VER-1.8][CUD-5.6]") {
  const auto bad = run_example("rounds", "fault=9");
  REQUIRE(!bad.has_value());
  CHECK(bad.error().sentence.find("\"fault=9\"; allowed are 1 to 6") != std::string::npos);
  const auto unknown = run_example("rounds", "speed=1");
  REQUIRE(unknown.has_value());
  CHECK(unknown->report.verdict == Verdict::kUnsupported);
  SuiteOptions options;
  options.only = *parse_moe_case(
      "ep=4 experts=32 top_k=8 hidden=64 max_tokens=5 tokens=5 rounds=2 seed=3", MoeCase{});
  const auto declined = run_example("invalid", "valid_ids=1", options);
  REQUIRE(declined.has_value());
  REQUIRE(declined->report.verdict == Verdict::kUnsupported);
  CHECK(declined->report.reasons.at(0).find("which names none of 32 experts") != std::string::npos);
  CHECK(run_example("invalid", "", options)->report.verdict == Verdict::kConforms);
}

TEST_CASE("the example is timed beside ours on one GPU, and has no time with a wrong byte",
          "[VER-20.7][VER-20.8]") {
  bench::BenchOptions options;
  options.devices = {0, 0};
  options.emulated = true;
  options.repeats = 2;
  options.kernels = kExample;
  options.kernels_profile = "assay-oneside";
  const auto model = bench::find_model("gpt_oss");
  REQUIRE(model.has_value());
  const auto ids = bench::perfect_router(*model, 2, 8);
  REQUIRE(ids.has_value());
  const auto run = [&](const char* kernels_options) {
    options.kernels_options = kernels_options;
    return bench::run_bench(options,
                            {{*model, 8, moe::Recipe::kBf16, "perfect_router", {*ids, *ids}}});
  };
  const auto result = run("");
  INFO((result ? "" : result.error().sentence));
  REQUIRE(result.has_value());
  CHECK(result->foreign_name == "example-kernels");
  CHECK(result->ceilings.empty());
  CHECK(result->floors.fence == 0);
  const bench::BenchRow& row = result->rows.at(0);
  CHECK(row.foreign_reason == "");
  CHECK(row.foreign_rounds.size() == 2);
  REQUIRE(row.fence.has_value());
  CHECK(row.dispatch_ceiling == 0);
  const auto wrong = run("fault=2");
  REQUIRE(wrong.has_value());
  CHECK(wrong->rows.at(0).foreign_rounds.empty());
  CHECK(wrong->rows.at(0).foreign_reason.find("arrived with other bytes") != std::string::npos);
  const auto bad = run("fault=9");
  REQUIRE(!bad.has_value());
  CHECK(bad.error().sentence.find("allowed are 1 to 6") != std::string::npos);
}

// The example's own waits end after eight seconds, and trap.
TEST_CASE("a round that does not end is told, and nothing is judged behind it",
          "[.hang][CUD-5.5]") {
  const auto hung = run_example("rounds", "ranks=emulated timeout_ms=500 fault=5");
  REQUIRE(hung.has_value());
  INFO(to_text(hung->report));
  REQUIRE(hung->report.verdict == Verdict::kMismatch);
  CHECK(hung->report.mismatches.front().check == "progress");
  CHECK(hung->report.mismatches.front().sentence.find("has not ended within 500 ms") !=
        std::string::npos);
  const auto behind = run_example("rounds", "ranks=emulated");
  REQUIRE(behind.has_value());
  REQUIRE(behind->report.verdict == Verdict::kUnsupported);
  CHECK(behind->report.reasons.at(0).find("has not ended; the rest needs another process") !=
        std::string::npos);
}

}  // namespace
}  // namespace assay::verify
