// Captures on disk (SPEC TRC-4), and the sample that this repository ships.
#include "traces/format/capture.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

#include "model/attention/attention.hpp"
#include "model/core/testing_files.hpp"
#include "model/numerics/convert.hpp"
#include "traces/format/trace_testing.hpp"

namespace assay::traces {
namespace {

using assay::testing::TempDir;
using testing::require_error;

// Two requests of 5 and 2 keys, heads 4 and 5 of 8 with key head 2 of 4; request 0 kept its last 4
// query rows: two of its prefill and one decode step, then a piece of a prefill of one row.
struct Small {
  std::vector<std::uint16_t> q = std::vector<std::uint16_t>(6 * 2 * 4, 0x3F80);
  std::vector<std::uint16_t> k = std::vector<std::uint16_t>(7 * 4, 0x4000);
  std::vector<std::uint16_t> v = std::vector<std::uint16_t>(7 * 3, 0x4040);
  std::vector<std::int32_t> cu_q{0, 4, 6}, cu_kv{0, 5, 7}, step{0, 0, 2, 3, 0, 0};
  std::vector<float> sinks{0.5F, -1}, extra_values{1, 2};
  Dtype dtype = Dtype::kBf16;
  Shape q_shape{6, 2, 4}, k_shape{7, 1, 4}, v_shape{7, 1, 3};
  std::string without, extra;  // a tensor or key left out; a tensor or key put in
  std::string schema = "assay.capture";
  std::map<std::string, std::string> metadata{
      {"model", "toy"},      {"licence", "CC0-1.0"},
      {"source", "by hand"}, {"layer", "1"},
      {"num_layers", "3"},   {"q_heads", "4,5"},
      {"kv_heads", "2"},     {"num_q_heads", "8"},
      {"num_kv_heads", "4"}, {"assay.params", R"({"mask":"window:3","scale":"0.125"})"}};
};

std::string write(const TempDir& dir, const Small& small) {
  TensorFileWriter writer;
  writer.set_schema(small.schema, 1);
  for (const auto& [key, value] : small.metadata)
    if (key != small.without) writer.set_metadata(key, value);
  const auto add = [&](const char* name, Dtype dtype, const Shape& shape, const auto& values) {
    if (name != small.without) writer.add(name, dtype, shape, std::as_bytes(std::span(values)));
  };
  add("q", small.dtype, small.q_shape, small.q);
  add("k", small.dtype, small.k_shape, small.k);
  add("v", small.dtype, small.v_shape, small.v);
  add("cu_seqlens_q", Dtype::kI32, {small.cu_q.size()}, small.cu_q);
  add("cu_seqlens_kv", Dtype::kI32, {small.cu_kv.size()}, small.cu_kv);
  add("step", Dtype::kI32, {small.step.size()}, small.step);
  if (!small.sinks.empty()) add("sinks", Dtype::kF32, {small.sinks.size()}, small.sinks);
  if (!small.extra.empty()) add(small.extra.c_str(), Dtype::kF32, {2}, small.extra_values);
  std::string path = dir.file("c.safetensors");
  const Status written = writer.write(path);
  INFO((written ? "" : written.error().sentence));
  REQUIRE(written.has_value());
  return path;
}

TEST_CASE("a capture is cut into the calls that its steps were", "[TRC-4.1][TRC-4.4]") {
  const TempDir dir;
  const auto capture = Capture::open(write(dir, {}));
  REQUIRE(capture.has_value());
  CHECK(capture->num_requests() == 2);
  const std::vector<CaptureCall> expected{
      {0, 0, 0, 2, 0, 3}, {0, 2, 2, 1, 0, 4}, {0, 3, 3, 1, 0, 5}, {1, 0, 4, 2, 5, 2}};
  CHECK(capture->calls() == expected);
  CHECK(capture->calls()[0].q_offset() == 1);
  CHECK_FALSE(capture->calls()[3].decode());
  CHECK(capture->calls()[2].decode());

  const attention::Problem whole = capture->whole();
  REQUIRE(attention::check(whole).has_value());
  REQUIRE(whole.requests.size() == 2);
  CHECK((whole.requests[0].q_len == 4 && whole.requests[0].kv_len == 5));
  CHECK((whole.requests[0].q_offset == 1 && whole.requests[1].q_offset == 0));
  CHECK((whole.mask == attention::MaskKind::kWindow && whole.mask_size == 3));
  CHECK((whole.scale == 0.125F && whole.softcap == 0 && whole.sinks.size() == 2));
  CHECK((whole.q_heads == 2 && whole.kv_heads == 1 && whole.head_dim == 4 && whole.v_dim == 3));
}

TEST_CASE("the rows of a problem are those of the file", "[TRC-4.4]") {
  const TempDir dir;
  Small small;
  std::iota(small.q.begin(), small.q.end(), std::uint16_t{1});
  std::iota(small.k.begin(), small.k.end(), std::uint16_t{100});
  std::iota(small.v.begin(), small.v.end(), std::uint16_t{200});
  auto opened = Capture::open(write(dir, small));
  REQUIRE(opened.has_value());
  const Capture capture = *std::move(opened);  // a problem survives the move
  const attention::Problem problem = capture.problem(capture.calls());
  REQUIRE(problem.requests.size() == 4);
  const auto first = [&](const attention::Rows& rows, int head, int row) {
    std::uint16_t code = 0;
    const std::byte* bytes = rows.row(head, row, 2);
    REQUIRE(bytes != nullptr);
    std::memcpy(&code, bytes, sizeof code);
    return code;
  };
  CHECK(first(problem.requests[1].q, 1, 0) == 1 + 2 * 8 + 4);  // row 2, head 1
  CHECK(first(problem.requests[1].k, 0, 3) == 100 + 3 * 4);
  CHECK(problem.requests[1].k.row(0, 4, 2) == nullptr);  // the key of a later step
  CHECK(first(problem.requests[3].k, 0, 0) == 100 + 5 * 4);
  CHECK(first(problem.requests[3].v, 0, 1) == 200 + 6 * 3);
}

TEST_CASE("what is no capture is refused in a sentence", "[TRC-4.1][TRC-4.2][TRC-4.3][TRC-4.4]") {
  struct Refused {
    std::function<void(Small&)> change;
    std::initializer_list<std::string> pieces;
  };
  const auto params = [](const char* text) {
    return [text](Small& s) { s.metadata["assay.params"] = text; };
  };
  const auto label = [](const char* key, const char* text) {
    return [key, text](Small& s) { s.metadata[key] = text; };
  };
  const auto left_out = [](const char* name) { return [name](Small& s) { s.without = name; }; };
  const Refused all[] = {
      {[](Small& s) { s.schema = "assay.trace"; }, {"assay.trace", "assay.capture"}},
      {[](Small& s) { s.extra = "queries"; }, {"\"queries\" is unknown", "\"x.\""}},
      {left_out("k"), {"\"k\""}},
      {left_out("step"), {"\"step\""}},
      {left_out("source"), {"source"}},
      {left_out("assay.params"), {"assay.params"}},
      {[](Small& s) { s.dtype = Dtype::kI16; }, {"q", "I16", "BF16"}},
      {[](Small& s) {
         s.q_shape = {6, 4, 2};
       },
       {"q_heads"}},
      {[](Small& s) {
         s.k_shape = {14, 1, 2};
       },
       {"head_dim"}},
      {[](Small& s) {
         s.v_shape = {3, 1, 7};
       },
       {"total_kv"}},
      {[](Small& s) { s.sinks = {1}; }, {"sinks"}},
      {[](Small& s) { s.sinks[1] = INFINITY; }, {"sinks holds inf"}},
      {[](Small& s) { s.q[9] = 0x7FC0; }, {"q holds a NaN or an infinity, bits 0x7fc0", "9"}},
      {[](Small& s) { s.k[3] = 0xFF80; }, {"k holds a NaN or an infinity, bits 0xff80"}},
      {[](Small& s) { s.v[0] = 0x7F80; }, {"v holds a NaN or an infinity"}},
      {[](Small& s) {
         s.cu_q = {0, 4, 5};
       },
       {"cu_seqlens_q", "from 0 to 5", "6 rows"}},
      {[](Small& s) {
         s.cu_kv = {1, 5, 7};
       },
       {"cu_seqlens_kv", "from 1 to 7"}},
      {[](Small& s) {
         s.cu_kv = {0, 8, 7};
       },
       {"cu_seqlens_kv"}},
      {[](Small& s) {
         s.cu_q = {0, 6};
       },
       {"2 numbers and cu_seqlens_kv 3"}},
      {[](Small& s) {
         s.cu_q = {0, 6, 6};
       },
       {"request 0 has 6 query rows and 5 key rows"}},
      {[](Small& s) {
         s.cu_kv = {0, 7, 7};
       },
       {"request 1 has 2 query rows and 0 key rows"}},
      {[](Small& s) {
         s.cu_q = {0, 0, 6}, s.cu_kv = {0, 1, 7};
       },
       {"request 0 has 0 query rows"}},
      {[](Small& s) { s.step[3] = 1; }, {"query row 3 (request 0) is 1 after 2"}},
      {[](Small& s) { s.step[4] = -1; }, {"query row 4 (request 1) is -1"}},
      {label("licence", ""), {"licence is empty"}},
      {label("layer", "3"), {"layer is \"3\"; allowed are numbers from 0 to 2"}},
      {label("layer", "1,2"), {"layer lists 2 numbers"}},
      {label("q_heads", "4,8"), {"q_heads is \"4,8\"", "from 0 to 7"}},
      {label("q_heads", "4,"), {"q_heads is \"4,\""}},
      {label("q_heads", "4,4"), {"heads 4, 4 repeat"}},
      {label("q_heads", "4,6"), {"query head 6", "reads key head 3", "stands with key head 2"}},
      {label("kv_heads", "1"), {"query head 4", "reads key head 2", "stands with key head 1"}},
      {label("num_kv_heads", "3"), {"multiples"}},
      {params("[]"), {"JSON object"}},
      {params("{"), {"JSON object"}},
      {params(R"({"mask":"full","mask":"full","scale":"1"})"), {"\"mask\" appears twice"}},
      {params(R"({"mask":"full"})"), {"has no scale"}},
      {params(R"({"scale":"1"})"), {"has no mask"}},
      {params(R"({"mask":"full","scale":0.125})"), {"\"scale\"", "text in quotes"}},
      {params(R"({"mask":"full","scale":"0"})"), {"scale is \"0\"; allowed are positive"}},
      {params(R"({"mask":"full","scale":"1x"})"), {"scale is \"1x\""}},
      {params(R"({"mask":"full","scale":"1","softcap":"-1"})"), {"softcap is \"-1\""}},
      {params(R"({"mask":"full","scale":"1","splits":"2"})"), {"\"splits\"", "allowed are mask"}},
      {params(R"({"mask":"window:0","scale":"1"})"), {"mask is \"window:0\""}},
      {params(R"({"mask":"window","scale":"1"})"), {"mask is \"window\""}},
      {params(R"({"mask":"causal:3","scale":"1"})"), {"mask is \"causal:3\""}},
      {params(R"({"mask":"alibi","scale":"1"})"), {"mask is \"alibi\""}},
  };
  const TempDir dir;
  for (const Refused& refused : all) {
    Small small;
    refused.change(small);
    const std::string path = write(dir, small);
    const auto capture = Capture::open(path);
    require_error(capture, refused.pieces);
    CHECK(capture.error().sentence.find(path) != std::string::npos);
  }
  Small foreign;
  foreign.extra = "x.mine";
  CHECK(Capture::open(write(dir, foreign)).has_value());
}

std::string sample_path(int layer) {
  return std::string(ASSAY_TRACE_SAMPLES) + "/assay-attention-sample-layer" +
         std::to_string(layer) + ".safetensors";
}

TEST_CASE("the sample holds two requests, each a prefill and the decode steps that followed",
          "[TRC-4.1][TRC-4.4]") {
  for (const int layer : {0, 1}) {
    const auto capture = Capture::open(sample_path(layer));
    INFO((capture ? "" : capture.error().sentence));
    REQUIRE(capture.has_value());
    CHECK(capture->info().model == "assay-attention-sample");
    CHECK(capture->info().licence == "Apache-2.0");
    CHECK(capture->info().source.find("not a production model") != std::string::npos);
    CHECK(capture->info().layer == layer);
    CHECK(capture->num_requests() == 2);
    REQUIRE(capture->calls().size() == 66);
    for (const CaptureCall& call : capture->calls()) {
      const std::int32_t prompt = call.request == 0 ? 1024 : 640;
      CHECK(call.q_len == (call.step == 0 ? prompt : 1));
      CHECK(call.kv_len == prompt + call.step);
    }
    const attention::Problem whole = capture->whole();
    CHECK((whole.requests[0].q_len == 1056 && whole.requests[1].kv_len == 672));
    CHECK((whole.dtype == Dtype::kBf16 && whole.head_dim == 64 && whole.v_dim == 64));
    CHECK((whole.q_heads == 2 && whole.kv_heads == 1 && whole.scale == 0.125F));
    CHECK((whole.mask == attention::MaskKind::kCausal && whole.sinks.empty()));
  }
}

// Mean entropy, in nats, of the attention of a head's last 128 query rows in the prefill.
double mean_entropy(const attention::Problem& problem, int q_head) {
  const attention::Request& request = problem.requests[0];
  const auto value = [&](const attention::Rows& rows, int head, int row, int d) {
    const std::byte* bytes = rows.row(head, row, 2);
    return static_cast<double>(
        numerics::to_float(attention::element(problem.dtype, bytes + 2 * d)));
  };
  double sum = 0;
  for (int row = request.q_len - 128; row < request.q_len; ++row) {
    std::vector<double> scores;
    for (int key = 0; key <= row + request.q_offset; ++key) {
      double score = 0;
      for (int d = 0; d < problem.head_dim; ++d)
        score +=
            value(request.q, q_head, row, d) * value(request.k, q_head / problem.group(), key, d);
      scores.push_back(score * static_cast<double>(problem.scale));
    }
    const double top = *std::max_element(scores.begin(), scores.end());
    double total = 0, weighted = 0;
    for (const double score : scores) {
      total += std::exp(score - top);
      weighted += std::exp(score - top) * (score - top);
    }
    sum += std::log(total) - weighted / total;
  }
  return sum / 128;
}

TEST_CASE("the sample's report states figures of its own file", "[TRC-4.1]") {
  const std::string folder = ASSAY_TRACE_SAMPLES;
  const auto report =
      nlohmann::json::parse(assay::testing::read_bytes(folder + "/assay-attention-sample.json"));
  CHECK(report["held_out"]["loss_nats"] < report["held_out"]["unigram_entropy_nats"]);
  REQUIRE(report["captures"].size() == 2);
  for (const auto& stated : report["captures"]) {
    const auto capture = Capture::open(sample_path(stated["layer"]));
    REQUIRE(capture.has_value());
    const attention::Problem prefill = capture->problem({&capture->calls()[0], 1});
    REQUIRE(stated["heads"].size() == 2);
    for (int head = 0; head < 2; ++head) {
      const auto& figures = stated["heads"][static_cast<std::size_t>(head)];
      CHECK(figures["q_head"] == capture->info().q_heads[static_cast<std::size_t>(head)]);
      const double entropy = figures["entropy_nats"];
      CHECK(std::abs(entropy - mean_entropy(prefill, head)) <= 0.0005 + 1e-9);
    }
  }
}

double decoded(const attention::Emulation& got, std::size_t at) {
  return static_cast<double>(numerics::to_float(numerics::widen(Bf16{got.out[at]})));
}

// Every output element against fp64 over the same keys, and what was left out against its
// certificates (SPEC ATT-3.5, ATT-3.6).
void check_against_truth(const attention::Emulator& emulator, const attention::Problem& problem,
                         const attention::Emulation& got, double lambda) {
  const auto pruned = attention::truth(problem, attention::kept_pairs(emulator, got));
  const auto dense = attention::truth(problem);
  REQUIRE((pruned.has_value() && dense.has_value()));
  const auto v_dim = static_cast<std::size_t>(problem.v_dim);
  double dropped = 0;
  for (std::size_t row = 0; row < pruned->rows.size(); ++row) {
    const attention::TruthRow& facts = pruned->rows[row];
    const double bound = attention::arithmetic_bound(emulator.resolved(), problem, facts, 8);
    const attention::DropBound drop = attention::drop_bound(facts, lambda);
    dropped = std::max(dropped, facts.dropped_mass);
    for (std::size_t at = row * v_dim; at < (row + 1) * v_dim; ++at) {
      REQUIRE(std::abs(decoded(got, at) - pruned->out[at]) <= bound);
      REQUIRE(std::abs(pruned->out[at] - dense->out[at]) <= drop.by_mass + 1e-12);
      REQUIRE(std::abs(pruned->out[at] - dense->out[at]) <= 2 * drop.published + 1e-12);
    }
  }
  CHECK(dropped > 0);
}

// Runs a profile of ours on calls of the sample; it must both skip and keep.
void check_skipping(const char* name, const Capture& capture, std::span<const CaptureCall> calls) {
  const float lambda = 0.1F;
  const auto profile = attention::find_profile(name);
  REQUIRE(profile.has_value());
  attention::Problem problem = capture.problem(calls);
  for (attention::Request& request : problem.requests)
    request.threshold = {attention::Threshold::Kind::kLambda, lambda};
  const auto emulator = attention::Emulator::make(**profile, problem);
  const auto got = attention::emulate(**profile, problem);
  REQUIRE((emulator.has_value() && got.has_value()));
  CHECK(got->counters.skipped > 0);
  CHECK(got->counters.skipped < got->counters.asked);
  check_against_truth(*emulator, problem, *got, static_cast<double>(lambda));
}

TEST_CASE("our profiles skip tiles of the sample and stay within their bounds",
          "[TRC-4.4][ATT-3.5][ATT-3.6]") {
  const auto capture = Capture::open(sample_path(0));
  REQUIRE(capture.has_value());
  const std::span<const CaptureCall> calls = capture->calls();
  // The last 128 rows of the second prefill, whose middle is one line of dashes: two units a head.
  CaptureCall slice = calls[33];
  slice.first_q += slice.q_len - 128;
  slice.q_len = 128;
  check_skipping("assay-prefill-sm90", *capture, {&slice, 1});
  check_skipping("assay-decode-sm90", *capture, calls.subspan(1, 8));
}

}  // namespace
}  // namespace assay::traces
