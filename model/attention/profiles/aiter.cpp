// AMD's AITER Triton kernel: rows decide alone, tiles are elided only if all rows agree. Decisions
// only, with another vendor's arithmetic in between (SPEC ATT-7.6). Decides nothing.
#include <array>

#include "model/attention/profile.hpp"

namespace assay::attention::families {
namespace {

using Field = Profile::Field;
constexpr std::string_view kKernel =
    "amd-sonsingh/aiter 505ef3d1, aiter/ops/triton/_triton_kernels/attention/mha.py";
constexpr std::string_view kFix = "amd-sonsingh/aiter 505ef3d1, BLASST_BLOCK_SKIP_NAN_FIX.md";

constexpr std::array<Field, 5> kFields = {{
    {"unit", "one row writes zeros for P; 128 rows elide the second product", kKernel},
    {"tiles", "64 keys; the tuner may choose others", kKernel, Evidence::kInferred},
    {"compare", "l - g < log2(lambda) in log2 units, strict", kFix},
    {"maximum", "before the tile, since the fix; -inf keeps the first", kFix},
    {"lambda", "given directly", kKernel},
}};
constexpr std::array<TileShape, 1> kTiles = {{{2, 256, 128, 1, 64, 0}}};

}  // namespace

std::vector<Profile> aiter() {
  Profile p;
  p.name = "aiter-triton-mi300";
  p.covers = "AITER's Triton prefill with block skipping, after the fix for lambda above 1";
  p.evidence = Evidence::kInferred;
  p.skip.compare = Compare::kDifference;
  p.skip.kept_first = 0;
  p.skip.zeroing_rows = 1;
  p.skip.lambda_length = LambdaLength::kNone;
  p.softmax.unit = ScoreUnit::kLog2;
  p.softmax.empty = EmptyGuard::kAlways;
  p.tiles = kTiles;
  p.fields = kFields;
  return {p};
}

}  // namespace assay::attention::families
