// TensorRT-LLM's generated Blackwell kernels: the generator is closed, dumps of what it generates
// are public. Decisions only (SPEC ATT-7.3). Decides nothing.
#include <array>

#include "model/attention/profile.hpp"

namespace assay::attention::families {
namespace {

using Field = Profile::Field;
constexpr std::string_view kDump =
    "public dumps of generated sources, FmhaSm100fKernel_*SkipsSoftmax*";
constexpr std::string_view kParams =
    "flashinfer fb28d7242b35, include/flashinfer/trtllm/fmha/kernelParams.h";

constexpr std::array<Field, 7> kFields = {{
    {"compare", "ex2(scale_log2 * (l - g)) < factor / kv_len, strict", kDump},
    {"first tile", "kept because the first maximum is -FLT_MAX", kDump},
    {"two levels",
     "a warp that agrees writes zeros for P and leaves its maximum; four warps elide "
     "the second product",
     kDump},
    {"tiles",
     "context 128 x 128 with warps of 32 rows; generation 64 x 128 with warps of 16, or "
     "columns shared by all warps",
     kDump},
    {"lambda", "factor over the request's kv_len", kParams},
    {"padding rows", "vote", kDump, Evidence::kInferred},
    {"arithmetic", "not modelled: fused and separate products mix", kDump, Evidence::kInferred},
}};

constexpr std::array<TileShape, 1> kContext = {{{2, 256, 128, 1, 128, 0}}};
constexpr std::array<TileShape, 1> kGeneration = {{{2, 576, 64, 1, 128, 0}}};

}  // namespace

std::vector<Profile> trtllm_gen() {
  Profile p;
  p.name = "trtllm-gen-context-sm100";
  p.covers = "TensorRT-LLM and FlashInfer generated context kernels, 16-bit";
  p.evidence = Evidence::kInferred;
  p.skip.kept_first = 0;
  p.skip.zeroing_rows = 32;
  p.skip.padding_rows = PaddingRows::kVote;
  p.skip.quotient = Quotient::kApprox;
  p.skip.initial_max = F32{0xFF7FFFFFu};
  p.skip.fill = p.skip.initial_max;
  p.softmax.empty = EmptyGuard::kAlways;
  p.tiles = kContext;
  p.arch = numerics::Arch::kSm100a;
  p.instruction_family = "tcgen05";
  p.fields = kFields;

  Profile keeps = p;
  keeps.name = "trtllm-gen-generation_keepsab-sm100";
  keeps.covers = "generated generation kernels that keep A and B, 64 rows, 16-bit";
  keeps.skip.packing = Packing::kGroupRows;
  keeps.skip.zeroing_rows = 16;
  keeps.tiles = kGeneration;
  Profile swaps = keeps;
  swaps.name = "trtllm-gen-generation_swapsab-sm100";
  swaps.covers = "generated generation kernels that swap A and B: one decision for all warps";
  swaps.skip.zeroing_rows = 0;
  return {p, keeps, swaps};
}

}  // namespace assay::attention::families
