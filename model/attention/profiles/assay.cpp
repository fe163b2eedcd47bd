// The profiles of this repository's own Hopper kernels: what a fast wgmma kernel can do at no cost,
// with every open question of the others answered. Decides SPEC ATT-6.1 to ATT-6.4.
#include <array>

#include "model/attention/profile.hpp"

namespace assay::attention::families {
namespace {

using Field = Profile::Field;
// A field is measured: kernels on an H200 had these bits in suites, in 2,000 random problems of
// each profile and in problems of 65,536 keys.
constexpr std::string_view kOurs =
    "this repository, SPEC ATT-6; verify/evidence/attention-h200-x1-2026-11-30.json";
constexpr Evidence kRan = Evidence::kMeasured;

constexpr std::array<Field, 15> kPrefillFields = {{
    {"unit", "64 query rows of one head: one warpgroup", kOurs, kRan},
    {"tiles", "128 keys, 64 for head sizes above 128; each unit visits its own range", kOurs, kRan},
    {"order", "first key tile first", kOurs, kRan},
    {"compare", "raw l < max(g + log2(lambda) / scale_log2, -FLT_MAX), strict, g before the tile",
     kOurs, kRan},
    {"skip", "leaves maximum, sum and output alone", kOurs, kRan},
    {"first tile", "the first visited tile is kept", kOurs, kRan},
    {"padding", "rows beyond q_len abstain; keys beyond kv_len are zero rows of V", kOurs, kRan},
    {"lambda", "div.rn(factor, kv_len of the request), at most 1; log2 by lg2.approx.ftz", kOurs,
     kRan},
    {"exponent", "ex2.approx.ftz(fma.rn(s, scale_log2, -(m * scale_log2)))", kOurs, kRan},
    {"row sum", "per thread even and odd columns apart, joined by one fma a tile; quad at the end",
     kOurs, kRan},
    {"P", "cvt.rn to the inputs' type, from registers", kOurs, kRan},
    {"correction", "ex2(m_old * scale_log2 - m_new * scale_log2), mul.rn on the accumulator", kOurs,
     kRan},
    {"fp8", "P is 256 times larger; each tile's P V starts from zero, O = fma(O, correction, PV)",
     kOurs, kRan},
    {"output", "O * (1 / sum), the reciprocal by div.rn; 0 for a row without keys", kOurs, kRan},
    {"lse", "log2 units, of what was kept: m * scale_log2 + lg2.approx.ftz(sum)", kOurs, kRan},
}};
constexpr std::array<Field, 6> kDecodeFields = {{
    {"unit", "64 rows: the query heads of one key head, packed with the query tokens", kOurs, kRan},
    {"tiles", "64 keys", kOurs, kRan},
    {"chunks",
     "2048 keys counted from key 0, each with a maximum of its own; its first tile is "
     "kept; splits hold whole chunks",
     kOurs, kRan},
    {"merge", "chunk by chunk: what came before and the chunk, weighted to the larger maximum",
     kOurs, kRan},
    {"row sum",
     "keys are rows of the score tile: per thread two keys, joined by fma; lanes xor 16, "
     "8, 4 and (0+1)+(2+3) of the warps at the end",
     kOurs, kRan},
    {"matrix instruction", "mma.sync, which for e4m3 is f16 and an addition for every 32 products",
     kOurs, kRan},
}};

constexpr std::array<TileShape, 4> kPrefillTiles = {{
    {2, 128, 64, 1, 128, 0},
    {2, 256, 64, 1, 64, 0},
    {1, 128, 64, 1, 128, 0},
    {1, 256, 64, 1, 64, 0},
}};
constexpr std::array<TileShape, 2> kDecodeTiles = {{
    {2, 576, 64, 1, 64, 0},
    {1, 576, 64, 1, 64, 0},
}};

// The types and sizes that there are kernels for; of sinks there is none (SPEC ATT-4.8).
constexpr std::array<MeasuredCalls, 8> kMeasured = {{
    {Dtype::kBf16, 64, true, true, true, false},
    {Dtype::kBf16, 128, true, true, true, false},
    {Dtype::kBf16, 256, true, true, true, false},
    {Dtype::kF16, 64, true, true, true, false},
    {Dtype::kF16, 128, true, true, true, false},
    {Dtype::kF16, 256, true, true, true, false},
    {Dtype::kF8E4m3, 128, true, true, true, false},
    {Dtype::kF8E4m3, 256, true, true, true, false},
}};

// SPEC ATT-6.3.
SkipRule rule() {
  SkipRule r;
  r.compare = Compare::kAddedRaw;
  r.above_one = LambdaAboveOne::kClamp;
  r.logarithm = Logarithm::kApprox;
  return r;
}

// SPEC ATT-6.2.
Softmax arithmetic() {
  Softmax s;
  s.empty = EmptyGuard::kAlways;
  s.tree = SumTree::kThreadEvenOdd;
  s.correction = CorrectionForm::kScaledDifference;
  s.reciprocal = Reciprocal::kIeee;
  s.v_scale_in_reciprocal = true;
  s.sink = SinkForm::kFma;
  s.lse = LseForm::kLog2;
  s.max_nan = numerics::NanRule::kPropagate;
  s.flush = false;
  return s;
}

Softmax fp8(Softmax s) {
  s.p_log2 = 8;
  s.p_log2_fused = true;
  s.promote = true;
  return s;
}

}  // namespace

std::vector<Profile> assay() {
  Profile prefill;
  prefill.name = "assay-prefill-sm90";
  prefill.covers = "the prefill kernel of this repository; bf16, f16, e4m3; any mask";
  prefill.grade = Grade::kBits;
  prefill.evidence = Evidence::kMeasured;
  prefill.measured = kMeasured;
  prefill.skip = rule();
  prefill.softmax = arithmetic();
  prefill.fp8 = fp8(arithmetic());
  prefill.tiles = kPrefillTiles;
  prefill.fields = kPrefillFields;

  Profile decode = prefill;
  decode.name = "assay-decode-sm90";
  decode.covers = "the decode kernel of this repository; bf16, f16, e4m3; any mask, MLA";
  decode.instruction_family = "mma.sync";
  decode.skip.packing = Packing::kGroupRows;
  decode.skip.split = Split::kChunks;
  decode.skip.chunk_keys = 2048;
  for (Softmax* s : {&decode.softmax, &*decode.fp8}) {
    s->tree = SumTree::kTokensRunning;
    s->partial = Partial::kFolded;
  }
  decode.tiles = kDecodeTiles;
  decode.fields = kDecodeFields;
  return {prefill, decode};
}

}  // namespace assay::attention::families
