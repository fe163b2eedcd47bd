// The table of profiles, and constructed cases where two of them must differ as documented.
#include "model/attention/profile.hpp"

#include <cmath>
#include <set>

#include "model/attention/attention_testing.hpp"

namespace {

using namespace assay;
using namespace assay::attention;
using namespace assay::attention::testing;

// Keys along one direction: tile t of kv_tile keys scores level[t] nats for every row.
std::unique_ptr<Built> levels(const std::vector<float>& level, int kv_tile, int q_len, float lambda,
                              int q_heads = 1) {
  Case c;
  c.q_heads = q_heads;
  c.q_lens = {q_len};
  c.kv_lens = {static_cast<int>(level.size()) * kv_tile};
  c.lambda = lambda;
  c.head_dim = 96;  // key tiles of 128 keys in all prefill profiles
  auto built = build(c);
  built->q.fill(c.dtype, q_len, q_heads, 96, [](int, int, int d) { return d == 0 ? 1.0f : 0.0f; });
  built->k.fill(c.dtype, c.kv_lens[0], 1, 96, [&](int i, int, int d) {
    return d == 0 ? level[static_cast<std::size_t>(i / kv_tile)] : 0.0f;
  });
  Request& r = built->problem.requests[0];
  r.q = contiguous_rows(built->q.bytes.data(), 0, q_len, q_heads, 96, 2);
  r.k = contiguous_rows(built->k.bytes.data(), 0, r.kv_len, 1, 96, 2);
  built->problem.scale = 1;
  return built;
}

std::vector<Decision> trace(const char* profile, const Problem& problem, std::size_t unit = 0) {
  return decisions(run(profile_named(profile), problem).units[unit]);
}

constexpr Decision kK = Decision::kKept;
constexpr Decision kS = Decision::kSkipped;
using Trace = std::vector<Decision>;

}  // namespace

TEST_CASE("every profile names its fields' sources, and claims bits only where the source is read",
          "[ATT-4.1]") {
  std::set<std::string> names;
  for (const Profile& profile : profiles()) {
    CAPTURE(profile.name);
    REQUIRE(names.insert(std::string(profile.name)).second);
    REQUIRE(!profile.fields.empty());
    REQUIRE(!profile.covers.empty());
    Evidence weakest = Evidence::kMeasured;
    for (const Profile::Field& field : profile.fields) {
      REQUIRE(!field.source.empty());
      weakest = std::max(weakest, field.evidence);
    }
    REQUIRE(profile.evidence >= weakest);
    REQUIRE((profile.grade == Grade::kBits) == !profile.measured.empty());
    if (profile.grade <= Grade::kBitsClaimed)
      REQUIRE(profile.evidence <= Evidence::kReadFromSource);
    REQUIRE(*find_profile(profile.name) == &profile);
  }
  REQUIRE(names.size() == 15);
  REQUIRE(find_profile("fa4").error().sentence.find("assay-prefill-sm90") != std::string::npos);
}

TEST_CASE("bits that were reproduced are those of the calls that ran, others are claimed",
          "[ATT-4.1][ATT-4.8]") {
  const Profile& fmha = profile_named("trtllm-fmha_v2-sm90");
  const std::int32_t table[] = {0};
  const float sink[] = {0}, slope[] = {1};
  const auto grade = [&](Dtype dtype, int dim, MaskKind mask, const auto& change) {
    Case c;
    c.dtype = dtype;
    c.head_dim = c.v_dim = dim;
    c.mask = mask;
    c.mask_size = 8;
    c.kv_lens = {9};
    c.lambda = 0.5f;
    const auto built = build(c);
    change(built->problem);
    const auto resolved = resolve(fmha, built->problem);
    REQUIRE(resolved.has_value());
    return resolved->grade;
  };
  const auto same = [](Problem&) {};
  const auto paged = [&](Problem& p) { p.requests[0].k.block_table = table; };
  const auto sinks = [&](Problem& p) { p.sinks = sink; };
  const auto dense = [](Problem& p) { p.requests[0].threshold = {}; };
  const auto zero = [](Problem& p) { p.requests[0].threshold.value = 0; };
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kF16, Dtype::kF8E4m3}) {
    const bool f16 = dtype == Dtype::kF16;
    for (const int dim : {32, 64, 96, 128, 256}) {
      CAPTURE(dtype_name(dtype), dim);
      const bool plain = dim == 128 || (!f16 && (dim == 64 || dim == 256));
      const auto or_claimed = [](bool bits) { return bits ? Grade::kBits : Grade::kBitsClaimed; };
      REQUIRE(grade(dtype, dim, MaskKind::kFull, same) == or_claimed(plain));
      REQUIRE(grade(dtype, dim, MaskKind::kCausal, same) == or_claimed(plain));
      REQUIRE(grade(dtype, dim, MaskKind::kWindow, same) == or_claimed(dim == 128));
      REQUIRE(grade(dtype, dim, MaskKind::kChunked, same) == or_claimed(dim == 128));
      REQUIRE(grade(dtype, dim, MaskKind::kCausal, paged) == or_claimed(dim == 128));
      REQUIRE(grade(dtype, dim, MaskKind::kCausal, sinks) == or_claimed(dim == 128));
      REQUIRE(grade(dtype, dim, MaskKind::kCausal, dense) == or_claimed(dim == 128));
      REQUIRE(grade(dtype, dim, MaskKind::kCausal, zero) == or_claimed(dim == 128));
    }
    const auto changed = [&](const auto& change) {
      return grade(dtype, 128, MaskKind::kCausal, change);
    };
    REQUIRE(changed([](Problem& p) { p.v_dim = 64; }) == Grade::kBitsClaimed);
    REQUIRE(changed([](Problem& p) { p.rope_dim = 64; }) == Grade::kBitsClaimed);
    REQUIRE(changed([](Problem& p) { p.requests[0].q_offset = 0; }) == Grade::kBitsClaimed);
    REQUIRE(changed([](Problem& p) { p.requests[0].kv_len = 0; }) == Grade::kBitsClaimed);
    REQUIRE(changed([](Problem& p) { p.requests[0].q_len = 10; }) == Grade::kBitsClaimed);
    REQUIRE(changed([](Problem& p) { p.custom_mask.resize(1); }) == Grade::kBitsClaimed);
    REQUIRE(changed([](Problem& p) { p.q_scale = 2; }) ==
            (dtype == Dtype::kF8E4m3 ? Grade::kBits : Grade::kBitsClaimed));
    REQUIRE(changed([&](Problem& p) { p.out_dtype = f16 ? Dtype::kBf16 : Dtype::kF16; }) ==
            Grade::kBitsClaimed);
    if (dtype == Dtype::kF8E4m3) continue;
    REQUIRE(changed([](Problem& p) { p.softcap = 20; }) == Grade::kDecisions);
    REQUIRE(changed([&](Problem& p) { p.alibi_slopes = slope; }) == Grade::kDecisions);
  }
}

TEST_CASE("what an implementation does not have is refused, not ignored", "[ATT-4.2][ATT-7.8]") {
  Case c;
  const auto built = build(c);
  const auto refusal = [&](const char* name, const auto& change) {
    Problem p = built->problem;
    change(p);
    const auto resolved = resolve(profile_named(name), p);
    REQUIRE(!resolved.has_value());
    REQUIRE(resolved.error().kind == ErrorKind::kUnsupported);
    return resolved.error().sentence;
  };
  REQUIRE(refusal("paper", [](Problem& p) { p.dtype = Dtype::kF8E4m3; }) ==
          "profile paper has no fp8 form");
  REQUIRE(refusal("assay-prefill-sm90", [](Problem& p) { p.softcap = 1; }) ==
          "profile assay-prefill-sm90 has no soft cap, which the call has");
  REQUIRE(refusal("assay-prefill-sm90", [](Problem& p) { p.head_dim = 24; }) ==
          "profile assay-prefill-sm90 needs a head_dim that is a multiple of 16, not 24");
  REQUIRE(
      refusal("trtllm-fmha_v2-sm90", [](Problem& p) { p.head_dim = 512; }) ==
      "profile trtllm-fmha_v2-sm90 has no tile for head_dim 512, v_dim 32 of BF16; allowed are up "
      "to 256");
  const float sink = 0;
  REQUIRE(refusal("modelopt-triton", [&](Problem& p) {
            p.sinks = {&sink, 1};
          }) == "profile modelopt-triton has no attention sinks");
  REQUIRE(refusal("fa3-dense-sm90", [](Problem& p) {
            p.requests[0].threshold = {Threshold::Kind::kLambda, 0.5f};
          }) == "profile fa3-dense-sm90 never skips, so a threshold would be ignored");
}

TEST_CASE("at an exact tie strict rules keep and the others skip", "[ATT-4.3][ATT-7.5]") {
  // exp of a difference of 0 is 1: the tie at lambda 1 is exact in every form.
  const auto tie = levels({0, 0, 0}, 128, 128, 1.0f);
  REQUIRE(trace("assay-prefill-sm90", tie->problem) == Trace{kK, kK, kK});
  REQUIRE(trace("trtllm-fmha_v2-sm90", tie->problem) == Trace{kK, kK, kK});
  REQUIRE(trace("paper", tie->problem) == Trace{kK, kK, kK});
  REQUIRE(trace("modelopt-pytorch", tie->problem) == Trace{kS, kS, kS});
}

TEST_CASE("lambda above 1 does what each implementation is known for",
          "[ATT-4.6][ATT-7.2][ATT-7.7]") {
  const float above = 20.0f;  // ln 20 = 2.996
  // The second tile holds the row's maximum, by 2 nats.
  const auto rising = levels({0, 2, 2}, 128, 128, above);
  REQUIRE(trace("assay-prefill-sm90", rising->problem) == Trace{kK, kK, kK});
  REQUIRE(trace("trtllm-fmha_v2-sm90", rising->problem) == Trace{kK, kS, kS});
  REQUIRE(trace("trtllm-gen-context-sm100", rising->problem) == Trace{kK, kS, kS});
  REQUIRE(trace("paper", rising->problem) == Trace{kS, kS, kS});
  REQUIRE(numerics::is_nan(Bf16{run(profile_named("paper"), rising->problem).out[0]}));
  // XQA lets a skipped tile raise the maximum. 0, 2, 4: fmha_v2 compares the last with 0 and keeps.
  const auto climbing = levels({0, 2, 4}, 64, 1, above, 8);
  REQUIRE(trace("trtllm-xqa-sm90", climbing->problem) == Trace{kK, kS, kS});
  REQUIRE(trace("trtllm-xqa-sm90@nofix", climbing->problem) == Trace{kK, kK, kK});
  const auto wide = levels({0, 2, 4}, 128, 64, above);
  REQUIRE(trace("trtllm-fmha_v2-sm90", wide->problem) == Trace{kK, kS, kK});
}

TEST_CASE("a partial last unit vetoes in fmha_v2 and not in ours", "[ATT-4.5]") {
  // 100 rows: the second unit has 28 padding rows, zeros behind the tensor, whose scores are 0.
  const auto built = levels({0, -30, -30}, 128, 100, 1e-3f);
  REQUIRE(trace("assay-prefill-sm90", built->problem, 1) == Trace{kK, kS, kS});
  REQUIRE(trace("trtllm-fmha_v2-sm90", built->problem, 0) == Trace{kK, kS, kS});
  REQUIRE(trace("trtllm-fmha_v2-sm90", built->problem, 1) == Trace{kK, kK, kK});
}

TEST_CASE("a tile beyond a unit's diagonal is visited by fmha_v2 and counted as skipped",
          "[ATT-1.2][ATT-7.1]") {
  auto built = levels(std::vector<float>(4, 0), 64, 256, 1e-3f);
  Problem& p = built->problem;
  p.mask = MaskKind::kCausal;
  p.head_dim = 256;  // key tiles of 64 rows
  std::vector<std::uint16_t> zeros(256 * 256);
  p.requests[0].q = p.requests[0].k = contiguous_rows(zeros.data(), 0, 256, 1, 256, 2);
  REQUIRE(trace("trtllm-fmha_v2-sm90", p, 0) == Trace{kK, kS});
  REQUIRE(trace("assay-prefill-sm90", p, 0) == Trace{kK});
  REQUIRE(trace("assay-prefill-sm90", p, 1) == Trace{kK, kK});
}

TEST_CASE("warps of trtllm-gen write zeros in a tile that others keep", "[ATT-4.4][ATT-7.3]") {
  // Rows of the first warp are far below in the second tile, the others are not.
  auto built = levels({0, -30}, 128, 128, 1e-3f);
  built->q.fill(Dtype::kBf16, 128, 1, 96,
                [](int i, int, int d) { return d == 0 && i < 32 ? 1.0f : 0.0f; });
  built->problem.requests[0].q = contiguous_rows(built->q.bytes.data(), 0, 128, 1, 96, 2);
  const Emulation got = run(profile_named("trtllm-gen-context-sm100"), built->problem);
  REQUIRE(decisions(got.units[0]) == Trace{kK, Decision::kPartlyZeroed});
  REQUIRE(got.units[0].tiles[1].zeroed == std::bitset<128>(1));
  REQUIRE(got.counters.partly_zeroed == 1);
  const auto emulator = Emulator::make(profile_named("trtllm-gen-context-sm100"), built->problem);
  const Kept kept = kept_pairs(*emulator, got);
  REQUIRE_FALSE(kept(0, 0, 31, 200));
  REQUIRE(kept(0, 0, 32, 200));
  REQUIRE(trace("assay-prefill-sm90", built->problem, 1) == Trace{kK, kK});
}

TEST_CASE("a factor is divided by what the profile says", "[ATT-2.4][ATT-4.6]") {
  // Two requests of 256 and 1024 keys; factor 64: lambda 1/4 or 1/16. The low tile lies 2 nats
  // below.
  Case c;
  c.q_lens = {1, 1};
  c.kv_lens = {256, 1024};
  auto built = build(c);
  built->q.fill(c.dtype, 2, 1, 32, [](int, int, int d) { return d == 0 ? 1.0f : 0.0f; });
  built->k.fill(c.dtype, 1280, 1, 32,
                [](int i, int, int d) { return d == 0 && i >= 128 && i < 256 ? -2.0f : 0.0f; });
  Problem& p = built->problem;
  p.scale = 1;
  int row = 0, key = 0;
  for (Request& r : p.requests) {
    r.q = contiguous_rows(built->q.bytes.data(), row++, 1, 1, 32, 2);
    r.k = contiguous_rows(built->k.bytes.data(), key, r.kv_len, 1, 32, 2);
    key += r.kv_len;
    r.threshold = {Threshold::Kind::kScaleFactor, 64};
  }
  REQUIRE(trace("assay-prefill-sm90", p) == Trace{kK, kS});        // exp(-2) = 0.135 < 1/4
  REQUIRE(trace("flashinfer-cutedsl-sm100", p) == Trace{kK, kK});  // not < 1/16
  const auto emulator = Emulator::make(profile_named("trtllm-fmha_v2-sm90"), p);
  REQUIRE(emulator->lambda(0).lambda.bits == 0x3E800000u);
}

TEST_CASE("rows of AITER write zeros for themselves", "[ATT-4.4][ATT-7.6]") {
  auto built = levels({0, -30}, 128, 128, 1e-3f);
  built->q.fill(Dtype::kBf16, 128, 1, 96,
                [](int i, int, int d) { return d == 0 && i % 2 == 0 ? 1.0f : 0.0f; });
  built->problem.requests[0].q = contiguous_rows(built->q.bytes.data(), 0, 128, 1, 96, 2);
  const Emulation got = run(profile_named("aiter-triton-mi300"), built->problem);
  const Decision zeroed = Decision::kPartlyZeroed;
  REQUIRE(decisions(got.units[0]) == Trace{kK, kK, zeroed, zeroed});  // tiles of 64 keys
  for (std::size_t row = 0; row < 128; ++row)
    REQUIRE(got.units[0].tiles[2].zeroed.test(row) == (row % 2 == 0));
}

TEST_CASE("the quotient and the logarithm of lambda are the profile's own", "[ATT-4.6][ATT-6.3]") {
  const auto built = levels({0}, 128, 1, 0);
  const Scale scale = scale_of(built->problem, Softmax());
  SkipRule rule;
  int quotients = 0, logarithms = 0;
  for (int length = 3; length < 400; ++length) {
    const Threshold threshold{Threshold::Kind::kScaleFactor, 1.7f};
    const Lambda ieee = lambda_of(rule, threshold, length, scale, false);
    REQUIRE(ieee.lambda.bits == numerics::from_float(1.7f / static_cast<float>(length)).bits);
    SkipRule other = rule;
    other.quotient = Quotient::kApprox;
    quotients += lambda_of(other, threshold, length, scale, true).lambda.bits != ieee.lambda.bits;
    other = rule;
    other.logarithm = Logarithm::kApprox;
    logarithms +=
        lambda_of(other, threshold, length, scale, false).logarithm.bits != ieee.logarithm.bits;
  }
  REQUIRE(quotients > 20);
  REQUIRE(logarithms > 20);
  // No keys: 1.7 / 0 is Inf, and our profile's clamp makes it 1; 0 / 0 never skips.
  rule.above_one = LambdaAboveOne::kClamp;
  const Threshold some{Threshold::Kind::kScaleFactor, 1.7f}, none{Threshold::Kind::kScaleFactor, 0};
  REQUIRE(lambda_of(rule, some, 0, scale, false).lambda.bits == kOne.bits);
  const Lambda nan = lambda_of(rule, none, 0, scale, false);
  REQUIRE_FALSE(row_may_skip(rule, nan, scale, F32{0xC2C80000u}, F32{0}, false));
}

TEST_CASE("a lazy maximum makes a rule more conservative", "[ATT-4.4][ATT-7.4]") {
  // 0, then 5 (within 8 log2 units: the reference stays 0), then -3. exp(-8) < 1e-3, exp(-3) is
  // not.
  const auto built = levels({0, 5, -3}, 128, 128, 1e-3f);
  REQUIRE(trace("assay-prefill-sm90", built->problem) == Trace{kK, kK, kS});
  REQUIRE(trace("flashinfer-cutedsl-sm100", built->problem) == Trace{kK, kK, kK});
}

TEST_CASE("decisions near the threshold are told from the others", "[ATT-5.6]") {
  const float lambda = std::exp(-2.0f);
  const Emulation tie =
      run(profile_named("assay-prefill-sm90"), levels({0, -2}, 128, 64, lambda)->problem);
  REQUIRE(tie.counters.near_ties == 1);
  const Emulation clear =
      run(profile_named("assay-prefill-sm90"), levels({0, -2.0625f}, 128, 64, lambda)->problem);
  REQUIRE(clear.counters.near_ties == 0);
}
