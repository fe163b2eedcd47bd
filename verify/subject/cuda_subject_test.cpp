// The CUDA subject under every kind of stress, and the benchmark's numbers, on this machine's GPUs.
// Without one there is nothing to run, and the program says so to Meson (exit code 77).
#define CATCH_CONFIG_RUNNER
#include <cstdlib>

#include "cuda/launch/communicator.hpp"
#include "model/core/testing.hpp"
#include "verify/bench/bench.hpp"
#include "verify/subject/cuda_pool.hpp"
#include "verify/subject/subject.hpp"
#include "verify/suites/suites.hpp"
#if __has_include(<catch2/catch_session.hpp>)
#include <catch2/catch_session.hpp>
#endif

namespace assay::verify {
namespace {

std::vector<std::string> places() {
  if (cuda::device_count() < 4) return {"ranks=emulated"};
  return {"ranks=emulated", "ranks=devices"};
}

// Every kind of stress leaves the bits alone; groups of one place follow each other.
TEST_CASE("rounds under stress conform", "[CUD-4.2][CUD-5.1][CUD-5.3][CUD-5.4]") {
  const auto subject = load_subject("cuda");
  REQUIRE(subject.has_value());
  for (const std::string& place : places())
    for (const char* stress :
         {"", " delay_us=200", " skew_us=200", " graph=1", " replays=20",
          " graph=1 replays=3 delay_us=20", " first_epoch=4294967290", " slots=ordered",
          " overlap=1 graph=1 replays=3", " threads=0", " threads=96"}) {
      SuiteOptions options;
      options.budget_seconds = 0;
      options.subject_options = place + stress;
      const auto result = run_suite("rounds", *subject, options);
      REQUIRE(result.has_value());
      INFO(options.subject_options << "\n" << to_text(result->report));
      CHECK(result->report.verdict == Verdict::kConforms);
    }
}

TEST_CASE("a benchmark's row is timed, bounded by its ceiling and checked",
          "[VER-20.2][VER-20.5][VER-20.6]") {
  if (cuda::device_count() < 2) return;
  bench::BenchOptions options;
  options.devices = {0, 1};
  options.repeats = 2;
  options.sentinel = false;
  options.nccl = false;
  const auto model = bench::find_model("deepseek_v3");
  REQUIRE(model.has_value());
  const auto ids = bench::perfect_router(*model, 2, 512);
  REQUIRE(ids.has_value());
  const auto result = bench::run_bench(
      options, {{*model, 512, moe::Recipe::kBf16, "perfect_router", {*ids, *ids}}});
  INFO((result ? "" : result.error().sentence));
  REQUIRE(result.has_value());
  const bench::BenchRow& row = result->rows.at(0);
  REQUIRE(row.fence.has_value());
  CHECK(row.checked_tokens > 0);
  CHECK(result->floors.fence > result->floors.sentinel);
  CHECK(row.fence->round > result->floors.fence);
  CHECK(row.fence->dispatch > 0.97 * row.dispatch_ceiling);
  CHECK(row.fence->combine > 0.97 * row.combine_ceiling);
  CHECK(row.fence->round < 1.2 * (row.fence->dispatch + row.fence->combine));
}

}  // namespace
}  // namespace assay::verify

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  // Before CUDA starts, as the command does for somebody's kernels (SPEC VER-1.8).
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  assay::verify::separate_queues();
  if (assay::cuda::device_count() == 0) return kSkipped;
  return Catch::Session().run(argc, argv);
}
