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

TEST_CASE("files that mean nothing are refused with a sentence", "[ATT-8.8][VER-21.6]") {
  struct Refusal {
    std::vector<std::int32_t> cu_q, cu_kv;  // empty: not there
    std::string params, says;
    ErrorKind kind = ErrorKind::kBadInput;
  };
  const std::vector<std::int32_t> q{0, 4}, kv{0, 6};
  for (const Refusal& r : std::vector<Refusal>{
           {{}, {}, "", "there is no tensor cu_seqlens_q"},
           {{0, 3, 2, 4}, kv, "", "cu_seqlens_q[2] is 2; allowed are 3"},
           {{0, 5}, kv, "", "cu_seqlens_q[1] is 5; allowed are 0 (the entry before it) to 4"},
           {{0, 0, 4}, {0, 4, 6}, "", "request 1 has 4 query rows and 2 keys"},
           {q, {0, 3, 6}, "", "k is for 2 requests; q is for 1"},
           {q, kv, R"({"mask":"full"})", "\"full\"; thresholds are calibrated on causal",
            ErrorKind::kUnsupported},
           {q, kv, R"({"mask":"causal_topleft"})", "\"causal_topleft\"", ErrorKind::kUnsupported},
           {q, kv, R"({"q_offset":2})", "q_offset is there", ErrorKind::kUnsupported},
           {q, kv, R"({"scale":"fast"})", "scale is \"fast\"; allowed are positive numbers"}}) {
    File file;
    file.tensors({4, 2, 32}, {6, 2, 32});
    if (!r.cu_q.empty()) file.list("cu_seqlens_q", r.cu_q);
    if (!r.cu_kv.empty()) file.list("cu_seqlens_kv", r.cu_kv);
    if (!r.params.empty()) file.writer.set_metadata("assay.params", r.params);
    file.refuses(r.says, r.kind);
  }
  File schema;
  schema.tensors({4, 2, 32}, {6, 2, 32});
  schema.writer.set_schema("assay.trace", 1);
  schema.refuses("assay.trace");
  File heads;
  heads.tensors({1, 2, 3, 32}, {1, 2, 2, 32});
  heads.refuses("3 query heads and 2 key heads");
  File dims;
  dims.tensors({1, 2, 2, 32}, {1, 2, 2, 64});
  dims.refuses("element=32");
  File both;
  both.tensors({1, 2, 2, 32}, {1, 2, 2, 32});
  both.list("cu_seqlens_q", {0, 2});
  both.refuses("and there is a tensor cu_seqlens_q");
  File misspelled;
  misspelled.tensors({1, 2, 2, 32}, {1, 2, 2, 32});
  misspelled.list("kv_lens", {1});
  misspelled.refuses("tensor \"kv_lens\" is unknown");
}

TEST_CASE("parameters are read as golden files read them", "[ATT-8.8][VER-7.1]") {
  for (const auto& [params, says] : std::vector<std::pair<std::string, std::string>>{
           {R"({"scale":0.125,"scale":0.5})", "key \"scale\" appears twice"},
           {R"({"scale":"0x1"})", "scale is \"0x1\"; allowed are positive numbers"},
           {R"({"scale":" 1"})", "scale is \" 1\""},
           {R"({"scale":0})", "scale is \"0\"; allowed are positive numbers"},
           {R"({"scale":"1e-46"})", "scale is \"1e-46\"; allowed are positive numbers, as F32"},
           {R"({"scal":3})", "\"scal\" is no parameter of attention; allowed are profile"},
           {R"({"mask":1})", "mask is \"1\"; allowed are text in quotes"},
           {R"({"splits":true})", "splits is \"true\"; allowed are whole numbers"},
           {R"({"splits":0})", "splits is 0"},
           {R"({"softcap":-1})", "softcap is \"-1\""},
           {R"({"out_dtype":"f32"})", "out_dtype is \"f32\""},
           {R"({"threshold_scale_factor":"x"})", "threshold_scale_factor is \"x\""}}) {
    File file;
    file.tensors({1, 4, 2, 32}, {1, 6, 2, 32});
    file.writer.set_metadata("assay.params", params);
    INFO(params);
    file.refuses(says);
  }
  File file;
  file.tensors({1, 4, 2, 32}, {1, 6, 2, 32});
  file.writer.set_metadata("assay.params",
                           R"({"profile":"paper","scale":0.5,"softcap":"30","splits":3})");
  const Samples by_file = file.samples();
  CHECK(by_file.list.back().problem.scale == 0.5f);
  CHECK(by_file.list.back().problem.softcap == 30);
  CHECK(by_file.list.back().problem.splits == 3);
  CHECK(by_file.list.front().problem.splits == 1);  // a prefill
  const Samples by_plan = file.samples({{}, 16, 2, 0.25f});
  CHECK(by_plan.list.back().problem.scale == 0.25f);
  CHECK(by_plan.list.back().problem.splits == 2);
}

TEST_CASE("keys in pages are the same calls", "[ATT-8.8][VER-21.6]") {
  File plain;
  plain.tensors({1, 4, 1, 32}, {1, 6, 1, 32});
  const Samples want = plain.samples();
  // Pages of 3 rows in reverse order, of which part 1 would be the values.
  File paged;
  paged.tensors({1, 4, 1, 32}, {1, 1, 1, 1});  // a k that is replaced
  const std::size_t page = 3 * 32;
  std::vector<std::uint16_t> pages(2 * 2 * page);
  std::copy_n(plain.k.begin() + page, page, pages.begin());
  std::copy_n(plain.k.begin(), page, pages.begin() + 2 * page);
  paged.writer = {};
  paged.writer.add("q", Dtype::kBf16, {1, 4, 1, 32}, std::as_bytes(std::span(paged.q)));
  paged.writer.add("kv_pages", Dtype::kBf16, {2, 2, 3, 1, 32}, std::as_bytes(std::span(pages)));
  const std::vector<std::int32_t> table = {1, 0}, kv_len = {6};
  paged.writer.add<std::int32_t>("block_table", {1, 2}, table);
  paged.writer.add<std::int32_t>("kv_len", {1}, kv_len);
  const Samples got = paged.samples();
  REQUIRE(calls_of(got) == calls_of(want));
  for (std::size_t s = 0; s < want.list.size(); ++s)
    for (std::size_t i = 0; i < want.list[s].problem.requests.size(); ++i)
      for (int key = 0; key < want.list[s].problem.requests[i].kv_len; ++key)
        CHECK(score(got.list[s], i, 0, 0, key) == score(want.list[s], i, 0, 0, key));
}

TEST_CASE("a length that a request cannot be cut to is told, and one that none can is refused",
          "[ATT-8.8]") {
  File file;
  file.tensors({2, 5, 1, 32}, {2, 9, 1, 32});
  file.list("q_len", {5, 2});
  file.list("kv_len", {7, 9});
  const SamplePlan plan{{3, 7, 8, 9}, 1, 1, {}};
  const Samples got = file.samples(plan);
  // Rows of request 0 are tokens 2 to 6, of request 1 tokens 7 and 8.
  CHECK(calls_of(got) == std::vector<std::string>{"decode 2+1/3", "prefill 2+5/7", "decode 6+1/7",
                                                  "decode 7+1/8", "prefill 7+2/9", "decode 8+1/9"});
  std::vector<std::string> told;
  for (const Samples::LeftOut& one : got.left_out)
    told.push_back(one.name + " " + std::to_string(one.length) + " of " +
                   std::to_string(one.kv_len) + " from " + std::to_string(one.first_row));
  CHECK(told == std::vector<std::string>{"request 0 8 of 7 from 2", "request 0 9 of 7 from 2",
                                         "request 1 3 of 9 from 7", "request 1 7 of 9 from 7"});
  CHECK(check_lengths(plan, got).has_value());
  for (const std::int32_t none : {2, 10}) {
    const SamplePlan more{{3, none}, 1, 1, {}};
    const Status refused = check_lengths(more, file.samples(more));
    REQUIRE(!refused.has_value());
    CHECK(refused.error().sentence ==
          "length " + std::to_string(none) + " can be cut of no request; allowed are 3 to 9 keys");
  }
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
  const SamplePlan plan{{100}, 4, 1, {}};
  const auto none = samples_of_synthetic(heads_of("kv=64 dim=32"), plan);
  REQUIRE(none.has_value());
  CHECK(check_lengths(plan, *none).error().sentence ==
        "length 100 can be cut of no request; allowed are 1 to 64 keys");
}
