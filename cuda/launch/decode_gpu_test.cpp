// The decode kernel on a GPU against the model, bit for bit. Part of attention_gpu_tests.
#include "cuda/launch/attention_gpu_cases.hpp"

namespace assay::cuda {
namespace {

using attention::MaskKind;
using testing::cases;
using testing::GpuCase;
using testing::GpuProblem;
using testing::Layout;
using testing::random_cases;
using testing::Source;

std::string verdict(const GpuCase& c, int times = 1) {
  return GpuProblem(c).run_and_compare(times);
}

GpuCase decode_case(std::vector<int> kv_lens) {
  GpuCase c;
  c.decode = true;
  c.q_heads = 16;
  c.kv_heads = 1;
  c.head_dim = 128;
  c.q_lens.assign(kv_lens.size(), 1);
  c.thresholds.assign(kv_lens.size(), 0.01f);
  c.kv_lens = std::move(kv_lens);
  c.mask = MaskKind::kCausal;
  return c;
}

TEST_CASE("one small decode of each kernel has the model's bits", "[CUD-7.1][CUD-7.4]") {
  for (const int dim : {64, 128, 256}) {
    for (const Dtype dtype : {Dtype::kBf16, Dtype::kF16, Dtype::kF8E4m3}) {
      if (dtype == Dtype::kF8E4m3 && dim == 64) continue;
      for (const int tokens : {1, 3}) {
        for (const Source source : {Source::kOff, Source::kLambda}) {
          for (const bool decisions : {false, true}) {
            for (const int kv_len : {512, 2200}) {  // one chunk, and two to merge
              GpuCase c = decode_case({kv_len});
              c.dtype = dtype;
              c.head_dim = dim;
              c.q_lens = {tokens};
              c.source = source;
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
  }
}

TEST_CASE("random decodes have the model's bits, decisions and counters",
          "[CUD-7.2][CUD-7.3][CUD-7.4][CUD-7.5]") {
  std::int64_t skipped = 0, kept = 0;
  const rc::Gen<GpuCase> gen = cases(true);
  // By hand rather than by prop(): a kernel that went wrong is not run again to shrink its case.
  const testing::CaseNumbers numbers = random_cases();
  for (int i = numbers.begin; i < numbers.end; ++i) {
    const GpuCase c = gen(rc::Random(static_cast<std::uint64_t>(i)), 100).value();
    INFO("case " << i << ": " << c);
    GpuProblem problem(c);
    REQUIRE(problem.run_and_compare() == "");
    skipped += problem.skipped();
    kept += problem.kept();
  }
  if (numbers.end - numbers.begin < 50) return;  // few cases need not have both
  CHECK(skipped > 0);
  CHECK(kept > 0);
}

TEST_CASE("neither blocks, splits nor the kernel's room for rows change a bit of a decode",
          "[CUD-7.2]") {
  GpuCase c = decode_case({6000, 4095, 100});
  c.q_heads = 8;
  c.kv_heads = 2;
  c.source = Source::kLambda;
  c.contrast = 8;
  for (const bool bounds : {true, false}) {  // without them the kernel for 64 rows runs
    c.bounds = bounds;
    c.decisions = bounds;
    for (const int blocks : {0, 1, 2, 5, 11, 100}) {
      for (const int chunks : {0, 1, 2, 3}) {
        c.blocks = blocks;
        c.chunks = chunks;
        INFO(c);
        REQUIRE(verdict(c) == "");
      }
    }
  }
}

TEST_CASE("constructed high and low tiles are kept and skipped by a decode as they were made",
          "[CUD-7.4]") {
  GpuCase c = decode_case({4096});
  c.source = Source::kLambda;
  c.thresholds = {1e-3f};
  c.spread = 0.1f;
  c.contrast = 40;
  GpuProblem problem(c);
  CHECK(problem.run_and_compare() == "");
  CHECK(problem.skipped() > 0);
  CHECK(problem.kept() > 0);
}

TEST_CASE("a hundred decodes give the same bits", "[CUD-7.3]") {
  GpuCase c = decode_case({9000, 3000, 2048, 1});
  c.q_heads = 32;
  c.kv_heads = 2;
  c.layout = Layout::kPaged;
  c.page_rows = 16;
  c.source = Source::kLambda;
  c.thresholds.assign(4, 0.05f);
  c.contrast = 8;
  CHECK(verdict(c, 100) == "");
}

TEST_CASE("a recorded decode is replayed with other thresholds", "[CUD-7.5]") {
  GpuCase c = decode_case({3000, 2500});
  c.layout = Layout::kPadded;
  c.source = Source::kLambdas;
  c.thresholds = {0, 0};
  c.contrast = 10;
  c.decisions = false;
  GpuProblem problem(c);
  REQUIRE(problem.run_and_compare() == "");
  const std::vector<std::uint16_t> dense = problem.out();
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
  CHECK(replay({0, 0}) == dense);
  CHECK(replay({0.5f, 0.5f}) != dense);
  CHECK(replay({0, 0}) == dense);
}

TEST_CASE("the comparison notices a decode that differs", "[CUD-7.4]") {
  GpuCase c = decode_case({2300});
  c.source = Source::kLambdas;
  c.contrast = 20;
  GpuProblem problem(c);
  auto emulator = attention::Emulator::make(problem.profile(), problem.problem());
  auto expected = attention::emulate(problem.profile(), problem.problem(), {4});
  REQUIRE(problem.run().has_value());
  REQUIRE(problem.compare(*emulator, *expected) == "");
  expected->out[77] ^= 1;
  CHECK(problem.compare(*emulator, *expected).find("out of request 0 row 0 head 0 element 77") ==
        0);
  expected->out[77] ^= 1;
  expected->lse[3].bits ^= 1;
  CHECK(problem.compare(*emulator, *expected).find("lse of request 0 row 0 head 3") == 0);
  expected->lse[3].bits ^= 1;
  attention::Decision& decision = expected->units[0].tiles[33].decision;
  decision = decision == attention::Decision::kKept ? attention::Decision::kSkipped
                                                    : attention::Decision::kKept;
  CHECK(problem.compare(*emulator, *expected).find("decision of unit row 0 tile 33") == 0);
}

TEST_CASE("as many blocks share a multiprocessor as the launcher counts on", "[CUD-7.1]") {
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kF16, Dtype::kF8E4m3}) {
    for (const int dim : {64, 128, 256}) {
      for (const int tokens : {1, 100}) {
        AttentionCall call;
        call.dtype = dtype;
        call.head_dim = dim;
        call.q.rows = tokens;
        const DecodeKernel kernel = find_decode_kernel(call);
        if (kernel.function == nullptr) continue;
        REQUIRE(cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     kernel.shared_bytes) == cudaSuccess);
        int blocks = 0;
        REQUIRE(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
                    &blocks, kernel.function, kernel.threads,
                    static_cast<std::size_t>(kernel.shared_bytes)) == cudaSuccess);
        INFO(dtype_name(dtype) << " dim " << dim << " tokens " << tokens);
        CHECK(blocks == kernel.blocks);
      }
    }
  }
}

}  // namespace
}  // namespace assay::cuda
