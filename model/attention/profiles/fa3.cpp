// FlashAttention-3's forward order as the dense baseline. Its sums may contract either way, so
// claims are not about bits (SPEC ATT-7.8). Decides nothing.
#include <array>

#include "model/attention/profile.hpp"

namespace assay::attention::families {
namespace {

using Field = Profile::Field;
constexpr std::string_view kSoftmax = "Dao-AILab/flash-attention 0251105a2fb1, hopper/softmax.h";
constexpr std::string_view kTileSize = "Dao-AILab/flash-attention 0251105a2fb1, hopper/tile_size.h";
constexpr std::string_view kMainloop =
    "Dao-AILab/flash-attention 0251105a2fb1, hopper/mainloop_fwd_sm90_tma_gmma_ws.hpp";

constexpr std::array<Field, 8> kFields = {{
    {"skip", "never", kSoftmax},
    {"tiles", "192 x 192, 128 x 176, 128 x 80; with a mask 192 x 128, 128 x 128, 128 x 80",
     kTileSize},
    {"order", "last key tile first", kMainloop},
    {"exponent", "ex2(fma(s, scale_log2, -(m * scale_log2)))", kSoftmax},
    {"row sum", "per thread onto its running sum; quad at the end", kSoftmax},
    {"running sum", "fused with the first addend", kSoftmax, Evidence::kInferred},
    {"empty rows", "a maximum of -inf counts as 0", kSoftmax},
    {"lse", "natural; -inf for a row without keys", kSoftmax},
}};
constexpr std::array<TileShape, 6> kTiles = {{
    {2, 64, 64, 3, 192, 128},
    {2, 128, 64, 2, 176, 128},
    {2, 256, 64, 2, 80, 0},
    {1, 64, 64, 3, 160, 0},
    {1, 128, 64, 2, 224, 0},
    {1, 256, 64, 2, 128, 0},
}};

}  // namespace

std::vector<Profile> fa3() {
  Profile p;
  p.name = "fa3-dense-sm90";
  p.covers = "FlashAttention-3 forward, dense";
  p.evidence = Evidence::kInferred;
  p.skip.dense_only = true;
  p.skip.backward = true;
  p.skip.range_of_schedule = true;
  p.softmax.empty = EmptyGuard::kAlways;
  p.softmax.tree = SumTree::kThreadRunning;
  p.softmax.lse = LseForm::kLn;
  p.fp8 = p.softmax;
  p.fp8->p_log2 = 8;
  p.fp8->p_log2_fused = true;
  p.tiles = kTiles;
  p.fields = kFields;
  return {p};
}

}  // namespace assay::attention::families
