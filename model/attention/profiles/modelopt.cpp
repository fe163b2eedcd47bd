// NVIDIA Model Optimizer: the PyTorch masks that thresholds are calibrated with, and the Triton
// kernel. Decisions only (SPEC ATT-7.5). Decides nothing.
#include <array>

#include "model/attention/profile.hpp"

namespace assay::attention::families {
namespace {

using Field = Profile::Field;
constexpr std::string_view kTorch =
    "NVIDIA/Model-Optimizer a2fbac7bad8a, methods/flash_skip_softmax.py";
constexpr std::string_view kTriton =
    "NVIDIA/Model-Optimizer a2fbac7bad8a, kernels/sparsity/attention/skip_softmax_helpers.py";
constexpr std::string_view kTuner = "NVIDIA/Model-Optimizer pull request 1992";

constexpr std::array<Field, 5> kTorchFields = {{
    {"unit", "128 query rows", kTorch},
    {"tiles", "128 keys", kTorch},
    {"compare", "l - g <= ln(lambda), g the cumulative maximum with this tile", kTorch},
    {"skip", "a mask: the cumulative maximum covers all tiles", kTorch},
    {"lambda", "given directly, between 0 and 1", kTorch},
}};
constexpr std::array<Field, 5> kTritonFields = {{
    {"unit", "128 query rows; the tuner may choose 16 or 64", kTuner},
    {"tiles", "32 keys", kTuner},
    {"compare", "l < g + log2(lambda) in log2 units, strict, g before the tile", kTriton},
    {"padding rows", "forced to agree", kTriton},
    {"first tile", "kept because the first maximum is -inf", kTriton},
}};

constexpr std::array<TileShape, 1> kTorchTiles = {{{2, 256, 128, 1, 128, 0}}};
constexpr std::array<TileShape, 1> kTritonTiles = {{{2, 256, 128, 1, 32, 0}}};

}  // namespace

std::vector<Profile> modelopt() {
  Profile torch;
  torch.name = "modelopt-pytorch";
  torch.covers = "Model Optimizer's calibration masks, prefill";
  torch.skip.compare = Compare::kDifference;
  torch.skip.strict = false;
  torch.skip.reference = Reference::kInclusive;
  torch.skip.max_on_skip = MaxOnSkip::kRaise;
  torch.skip.kept_first = 0;
  torch.skip.lambda_length = LambdaLength::kNone;
  torch.softmax.unit = ScoreUnit::kNatural;
  torch.softmax.empty = EmptyGuard::kAlways;
  torch.tiles = kTorchTiles;
  torch.fields = kTorchFields;

  Profile triton;
  triton.name = "modelopt-triton";
  triton.covers = "Model Optimizer's Triton kernel with 128 x 32 blocks";
  triton.skip.compare = Compare::kAddedLog2;
  triton.skip.kept_first = 0;
  triton.softmax.unit = ScoreUnit::kLog2;
  triton.softmax.empty = EmptyGuard::kAlways;
  triton.tiles = kTritonTiles;
  triton.instruction_family = "mma.sync";
  triton.fields = kTritonFields;
  return {torch, triton};
}

}  // namespace assay::attention::families
