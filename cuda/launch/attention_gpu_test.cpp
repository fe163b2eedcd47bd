// The prefill kernel on a GPU against the model, bit for bit; decode_gpu_test.cpp is the same for
// the decode kernel. Without a Hopper device there is nothing to run, and the program says so to
// Meson (exit code 77). ASSAY_ATTENTION_CASES says how many random cases of each are run.
#define CATCH_CONFIG_RUNNER
#include "cuda/launch/attention_gpu_cases.hpp"
#if __has_include(<catch2/catch_session.hpp>)
#include <catch2/catch_session.hpp>
#endif

namespace assay::cuda {
namespace {

using attention::MaskKind;
using testing::cases;
using testing::GpuCase;
using testing::GpuProblem;
using testing::Layout;
using testing::random_cases;
using testing::Source;
using testing::Values;

std::string verdict(const GpuCase& c, int times = 1) {
  return GpuProblem(c).run_and_compare(times);
}

TEST_CASE("one small problem of each kernel has the model's bits", "[CUD-6.1][CUD-6.6][CUD-6.8]") {
  for (const int dim : {64, 128, 256}) {
    for (const Dtype dtype : {Dtype::kBf16, Dtype::kF16, Dtype::kF8E4m3}) {
      if (dtype == Dtype::kF8E4m3 && dim == 64) continue;
      for (const Source source : {Source::kOff, Source::kLambda}) {
        for (const bool decisions : {false, true}) {
          GpuCase c;
          c.dtype = dtype;
          c.head_dim = dim;
          c.q_heads = 2;
          c.q_lens = {200};  // more than a block of three units
          c.kv_lens = {512};
          c.source = source;
          c.thresholds = {0.01f};
          c.contrast = 20;
          c.decisions = decisions;
          c.seed = static_cast<unsigned>(dim);
          INFO(c);
          REQUIRE(verdict(c) == "");
        }
      }
    }
  }
}

TEST_CASE("random problems have the model's bits, decisions and counters",
          "[CUD-6.2][CUD-6.3][CUD-6.4][CUD-6.5][CUD-6.6]") {
  std::int64_t skipped = 0, kept = 0;
  const auto one = [&](const GpuCase& c) {
    GpuProblem problem(c);
    const std::string difference = problem.run_and_compare();
    skipped += problem.skipped();
    kept += problem.kept();
    return difference;
  };
  const rc::Gen<GpuCase> gen = cases(false);
  // By hand rather than by prop(): a kernel that went wrong is not run again to shrink its case.
  const testing::CaseNumbers numbers = random_cases();
  for (int i = numbers.begin; i < numbers.end; ++i) {
    const GpuCase c = gen(rc::Random(static_cast<std::uint64_t>(i)), 100).value();
    INFO("case " << i << ": " << c);
    REQUIRE(one(c) == "");
  }
  if (numbers.end - numbers.begin < 50) return;  // few cases need not have both
  CHECK(skipped > 0);
  CHECK(kept > 0);
}

TEST_CASE("constructed high and low tiles are kept and skipped as they were made", "[CUD-6.6]") {
  GpuCase c;
  c.q_heads = 4;
  c.kv_heads = 2;
  c.head_dim = 128;
  c.q_lens = {200};
  c.kv_lens = {2048};
  c.source = Source::kLambda;
  c.thresholds = {1e-3f};
  c.spread = 0.1f;
  c.contrast = 40;
  GpuProblem problem(c);
  CHECK(problem.run_and_compare() == "");
  CHECK(problem.skipped() > 0);
  CHECK(problem.kept() > 0);
}

// Rare orders of the roles show only in thousands of tiles.
TEST_CASE("long sequences of skipped tiles have the model's bits", "[CUD-6.4][CUD-6.6]") {
  for (const float lambda : {1e-3f, 0.3f}) {
    GpuCase c;
    c.q_heads = 16;
    c.head_dim = 128;
    c.q_lens = {320};
    c.kv_lens = {20000};
    c.source = Source::kLambda;
    c.thresholds = {lambda};
    c.contrast = lambda < 0.01f ? 40 : 4;
    c.decisions = false;
    GpuProblem problem(c);
    INFO(c);
    REQUIRE(problem.run_and_compare(20) == "");
    CHECK(problem.skipped() > 500);
  }
}

TEST_CASE("heads that lie more than 2^31 elements apart are read where they lie", "[CUD-6.5]") {
  GpuCase c;
  c.q_heads = 4;
  c.kv_heads = 2;
  c.head_dim = 128;
  c.q_lens = {130};
  c.kv_lens = {300};
  c.k_head_stride = (std::int64_t{1} << 31) + 64;
  CHECK(verdict(c) == "");
}

TEST_CASE("a hundred runs give the same bits", "[CUD-6.4][CUD-6.9]") {
  GpuCase c;
  c.kv_heads = 2;
  c.head_dim = 128;
  c.q_lens = {700, 300};
  c.kv_lens = {1500, 900};
  c.mask = MaskKind::kCausal;
  c.source = Source::kLambda;
  c.thresholds = {0.05f, 0.05f};
  c.contrast = 8;
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kF8E4m3}) {
    for (const int q_heads : {6, 8}) {  // by blocks alone, and by clusters of two
      c.dtype = dtype;
      c.q_heads = q_heads;
      INFO(dtype_name(dtype) << " " << q_heads);
      CHECK(verdict(c, 100) == "");
    }
  }
}

TEST_CASE("a recorded launch is replayed with other lengths and thresholds", "[CUD-6.7]") {
  GpuCase c;
  c.q_heads = 2;
  c.head_dim = 64;
  c.q_lens = {100, 150};
  c.kv_lens = {1600, 1500};
  c.layout = Layout::kPadded;
  c.source = Source::kLambdas;
  c.thresholds = {0.5f, 0.5f};
  c.contrast = 10;
  c.decisions = false;
  GpuProblem skipping(c);
  REQUIRE(skipping.run_and_compare() == "");
  REQUIRE(skipping.skipped() > 0);
  c.thresholds = {0, 0};
  GpuProblem problem(c);
  REQUIRE(problem.run_and_compare() == "");
  const std::vector<std::uint16_t> dense = problem.out();
  CHECK((skipping.out() != dense));
  auto stream = OwnStream::make();
  REQUIRE(stream.has_value());
  REQUIRE(problem.upload().has_value());
  Graph graph;
  const Status recorded = graph.record(*stream, [&] { return problem.launch(stream->stream()); });
  INFO((recorded ? "" : recorded.error().sentence));
  REQUIRE(recorded.has_value());
  const auto replay = [&](const std::vector<float>& thresholds) {
    void* const array = const_cast<float*>(problem.call().threshold_values);
    REQUIRE(
        copy_to_device(array, thresholds.data(), thresholds.size() * sizeof(float), "thresholds")
            .has_value());
    REQUIRE(graph.launch(*stream).has_value());
    REQUIRE(problem.finish(*stream).has_value());
    REQUIRE(problem.download().has_value());
    return problem.out();
  };
  CHECK((replay({0, 0}) == dense));
  CHECK((replay({0.5f, 0.5f}) == skipping.out()));
  CHECK((replay({0, 0}) == dense));
}

TEST_CASE("the comparison notices a kernel that decides otherwise", "[CUD-6.6]") {
  GpuCase c;
  c.head_dim = 128;
  c.q_lens = {64};
  c.kv_lens = {1024};
  c.source = Source::kLambdas;
  c.thresholds = {0.01f};
  c.contrast = 20;
  GpuProblem problem(c);
  const attention::Profile& profile = problem.profile();
  auto emulator = attention::Emulator::make(profile, problem.problem());
  auto expected = attention::emulate(profile, problem.problem(), {4});
  REQUIRE(problem.run().has_value());
  REQUIRE(problem.compare(*emulator, *expected) == "");
  expected->out[77] ^= 1;
  CHECK(problem.compare(*emulator, *expected).find("out of request 0 row 0 head 0 element 77") ==
        0);
  expected->out[77] ^= 1;
  expected->lse[3].bits ^= 1;
  CHECK(problem.compare(*emulator, *expected).find("lse of request 0 row 3") == 0);
  expected->lse[3].bits ^= 1;
  expected->units[0].tiles[2].decision =
      expected->units[0].tiles[2].decision == attention::Decision::kKept
          ? attention::Decision::kSkipped
          : attention::Decision::kKept;
  CHECK(problem.compare(*emulator, *expected).find("decision of unit row 0 tile 2") == 0);
}

}  // namespace
}  // namespace assay::cuda

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  int device = 0, major = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      major != 9)
    return kSkipped;
  return Catch::Session().run(argc, argv);
}
