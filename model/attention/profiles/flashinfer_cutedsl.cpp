// FlashInfer's CuTe-DSL kernels for Blackwell: prefill and grouped paged decode. The source states
// decisions; arithmetic in between is scheduled by a compiler (SPEC ATT-7.4). Decides nothing.
#include <array>

#include "model/attention/profile.hpp"

namespace assay::attention::families {
namespace {

using Field = Profile::Field;
constexpr std::string_view kFmha =
    "flashinfer fb28d7242b35, flashinfer/cute_dsl/attention/fmha/fmha.py";
constexpr std::string_view kHost = "flashinfer fb28d7242b35, flashinfer/attention/cute_dsl/fmha.py";
constexpr std::string_view kDecode =
    "flashinfer fb28d7242b35, flashinfer/cute_dsl/attention/gqa_decode_paged.py";

constexpr std::array<Field, 7> kPrefillFields = {{
    {"unit", "128 query rows: four warps exchange flags", kFmha},
    {"tiles", "128 keys", kFmha},
    {"compare", "l * scale_log2 - g * scale_log2 < log2(lambda), strict; g as carried", kFmha},
    {"running maximum", "stale: it moves only if it rises by more than 8 in log2 units", kFmha},
    {"first tile", "kept because the first maximum is -inf", kFmha},
    {"padding rows", "forced to agree", kFmha},
    {"lambda", "factor over the longest kv_len of the batch, log2 on the host", kHost},
}};
constexpr std::array<Field, 4> kDecodeFields = {{
    {"unit", "the query heads of one key head", kDecode},
    {"tiles", "128 keys; the first two of a block are kept", kDecode},
    {"compare", "keeps if l - g >= log2(factor) - log2(kv_len), in log2 units", kDecode},
    {"lambda",
     "as a difference of logarithms; here log2 of the quotient, which may differ by an "
     "ulp",
     kDecode, Evidence::kInferred},
}};

constexpr std::array<TileShape, 1> kPrefillTiles = {{{2, 128, 128, 1, 128, 0}}};
constexpr std::array<TileShape, 1> kDecodeTiles = {{{2, 128, 64, 1, 128, 0}}};

}  // namespace

std::vector<Profile> flashinfer_cutedsl() {
  Profile p;
  p.name = "flashinfer-cutedsl-sm100";
  p.covers = "FlashInfer CuTe-DSL prefill, 16-bit";
  p.skip.compare = Compare::kScaledLog2;
  p.skip.kept_first = 0;
  p.skip.lambda_length = LambdaLength::kBatchMax;
  p.skip.lazy_log2 = 8;
  p.softmax.empty = EmptyGuard::kAlways;
  p.softmax.tree = SumTree::kThreadRunning;
  p.tiles = kPrefillTiles;
  p.arch = numerics::Arch::kSm100a;
  p.instruction_family = "tcgen05";
  p.fields = kPrefillFields;

  Profile decode = p;
  decode.name = "flashinfer-cutedsl_decode-sm100";
  decode.covers = "FlashInfer CuTe-DSL grouped paged decode, 16-bit";
  decode.evidence = Evidence::kInferred;
  decode.skip.packing = Packing::kGroupRows;
  decode.skip.compare = Compare::kDifference;
  decode.skip.kept_first = 2;
  decode.skip.lambda_length = LambdaLength::kRequest;
  decode.skip.lazy_log2 = 0;
  decode.softmax.unit = ScoreUnit::kLog2;
  decode.tiles = kDecodeTiles;
  decode.fields = kDecodeFields;
  return {p, decode};
}

}  // namespace assay::attention::families
