// Every field of a profile reaches an output: a profile with one field changed is told from the
// original by bits, LSE or decisions of some problem. This is what mutants rely on.
#include <functional>
#include <limits>

#include "model/attention/attention_testing.hpp"

namespace {

using namespace assay;
using namespace assay::attention;
using namespace assay::attention::testing;

struct Change {
  const char* name;
  const char* profile;
  std::function<void(Profile&)> change;
  std::function<void(Case&)> aim = [](Case&) {};      // makes the field matter
  std::function<void(Built&)> spoil = [](Built&) {};  // likewise, on the built problem
};

constexpr const char* kPrefill = "assay-prefill-sm90";
constexpr const char* kDecode = "assay-decode-sm90";
constexpr const char* kFmha = "trtllm-fmha_v2-sm90";
constexpr const char* kXqa = "trtllm-xqa-sm90";
constexpr const char* kGen = "trtllm-gen-context-sm100";

void above_one(Case& c) { c.lambda = 20; }
void fp8(Case& c) { c.dtype = Dtype::kF8E4m3; }
void equal_scores(Built& b) { std::fill(b.q.bytes.begin(), b.q.bytes.end(), std::byte{0}); }
// Tiles of 128 keys 0, 2, 4 ... nats high, the last of a unit's rows included.
void climbing(Built& b) {
  for (int i = 0; i < 700; ++i)
    b.k.set(static_cast<std::size_t>(i * 96 * 2),
            static_cast<float>(i / 128) * 2 / (4 * b.problem.scale));
}
// A scale whose product with -FLT_MAX is exact, so that an unguarded empty row gives P = 1.
void exact_scale(Built& b) { b.problem.scale = 0.6931471824645996f; }
void factor(Built& b) {
  for (Request& r : b.problem.requests)
    r.threshold = {Threshold::Kind::kScaleFactor, 0.3f * static_cast<float>(r.kv_len)};
}
void sinks(Built& b) {
  static const float kSinks[] = {0.7f, -0.3f, 1.1f, 0.2f};
  b.problem.sinks = {kSinks, static_cast<std::size_t>(b.problem.q_heads)};
}
void one_nan_key(Built& b) { b.k.set(0, std::numeric_limits<float>::quiet_NaN()); }
void one_nan_value_behind(Built& b) {
  b.v.set(b.v.bytes.size() - 2, std::numeric_limits<float>::quiet_NaN());
  b.problem.requests[0].kv_len -= 1;
}
void no_keys(Case& c) { c.mask = MaskKind::kWindow, c.mask_size = 8, c.kv_lens = {0}; }

const std::vector<Change>& changes() {
  static const std::vector<Change> list = {
      {"strict", kPrefill, [](Profile& p) { p.skip.strict = false; }, [](Case& c) { c.lambda = 1; },
       equal_scores},
      {"compare raw for scaled", kFmha, [](Profile& p) { p.skip.compare = Compare::kExp; }},
      {"reference", kFmha, [](Profile& p) { p.skip.reference = Reference::kInclusive; }, above_one,
       climbing},
      {"max_on_skip", kFmha, [](Profile& p) { p.skip.max_on_skip = MaxOnSkip::kRaise; }, above_one,
       climbing},
      {"kept_first", kFmha, [](Profile& p) { p.skip.kept_first = 2; }, above_one},
      {"zeroing_rows", kGen, [](Profile& p) { p.skip.zeroing_rows = 0; }},
      {"padding_rows", kFmha, [](Profile& p) { p.skip.padding_rows = PaddingRows::kAbstain; },
       [](Case& c) { c.q_lens = {100}; }},
      {"padding_fill", kFmha, [](Profile& p) { p.skip.padding_fill = PaddingFill::kZero; },
       [](Case& c) { c.kv_lens = {300}; }, one_nan_value_behind},
      {"lambda_length", kFmha, [](Profile& p) { p.skip.lambda_length = LambdaLength::kNone; },
       [](Case&) {}, factor},
      {"lambda above one", kPrefill, [](Profile& p) { p.skip.above_one = LambdaAboveOne::kAllow; },
       above_one},
      {"no skipping above one", kXqa, [](Profile& p) { p.skip.above_one = LambdaAboveOne::kDense; },
       above_one},
      {"backward", kPrefill, [](Profile& p) { p.skip.backward = true; }},
      {"split", kDecode, [](Profile& p) { p.skip.split = Split::kNone; },
       [](Case& c) { c.kv_lens = {5000}; }},
      {"chunk_keys", kDecode, [](Profile& p) { p.skip.chunk_keys = 64; }},
      {"lazy maximum", kPrefill, [](Profile& p) { p.skip.lazy_log2 = 8; }},
      {"first maximum", kXqa, [](Profile& p) { p.skip.initial_max = F32{0x41000000u}; }},
      {"range_of_schedule", kFmha, [](Profile& p) { p.skip.range_of_schedule = false; },
       [](Case& c) { c.mask = MaskKind::kCausal; }},
      {"unit of scores", kPrefill, [](Profile& p) { p.softmax.unit = ScoreUnit::kNatural; }},
      {"exponent cut", kFmha, [](Profile& p) { p.softmax.exp = ExpForm::kFmaRn; }},
      {"exponent by difference", kPrefill,
       [](Profile& p) { p.softmax.exp = ExpForm::kSubtractMultiply; }},
      {"empty rows", kFmha, [](Profile& p) { p.softmax.empty = EmptyGuard::kAlways; },
       [](Case& c) { c.mask = MaskKind::kCausal, c.kv_lens = {100}, c.q_lens = {120}; },
       exact_scale},
      {"p_log2", kPrefill, [](Profile& p) { p.fp8->p_log2 = 0; }, fp8},
      {"p_multiplier", kXqa, [](Profile& p) { p.softmax.p_multiplier = kOne; }},
      {"tree per tile", kFmha, [](Profile& p) { p.softmax.tree = SumTree::kQuadFourWay; }},
      {"tree per thread", kPrefill, [](Profile& p) { p.softmax.tree = SumTree::kThreadRunning; }},
      {"tree of tokens", kDecode, [](Profile& p) { p.softmax.tree = SumTree::kTokensWarps; }},
      {"join", kPrefill, [](Profile& p) { p.softmax.join = SumJoin::kMultiplyAdd; }},
      {"correction", kPrefill,
       [](Profile& p) { p.softmax.correction = CorrectionForm::kDifferenceTimesScale; }},
      {"promote", kPrefill, [](Profile& p) { p.fp8->promote = false; }, fp8},
      {"reciprocal", kPrefill, [](Profile& p) { p.softmax.reciprocal = Reciprocal::kApprox; }},
      {"sink", kPrefill, [](Profile& p) { p.softmax.sink = SinkForm::kNatural; }, [](Case&) {},
       sinks},
      {"lse", kPrefill, [](Profile& p) { p.softmax.lse = LseForm::kLn; }},
      {"partial", kXqa, [](Profile& p) { p.softmax.partial = Partial::kF32; },
       [](Case& c) { c.splits = 3; }},
      {"folded", kDecode, [](Profile& p) { p.softmax.partial = Partial::kF32; },
       [](Case& c) { c.kv_lens = {5000}; }},
      {"max_nan", kPrefill, [](Profile& p) { p.softmax.max_nan = numerics::NanRule::kDrop; },
       [](Case& c) { c.dtype = Dtype::kBf16; }, one_nan_key},
      {"zero_sum", kPrefill, [](Profile& p) { p.softmax.zero_sum = ZeroSum::kInfinite; }, no_keys},
  };
  return list;
}

bool same(const Emulation& a, const Emulation& b) {
  if (a.out != b.out || !same_lse(a, b) || a.units.size() != b.units.size()) return false;
  for (std::size_t i = 0; i < a.units.size(); ++i)
    if (decisions(a.units[i]) != decisions(b.units[i])) return false;
  return true;
}

bool told_apart(const Change& change) {
  const Profile& base = profile_named(change.profile);
  Profile changed = base;
  change.change(changed);
  const bool decode = base.skip.packing == Packing::kGroupRows;
  for (unsigned seed = 0; seed < 40; ++seed) {
    Case c;
    c.dtype = Dtype::kF16;
    c.q_heads = decode ? 4 : 1;
    c.q_lens = {decode ? 2 : 128};  // whole units, so that padding vetoes only where meant
    c.kv_lens = {700};
    c.head_dim = 96;
    c.lambda = 0.3f;
    c.spread = 0.5f + 0.1f * static_cast<float>(seed % 8);
    c.contrast = 2.0f;
    c.seed = seed;
    change.aim(c);
    const auto built = build(c);
    change.spoil(*built);
    if (!same(run(base, built->problem), run(changed, built->problem))) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("a profile with one field changed is told from the original",
          "[ATT-4.1][ATT-4.4][ATT-5.2][ATT-5.3][ATT-5.4][ATT-6.2][ATT-6.3]") {
  for (const Change& change : changes()) {
    CAPTURE(change.name, change.profile);
    CHECK(told_apart(change));
  }
}
