// Which calls are cut out of files, and what generated heads look like.
#include "model/attention/calibration_input.hpp"

#include <cmath>

#include "model/attention/calibration.hpp"
#include "model/core/safetensors.hpp"
#include "model/core/testing.hpp"
#include "model/core/testing_files.hpp"
#include "model/numerics/convert.hpp"

using namespace assay;
using namespace assay::attention;
using assay::testing::prop;

namespace {

double value(const Problem& p, const std::byte* row, int d) {
  return static_cast<double>(numerics::to_float(element(p.dtype, row + d * p.element_bytes())));
}

// q . k times scale of one head's pair, in fp64.
double score(const Sample& s, std::size_t request, int head, int q, int key) {
  const Request& r = s.problem.requests[request];
  const std::byte* a = r.q.row(head, q, s.problem.element_bytes());
  const std::byte* b = r.k.row(head / s.problem.group(), key, s.problem.element_bytes());
  double sum = 0;
  for (int d = 0; d < s.problem.head_dim; ++d)
    sum += value(s.problem, a, d) * value(s.problem, b, d);
  return sum * static_cast<double>(s.problem.scale);
}

SyntheticHeads heads_of(const std::string& line) {
  const auto parsed = parse_synthetic(line);
  INFO((parsed ? std::string() : parsed.error().sentence));
  REQUIRE(parsed.has_value());
  return *parsed;
}

Samples synthetic(const std::string& line, const SamplePlan& plan = {}) {
  auto made = samples_of_synthetic(heads_of(line), plan);
  INFO((made ? std::string() : made.error().sentence));
  REQUIRE(made.has_value());
  return *std::move(made);
}

// A file with q and k of `rows` and `keys` rows, element i being i.
struct File {
  assay::testing::TempDir dir;
  std::vector<std::uint16_t> q, k;
  std::vector<std::vector<std::int32_t>> lists;
  TensorFileWriter writer;

  void tensors(Shape q_shape, Shape k_shape) {
    const auto fill = [](std::vector<std::uint16_t>& out, const Shape& shape) {
      std::size_t n = 1;
      for (const std::uint64_t axis : shape) n *= axis;
      for (std::size_t i = 0; i < n; ++i)
        out.push_back(
            numerics::cvt_rn_bf16_f32(numerics::from_float(static_cast<float>(i % 251))).bits);
    };
    lists.reserve(8);
    fill(q, q_shape);
    fill(k, k_shape);
    writer.add("q", Dtype::kBf16, q_shape, std::as_bytes(std::span(q)));
    writer.add("k", Dtype::kBf16, k_shape, std::as_bytes(std::span(k)));
  }
  void list(const std::string& name, std::vector<std::int32_t> values) {
    lists.push_back(std::move(values));
    writer.add<std::int32_t>(name, {lists.back().size()}, lists.back());
  }
  Expected<Samples> read(const SamplePlan& plan = {}) {
    const std::string path = dir.file("in.safetensors");
    const Status written = writer.write(path);
    INFO((written ? std::string() : written.error().sentence));
    REQUIRE(written.has_value());
    return samples_of_file(path, plan);
  }
  Samples samples(const SamplePlan& plan = {}) {
    auto made = read(plan);
    INFO((made ? std::string() : made.error().sentence));
    REQUIRE(made.has_value());
    return *std::move(made);
  }
  void refuses(const std::string& says, ErrorKind kind = ErrorKind::kBadInput) {
    const auto made = read();
    REQUIRE(!made.has_value());
    INFO(made.error().sentence);
    CHECK(made.error().sentence.find(says) != std::string::npos);
    CHECK(made.error().kind == kind);
  }
};

std::vector<std::string> calls_of(const Samples& samples) {
  std::vector<std::string> out;
  for (const Sample& s : samples.list) {
    std::string text(phase_name(s.phase));
    for (const Request& r : s.problem.requests)
      text += " " + std::to_string(r.q_offset) + "+" + std::to_string(r.q_len) + "/" +
              std::to_string(r.kv_len);
    out.push_back(text);
  }
  return out;
}

}  // namespace

TEST_CASE("without steps a request is one prefill, and its last rows are decode calls",
          "[ATT-8.8]") {
  File file;
  file.tensors({2, 5, 2, 32}, {2, 7, 1, 32});
  file.list("q_len", {5, 1});
  file.list("kv_len", {7, 6});
  const Samples got = file.samples({{}, 2, 1, {}});
  // offset + rows / keys: request 0's rows are positions 2 to 6 of 7.
  CHECK(calls_of(got) ==
        std::vector<std::string>{"prefill 2+5/7", "decode 5+1/6 6+1/7", "decode 5+1/6"});
  // The rows are the right ones: element (request, row, head, d) is its index modulo 251.
  const Sample& decode = got.list[1];
  const Request& last = decode.problem.requests[1];
  CHECK(value(decode.problem, last.q.row(1, 0, 2), 3) == (4 * 64 + 32 + 3) % 251);
  CHECK(value(decode.problem, last.k.row(0, 6, 2), 3) == (6 * 32 + 3) % 251);
  CHECK(decode.kv_len == 7);
  const Sample& second = got.list[2];
  CHECK(value(second.problem, second.problem.requests[0].q.row(0, 0, 2), 0) == (5 * 64) % 251);
  CHECK(second.problem.scale == 1 / std::sqrt(32.0f));
}

TEST_CASE("steps say which rows were one call", "[ATT-8.8]") {
  File file;
  file.tensors({9, 1, 32}, {11, 1, 32});
  file.list("cu_seqlens_q", {0, 6, 9});
  file.list("cu_seqlens_kv", {0, 6, 11});
  file.list("step", {0, 0, 0, 1, 1, 2, 4, 5, 6});
  file.writer.set_schema("assay.capture", 1);
  file.writer.set_metadata("assay.params", R"({"mask":"causal","scale":"0.125"})");
  const Samples got = file.samples();
  CHECK(calls_of(got) == std::vector<std::string>{"prefill 0+3/3", "prefill 3+2/5", "decode 5+1/6",
                                                  "decode 2+1/3 3+1/4 4+1/5"});
  CHECK(got.list[0].problem.scale == 0.125f);
  // Lengths cut requests as if there were no steps.
  CHECK(calls_of(file.samples({{4}, 1, 1, {}})) ==
        std::vector<std::string>{"prefill 0+4/4", "decode 3+1/4", "prefill 2+2/4", "decode 3+1/4"});
}

TEST_CASE("files that mean nothing are refused with a sentence", "[ATT-8.8]") {
  const auto file = [] {
    auto f = std::make_unique<File>();
    f->tensors({4, 2, 32}, {6, 2, 32});
    return f;
  };
  auto f = file();
  f->refuses("cu_seqlens_q");
  f = file();
  f->list("cu_seqlens_q", {0, 3});
  f->list("cu_seqlens_kv", {0, 6});
  f->refuses("from 0 to 3");
  f = file();
  f->list("cu_seqlens_q", {0, 3, 2, 4});
  f->refuses("may not fall");
  f = file();
  f->list("cu_seqlens_q", {0, 0, 4});
  f->list("cu_seqlens_kv", {0, 4, 6});
  f->refuses("4 query rows and 2 keys");
  f = file();
  f->list("cu_seqlens_q", {0, 4});
  f->list("cu_seqlens_kv", {0, 3, 6});
  f->refuses("1 requests and k 2");
  f = file();
  f->list("cu_seqlens_q", {0, 4});
  f->list("cu_seqlens_kv", {0, 6});
  f->writer.set_metadata("assay.params", R"({"mask":"full"})");
  f->refuses("\"full\"", ErrorKind::kUnsupported);
  f = file();
  f->list("cu_seqlens_q", {0, 4});
  f->list("cu_seqlens_kv", {0, 6});
  f->writer.set_metadata("assay.params", R"({"scale":"fast"})");
  f->refuses("\"fast\"");
  f = file();
  f->list("cu_seqlens_q", {0, 4});
  f->list("cu_seqlens_kv", {0, 6});
  f->writer.set_schema("assay.trace", 1);
  f->refuses("assay.trace");
  File heads;
  heads.tensors({1, 2, 3, 32}, {1, 2, 2, 32});
  heads.refuses("3 query heads and 2 key heads");
  File dims;
  dims.tensors({1, 2, 2, 32}, {1, 2, 2, 64});
  dims.refuses("head_dim 32 and k 64");
  File rows;
  rows.tensors({2, 2, 32}, {1, 2, 2, 32});
  rows.refuses("[batch, rows, heads, head_dim]");
}

TEST_CASE("generated scores have the spread that was asked for", "[ATT-8.9]") {
  for (const float spread : {0.5f, 2.0f, 4.0f}) {
    const Samples made = synthetic("heads=2 kv=512 dim=64 spread=" + std::to_string(spread));
    const Sample& s = made.list.back();
    for (const Sample& each : made.list)
      if (each.phase == Phase::kPrefill && each.kv_len == 512) {
        double sum = 0, squares = 0;
        int n = 0;
        for (int q = 0; q < 512; q += 7)
          for (int k = 0; k < 512; k += 5, ++n) {
            const double x = score(each, 0, n % 2, q, k);
            sum += x;
            squares += x * x;
          }
        const double mean = sum / n;
        // About 7,600 pairs of 73 rows: the mean is within a few percent of the spread.
        CHECK(std::abs(mean) < 0.05 * static_cast<double>(spread));
        CHECK(std::abs(std::sqrt(squares / n - mean * mean) / static_cast<double>(spread) - 1) <
              0.05);
      }
    CHECK(s.phase == Phase::kDecode);
  }
}

TEST_CASE("sinks and near keys stand out by what was asked for", "[ATT-8.9]") {
  const Samples made =
      synthetic("heads=1 kv=2048 dim=128 spread=0 sinks=4 sink_gain=6 local_gain=5 local_width=64");
  const Sample& s = made.list[made.list.size() - 2];
  REQUIRE(s.phase == Phase::kPrefill);
  REQUIRE(s.kv_len == 2048);
  const auto mean_at = [&](int distance) {
    double sum = 0;
    int n = 0;
    for (int q = 600; q < 2048; q += 3, ++n) sum += score(s, 0, 0, q, q - distance);
    return sum / n;
  };
  // exp(-1) at a distance of the width. The walk is one sample of a random process.
  CHECK(std::abs(mean_at(0) - 5) < 0.7);
  CHECK(std::abs(mean_at(64) - 5 * std::exp(-1)) < 0.7);
  CHECK(std::abs(mean_at(512)) < 0.7);
  double sinks = 0, others = 0;
  for (int q = 1000; q < 2000; ++q) {
    sinks += score(s, 0, 0, q, q % 4) / 1000;
    others += score(s, 0, 0, q, 4 + q % 4) / 1000;
  }
  CHECK(std::abs(sinks - others - 6) < 0.3);
}

TEST_CASE("a line names one set of heads, and prints back", "[ATT-8.9]") {
  prop("any heads", [] {
    SyntheticHeads h;
    h.kv_heads = *rc::gen::inRange(1, 4);
    h.heads = h.kv_heads * *rc::gen::inRange(1, 4);
    h.kv = *rc::gen::inRange(1, 2000);
    h.dim = 32 * *rc::gen::inRange(1, 5);
    h.spread = {static_cast<float>(*rc::gen::inRange(0, 100)) / 8, 3};
    h.sinks = *rc::gen::inRange(0, 9);
    h.local_gain = static_cast<float>(*rc::gen::inRange(0, 100)) / 16;
    h.seed = *rc::gen::arbitrary<std::uint64_t>();
    const auto again = parse_synthetic(print(h));
    RC_ASSERT(again.has_value());
    RC_ASSERT(print(*again) == print(h));
  });
  const Samples a = synthetic("heads=2 kv=64 dim=32"), b = synthetic("heads=2 kv=64 dim=32");
  const Samples c = synthetic("heads=2 kv=64 dim=32 seed=2");
  const auto bits = [](const Samples& s) {
    const Sample& all = s.list.back();
    const Request& r = all.problem.requests.back();
    std::vector<std::byte> out(r.k.row(0, 0, 2), r.k.row(0, 0, 2) + 64 * 2 * 32 * 2);
    return out;
  };
  CHECK(bits(a) == bits(b));
  CHECK(bits(a) != bits(c));
  // No two elements of the first key are copies of each other's head.
  CHECK(heads_of("heads=6").kv_heads == 6);
}

TEST_CASE("lines that name no heads are refused", "[ATT-8.9]") {
  for (const auto& [line, says] : std::vector<std::pair<std::string, std::string>>{
           {"heads=0", "heads is 0"},
           {"heads=6 kv_heads=4", "multiple of kv_heads"},
           {"dim=48", "multiples of 32"},
           {"spread=x", "\"x\""},
           {"spread=1,,2", "spread"},
           {"sink_gain=1e9", "0 to 100"},
           {"banana=1", "\"banana\""},
           {"kv=0", "kv is 0"}}) {
    const auto parsed = parse_synthetic(line);
    INFO(line);
    REQUIRE(!parsed.has_value());
    CHECK(parsed.error().sentence.find(says) != std::string::npos);
  }
  const auto none = samples_of_synthetic(heads_of("kv=64 dim=32"), {{100}, 4, 1, {}});
  REQUIRE(!none.has_value());
  CHECK(none.error().sentence.find("100") != std::string::npos);
}
