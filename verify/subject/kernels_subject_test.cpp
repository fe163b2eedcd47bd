// The subject over somebody's kernels as it is, on a machine without a GPU: its threads, copies,
// poison, graphs and waits, around kernels that run on the host (host_kernels.cpp) in a runtime
// that stands in for CUDA's (stand_in_cuda.cpp). What a GPU does with real ones is
// kernels_gpu_test.cpp's.
#include "verify/subject/kernels_subject.hpp"

#include <optional>

#include "model/core/case_text.hpp"
#include "model/core/testing.hpp"
#include "model/moe/profile.hpp"
#include "verify/subject/subject.hpp"
#include "verify/suites/suites.hpp"

namespace assay::verify {
namespace {

Expected<SuiteResult> run_kernels(std::string_view suite, const std::string& subject_options,
                                  std::optional<MoeCase> only = std::nullopt) {
  const std::string spec = std::string("kernels:") + ASSAY_TEST_HOST_KERNELS;
  auto library = KernelsLibrary::open(spec);
  REQUIRE(library.has_value());
  const auto table = kernels_subject(*std::move(library));
  REQUIRE(table.has_value());
  const auto subject = Subject::wrap(*table, spec);
  REQUIRE(subject.has_value());
  SuiteOptions options;
  options.random_cases_max = 2;
  options.only = std::move(only);
  options.profile = &moe::default_combine_profile();
  options.subject_options = "ranks=emulated " + subject_options;
  return run_suite(suite, *subject, options);
}

TEST_CASE("right kernels conform, whatever their buffers hold and whoever enqueues them",
          "[VER-1.8][CUD-5.5]") {
  for (const char* stress : {"", "graph=1", "replays=2", "graph=1 replays=1 skew_us=20",
                             "keep_recv=1", "inrecv=1", "inrecv=1 replays=1"})
    for (const char* suite : {"rounds", "sizes", "dying_ranks", "invalid"}) {
      const auto result = run_kernels(suite, stress);
      INFO(suite << " " << stress << (result ? "" : result.error().sentence));
      REQUIRE(result.has_value());
      INFO(to_text(result->report));
      CHECK(result->report.verdict == Verdict::kConforms);
    }
}

TEST_CASE("buffers too wide to be read whole accuse nobody of padding ids", "[CUD-5.5]") {
  const auto c = parse_moe_case("ep=1 experts=2 top_k=1 hidden=1 max_tokens=13966 tokens=1", {});
  REQUIRE(c.has_value());
  const auto result = run_kernels("large_offsets", "", *c);  // 74 MB of wide rows
  REQUIRE(result.has_value());
  INFO(to_text(result->report));
  CHECK(result->report.verdict == Verdict::kConforms);
}

TEST_CASE("wrong kernels are found, and a library's words reach the user", "[VER-1.8][CUD-5.5]") {
  const auto first = [](const char* options) {
    const auto result = run_kernels("rounds", options);
    REQUIRE(result.has_value());
    REQUIRE(result->report.verdict == Verdict::kMismatch);
    const Mismatch& mismatch = result->report.mismatches.front();
    return mismatch.check + ": " + mismatch.sentence;
  };
  CHECK(first("fault=2").find("dispatch.rows: ") == 0);
  CHECK(first("keep_recv=1 fault=2").find("dispatch.rows: ") == 0);
  CHECK(first("fault=6").find("wrote beyond its") != std::string::npos);
  const auto bad = run_kernels("rounds", "fault=x");
  REQUIRE(!bad.has_value());
  CHECK(bad.error().sentence == "fault is no number");
  CHECK(run_kernels("rounds", "graph=2").error().sentence.find("graph") != std::string::npos);
  const auto unknown = run_kernels("rounds", "speed=1");
  REQUIRE(unknown.has_value());
  CHECK(unknown->report.verdict == Verdict::kUnsupported);
}

TEST_CASE("rounds that the options decline are skipped with the reason", "[CUD-5.5][CUD-5.6]") {
  const auto result = run_kernels("invalid", "valid_ids=1");
  REQUIRE(result.has_value());
  CHECK(result->skipped > 0);
  CHECK(result->report.verdict != Verdict::kMismatch);
  const auto few = run_kernels("rounds", "together=1");
  REQUIRE(few.has_value());
  CHECK(few->skipped > 0);
  CHECK(few->report.reasons.back().find("option together allows 1") != std::string::npos);
}

// Each of these is the last of its process.
std::string told_behind(const char* options, const std::string& says) {
  const auto broken = run_kernels("rounds", options);
  REQUIRE(broken.has_value());
  REQUIRE(broken->report.verdict == Verdict::kMismatch);
  INFO(to_text(broken->report));
  CHECK(broken->report.mismatches.front().check == "progress");
  CHECK(broken->report.mismatches.front().sentence.find(says) != std::string::npos);
  const auto behind = run_kernels("rounds", "");
  REQUIRE(behind.has_value());
  REQUIRE(behind->report.verdict == Verdict::kUnsupported);
  return behind->report.reasons.at(0);
}

TEST_CASE("behind a round that has not ended, nothing is judged", "[.hangs][CUD-5.5]") {
  CHECK(told_behind("timeout_ms=200 fault=5", "has not ended within 200 ms")
            .find("an earlier round of these kernels has not ended;") == 0);
}

TEST_CASE("behind a kernel that trapped, nothing is judged", "[.traps][CUD-5.5]") {
  CHECK(told_behind("fault=5", "unspecified launch failure")
            .find("an earlier round of these kernels left the device in error;") == 0);
}

}  // namespace
}  // namespace assay::verify
