// TensorRT-LLM's warp-specialised Hopper prefill, of which FlashInfer carries a copy. Complete
// source; the machine code of its scalar expressions was read, and its kernels ran (SPEC ATT-7.1).
// Decides nothing.
#include <array>

#include "model/attention/profile.hpp"

namespace assay::attention::families {
namespace {

using Field = Profile::Field;
constexpr std::string_view kEpilogue =
    "flashinfer fb28d7242b35, csrc/fmha_v2/fmha/warpspec/epilogue.h";
constexpr std::string_view kCompute =
    "flashinfer fb28d7242b35, csrc/fmha_v2/fmha/warpspec/compute.h";
constexpr std::string_view kDma = "flashinfer fb28d7242b35, csrc/fmha_v2/fmha/warpspec/dma.h";
constexpr std::string_view kUtils = "flashinfer fb28d7242b35, csrc/fmha_v2/fmha/utils.h";
constexpr std::string_view kLibrary =
    "flashinfer fb28d7242b35, flashinfer/jit/attention/fmha_v2/fmha_library.py";
constexpr std::string_view kHost = "flashinfer fb28d7242b35, csrc/fmha_v2_run.cu";
constexpr std::string_view kBinary =
    "flashinfer 0.7.4, csrc/fmha_v2, nvcc 13.0.88 -use_fast_math -O3, driver 580.159.04, "
    "2026-11-30; cubins in verify/evidence/attention-fmha_v2-h200-2026-11-30.json";
constexpr std::string_view kSass =
    "the expression compiled by nvcc 13.0.88 -use_fast_math for sm_90a, machine code read";

// A field is measured if the outputs that ran would have differed with another value of it.
constexpr Evidence kRan = Evidence::kMeasured;
constexpr std::array<Field, 24> kFields = {{
    {"binary", "kernels of FlashInfer 0.7.4 on an H200, 159 cases, outputs equal", kBinary, kRan},
    {"unit", "64 query rows: AND over a warp, atomicAnd over four", kEpilogue, kRan},
    {"tiles", "by head size 256, 128, 64 keys; e4m3 256, 256, 128", kLibrary, kRan},
    {"range", "of the pair of units that shares key tiles; ends at the last row's diagonal", kDma},
    {"compare", "ex2((l - g) * scale_log2) < lambda: one FADD, one FMUL, MUFU, strict", kEpilogue,
     kRan},
    {"lambda", "factor / kv_len as rcp.approx and one FMUL", kSass},
    {"lambda >= 1", "as it is", kEpilogue, kRan},
    {"first tile", "the first visited one has no vote", kCompute},
    {"skip", "leaves maximum, sum, correction and output alone", kCompute, kRan},
    {"padding rows", "vote; TMA reads what lies behind the request", kEpilogue, kRan},
    {"padding keys", "what lies behind the request; in pages, the last used page again", kDma,
     kRan},
    {"hidden", "-FLT_MAX; a causal mask does not look at kv_len", kEpilogue},
    {"empty rows", "guarded with windows, chunks and custom masks only", kEpilogue},
    {"scale", "f32 product of the scale with f32 log2(e), on the host", kHost},
    {"exponent", "ex2.approx(fma.rz(s, scale_log2, -(m * scale_log2)))", kUtils, kRan},
    {"subnormals", "flushed, but by mul.f32 of O and its correction", kUtils},
    {"row sum",
     "thread's columns in order from its first, lanes xor 1, xor 2; e4m3 four partials "
     "from 0",
     kEpilogue, kRan},
    {"running sum", "FFMA old * correction + tile", kSass, kRan},
    {"correction", "ex2((m_old - m_new) * scale_log2), on every kept tile", kEpilogue, kRan},
    {"fp8", "P is 256 times larger by FFMA(m, scale_log2, -8)", kSass, kRan},
    {"sink", "one DFMA of sink, log2(e) and the f32 product, then ex2", kSass},
    {"output", "O * rcp.approx.ftz(sum)", kSass, kRan},
    {"zero sum", "factor 1", kSass},
    {"soft cap", "scores scaled, capped, then ex2((s - m) * log2(e)); two cases ran, equal",
     kUtils},
}};

// The calls of verify/evidence/attention-fmha_v2-h200-2026-11-30.json (SPEC ATT-7.1).
constexpr std::array<MeasuredCalls, 7> kMeasured = {{
    {Dtype::kBf16, 64, false, false, false, false},
    {Dtype::kBf16, 128, true, true, true, true},
    {Dtype::kBf16, 256, false, false, false, false},
    {Dtype::kF16, 128, true, true, true, true},
    {Dtype::kF8E4m3, 64, false, false, false, false},
    {Dtype::kF8E4m3, 128, true, true, true, true},
    {Dtype::kF8E4m3, 256, false, false, false, false},
}};

constexpr std::array<TileShape, 6> kTiles = {{
    {2, 64, 64, 2, 256, 0},
    {2, 128, 64, 2, 128, 0},
    {2, 256, 64, 2, 64, 0},
    {1, 64, 64, 2, 256, 0},
    {1, 128, 64, 2, 256, 0},
    {1, 256, 64, 2, 128, 0},
}};

}  // namespace

std::vector<Profile> trtllm_fmha_v2() {
  Profile p;
  p.name = "trtllm-fmha_v2-sm90";
  p.covers =
      "TensorRT-LLM and FlashInfer fmha_v2 warp-specialised sm_90, f32 accumulators, without "
      "SageAttention scales";
  p.grade = Grade::kBits;
  p.measured = kMeasured;
  p.skip.padding_rows = PaddingRows::kVote;
  p.skip.padding_fill = PaddingFill::kLastPage;
  p.skip.quotient = Quotient::kApprox;
  p.skip.fill = F32{0xFF7FFFFFu};
  p.skip.range_of_schedule = true;
  p.skip.diagonal_only = true;
  p.softmax.exp = ExpForm::kFmaRz;
  p.softmax.empty = EmptyGuard::kWindowed;
  p.softmax.zero_sum = ZeroSum::kFactorOne;
  p.softmax.sink = SinkForm::kDouble;
  p.fp8 = p.softmax;
  p.fp8->p_log2 = 8;
  p.fp8->p_log2_fused = true;
  p.fp8->tree = SumTree::kQuadFourWay;
  // Softcap and ALiBi turn the exponent's shortcut off: scores are scaled before everything else.
  p.biased = p.softmax;
  p.biased->unit = ScoreUnit::kNatural;
  p.biased->exp = ExpForm::kSubtractMultiply;
  p.biased->sink = SinkForm::kNatural;
  p.tiles = kTiles;
  p.fields = kFields;
  return {p};
}

}  // namespace assay::attention::families
