// Counts against other ways of counting, and the published tables that are arithmetic: each row
// with the published number, its source, and ours.
#include "model/attention/work.hpp"

#include <cmath>
#include <string>
#include <vector>

#include "model/core/testing.hpp"

using namespace assay;
using namespace assay::attention;
using assay::testing::prop;

namespace {

// Relative to what is expected.
double differ(double got, double expected) { return std::abs(got / expected - 1); }

Work counted(const CallShape& shape) {
  const Expected<Work> work = work_of(shape);
  INFO((work ? std::string() : work.error().sentence));
  REQUIRE(work.has_value());
  return *work;
}

// The call of blog 16: 64 query heads, 4 key heads, head size 128.
CallShape blog_prefill(std::int32_t length, int bytes) {
  CallShape s;
  s.q_heads = 64;
  s.kv_heads = 4;
  s.q_len = s.kv_len = length;
  s.mask.kind = MaskKind::kCausal;
  s.element_bytes = bytes;
  return s;
}
CallShape blog_decode(std::int32_t length, int bytes) {
  CallShape s = blog_prefill(length, bytes);
  s.batch = 64;
  s.q_len = 1;
  s.mask.q_offset = length - 1;
  return s;
}

// Whether a published rate and a published time say the same count: both are rounded, to half a
// unit of their last digit (`rate_digit`, and 1 us), or cut there.
void agrees(double count, double rate, double rate_digit, double time_us) {
  const double low = tera_per_second(count, time_us + 1);
  const double high = tera_per_second(count, time_us - 1);
  INFO("published " << rate << ", ours " << tera_per_second(count, time_us) << ", between " << low
                    << " and " << high);
  CHECK(rate + rate_digit >= low);
  CHECK(rate - rate_digit <= high);
}

}  // namespace

TEST_CASE("pairs are those that the mask shows, one by one", "[ATT-9.1]") {
  prop("any mask and lengths", [] {
    CallShape s;
    s.batch = *rc::gen::inRange(1, 4);
    s.kv_heads = *rc::gen::inRange(1, 4);
    s.q_heads = s.kv_heads * *rc::gen::inRange(1, 5);
    s.head_dim = *rc::gen::inRange(1, 300);
    s.v_dim = *rc::gen::inRange(1, 300);
    s.q_len = *rc::gen::inRange(1, 40);
    s.kv_len = *rc::gen::inRange(1, 60);
    s.mask.kind = *rc::gen::element(MaskKind::kFull, MaskKind::kCausal, MaskKind::kWindow,
                                    MaskKind::kChunked);
    s.mask.size = *rc::gen::inRange(1, 20);
    s.mask.q_offset = *rc::gen::inRange(-10, 30);
    double seen = 0;
    for (int row = 0; row < s.q_len; ++row)
      for (int key = 0; key < s.kv_len; ++key) {
        const int position = row + s.mask.q_offset;
        const bool causal = key <= position;
        const bool shown =
            s.mask.kind == MaskKind::kFull ||
            (causal &&
             (s.mask.kind == MaskKind::kCausal ||
              (s.mask.kind == MaskKind::kWindow && key > position - s.mask.size) ||
              (s.mask.kind == MaskKind::kChunked && key / s.mask.size == position / s.mask.size)));
        seen += shown;
      }
    const Expected<Work> work = work_of(s);
    RC_ASSERT(work.has_value());
    const auto heads = static_cast<double>(s.batch * s.q_heads);
    RC_ASSERT(work->pairs == heads * seen);
    RC_ASSERT(work->flops == heads * seen * 2 * (s.head_dim + s.v_dim));
    RC_ASSERT(work->flops <= work->flops_dense);
  });
}

TEST_CASE("a causal call has (L + 1) / 2L of the dense operations, which papers call half",
          "[ATT-9.2]") {
  for (const std::int32_t length : {1, 2, 1024, 16384, 65536}) {
    const Work w = counted(blog_prefill(length, 2));
    const double l = length;
    CHECK(w.flops == 4 * 128 * 64 * l * (l + 1) / 2);
    CHECK(w.flops_halved == 4 * 128 * 64 * l * l / 2);
    CHECK(differ(w.flops / w.flops_halved, 1 + 1 / l) <= 1e-12);
  }
}

TEST_CASE("every key head is read once, whatever its group", "[ATT-9.1]") {
  CallShape s = blog_decode(16384, 2);
  const Work w = counted(s);
  CHECK(w.k_bytes == 64.0 * 4 * 16384 * 128 * 2);
  CHECK(w.kv_bytes() == 2147483648.0);  // 2 GiB
  CHECK(w.q_bytes == 64.0 * 64 * 128 * 2);
  s.kv_heads = 64;
  CHECK(counted(s).kv_bytes() == 16 * 2147483648.0);
  // MLA: keys of 576 elements, of which the first 512 are the values, so V costs no byte of its
  // own; this count says what it is given.
  s.head_dim = 576;
  s.v_dim = 512;
  s.kv_heads = 1;
  CHECK(counted(s).k_bytes == 64.0 * 16384 * 576 * 2);
}

TEST_CASE("sizes that mean nothing are refused", "[ATT-9.1]") {
  CallShape s;
  s.kv_len = 0;
  REQUIRE(!work_of(s).has_value());
  CHECK(work_of(s).error().sentence.find("kv_len is 0") != std::string::npos);
  s = {};
  s.q_heads = 5;
  s.kv_heads = 2;
  REQUIRE(!work_of(s).has_value());
  CHECK(work_of(s).error().sentence.find("q_heads is 5") != std::string::npos);
}

TEST_CASE("published prefill rates are causal calls counted half", "[ATT-9.2]") {
  // TensorRT-LLM blog 16 at 0cedc792: baselines, batch 1. Length, element bytes, TFLOP/s, us.
  struct Row {
    std::int32_t length;
    int bytes;
    double tflops, us;
  };
  const std::vector<Row> rows = {
      {16384, 2, 594.05, 7403},   {16384, 1, 852.81, 5157},   {65536, 2, 610.30, 115301},
      {65536, 1, 873.60, 80550},  {16384, 2, 1029.13, 4273},  {16384, 1, 1523.57, 2886},
      {65536, 2, 1038.26, 67775}, {65536, 1, 1621.41, 43399},
  };
  for (const Row& row : rows) {
    const Work w = counted(blog_prefill(row.length, row.bytes));
    agrees(w.flops_halved, row.tflops, 0.01, row.us);
    // It is neither the dense count, nor (where a digit can tell) the exact one.
    CHECK(tera_per_second(w.flops_dense, row.us) > 1.9 * row.tflops);
  }
  // FlashInfer issue 3575: fmha_v2, e4m3, 32 query and 8 key heads, H200.
  CallShape s = blog_prefill(16384, 1);
  s.q_heads = 32;
  s.kv_heads = 8;
  CHECK(std::abs(tera_per_second(counted(s).flops_halved, 2614) - 841) <= 0.5);
  s.q_len = s.kv_len = 65536;
  CHECK(std::abs(tera_per_second(counted(s).flops_halved, 40979) - 858) <= 1);
}

TEST_CASE("published decode rates are the bytes of K and V alone", "[ATT-9.2]") {
  // The same blog, batch 64. Length, element bytes, TB/s, us.
  struct Row {
    std::int32_t length;
    int bytes;
    double tb, us;
  };
  const std::vector<Row> rows = {
      {16384, 2, 4.31, 498}, {16384, 1, 4.03, 266}, {65536, 2, 4.37, 1962}, {65536, 1, 4.10, 1045},
      {16384, 2, 7.08, 303}, {16384, 1, 5.46, 196}, {65536, 2, 7.10, 1209}, {65536, 1, 5.68, 755},
  };
  for (const Row& row : rows) {
    const Work w = counted(blog_decode(row.length, row.bytes));
    agrees(w.kv_bytes(), row.tb, 0.01, row.us);
    CHECK(tera_per_second(w.k_bytes, row.us) < 0.6 * row.tb);
  }
  // Of 4.8 TB/s, the H200's memory: 90 % in bf16, 84 % in fp8.
  CHECK(std::abs(4.31 / 4.8 - 0.90) <= 0.005);
  CHECK(std::abs(4.03 / 4.8 - 0.84) <= 0.005);
}

TEST_CASE("saving the second product alone gains at most 2 / (2 - s)", "[ATT-9.3]") {
  // BLASST, arXiv 2512.12087, Table 5: share of tiles skipped in percent, speed-up.
  struct Row {
    double percent, speedup;
  };
  const std::vector<Row> h200_prefill = {{23.8, 1.08}, {49.2, 1.27}, {57.3, 1.35}, {71.0, 1.52},
                                         {79.5, 1.64}, {88.5, 1.78}, {92.0, 1.84}};
  const std::vector<Row> h200_decode = {{0, 0.96},    {23.8, 1.08}, {43.7, 1.20}, {59.4, 1.31},
                                        {70.5, 1.40}, {78.4, 1.47}, {87.5, 1.56}};
  const std::vector<Row> b200_decode = {{0, 0.98},    {36.9, 1.18}, {46.7, 1.25}, {61.2, 1.34},
                                        {73.2, 1.48}, {82.6, 1.64}, {87, 1.71},   {92, 1.79}};
  const std::vector<Row> b200_prefill = {{49.2, 1.33}, {63.0, 1.43}, {71.9, 1.52},
                                         {80.8, 1.61}, {88.9, 1.71}, {94.2, 1.77}};
  for (const auto* rows : {&h200_prefill, &h200_decode, &b200_decode, &b200_prefill})
    for (const Row& row : *rows) {
      INFO(row.percent << " % " << row.speedup);
      CHECK(row.speedup <= speedup_bound(row.percent / 100) + 0.005);
    }
  // H200 prefill comes within 1 % of it at the end.
  CHECK(1.84 / speedup_bound(0.92) > 0.99);
  // B200's first row exceeds it: there the exponential limits too, and falls away with the tile. So
  // does the abstract of the paper's first version, 1.62 at 74.7 %.
  CHECK(1.25 > speedup_bound(0.389) + 0.005);
  CHECK(1.62 > speedup_bound(0.747) + 0.005);
  // XQA's README (pengbowang-nv/TensorRT-LLM ae012977), bf16.
  CHECK(1.378 < speedup_bound(0.5907));
  CHECK(1.845 < speedup_bound(0.9849));
  CHECK(speedup_bound(0) == 1);
  CHECK(speedup_bound(1) == 2);
  // vllm-omni issue 5282: half of the second product's instructions gone is 3/4 of all of them.
  CHECK(skipped_by_instructions(0.75) == 0.5);
  prop("one is the inverse of the other", [] {
    const double s = *rc::gen::inRange(0, 1001) / 1000.0;
    RC_ASSERT(std::abs(skipped_by_instructions(1 / speedup_bound(s)) - s) < 1e-12);
  });
}
