// TensorRT-LLM's Hopper decode kernel (XQA) with skip-softmax, in both settings of its switch for
// lambda above 1. The source is complete, but which products contract to fused ones in the merge of
// splits was not pinned, hence the grade (SPEC ATT-7.2). Decides nothing.
#include <array>

#include "model/attention/profile.hpp"

namespace assay::attention::families {
namespace {

using Field = Profile::Field;
constexpr std::string_view kKernel =
    "pengbowang-nv/TensorRT-LLM ae0129771596, cpp/kernels/xqa/mha_sm90.cu (TensorRT-LLM pull "
    "request 10264)";
constexpr std::string_view kFlags = "TensorRT-LLM 1da9ac9a, cpp/kernels/xqa/CMakeLists.txt";

constexpr std::array<Field, 14> kFields = {{
    {"unit", "the query heads of one key head; 64 keys are the rows of the matrix", kKernel},
    {"splits", "sub-sequence k visits tiles k, k + n ... with a maximum of its own", kKernel},
    {"compare", "l - g < log(lambda) on scaled scores, strict, g before the tile", kKernel},
    {"skip", "raises the running maximum all the same", kKernel},
    {"first tile", "of each sub-sequence is kept", kKernel},
    {"padding", "padded columns do not vote", kKernel},
    {"hidden", "-1e5, which is also the first maximum", kKernel},
    {"lambda", "factor / cache length, fast-math; log as lg2.approx times ln 2", kFlags},
    {"scale", "f32 product after the chain, before the mask", kKernel},
    {"exponent", "ex2(fma(s, log2(e), -(m * log2(e))))", kKernel, Evidence::kInferred},
    {"row sum", "two keys a thread, lanes xor 16, 8, 4, four warps in order onto the sum", kKernel},
    {"P", "times 448 before the conversion, also for 16-bit inputs", kKernel},
    {"output", "O * (rcp.rn(sum) * (1 / 448) * v_scale)", kKernel},
    {"merge", "outputs of sub-sequences in 16 bits, in order; contraction inferred", kKernel,
     Evidence::kInferred},
}};

constexpr std::array<TileShape, 2> kTiles = {{{2, 256, 64, 1, 64, 0}, {1, 256, 64, 1, 64, 0}}};

}  // namespace

std::vector<Profile> trtllm_xqa() {
  Profile p;
  p.name = "trtllm-xqa-sm90";
  p.covers = "TensorRT-LLM XQA sm_90, SKIP_SOFTMAX_ATTN_FIX_THRESHOLD_GREATER_THAN_ONE on";
  p.evidence = Evidence::kInferred;
  p.skip.packing = Packing::kGroupRows;
  p.skip.compare = Compare::kDifference;
  p.skip.max_on_skip = MaxOnSkip::kRaise;
  p.skip.quotient = Quotient::kApprox;
  p.skip.logarithm = Logarithm::kApprox;
  p.skip.split = Split::kStrided;
  p.skip.min_tiles_to_split = 2;
  p.skip.padding_fill = PaddingFill::kNeighbour;
  p.skip.initial_max = F32{0xC7C35000u};  // -1e5
  p.skip.fill = p.skip.initial_max;
  p.softmax.unit = ScoreUnit::kNatural;
  p.softmax.p_multiplier = F32{0x43E00000u};  // 448
  p.softmax.tree = SumTree::kTokensWarps;
  p.softmax.correction_flushes = true;
  p.softmax.reciprocal = Reciprocal::kIeee;
  p.softmax.zero_sum = ZeroSum::kInfinite;
  p.softmax.v_scale_in_reciprocal = true;
  p.softmax.sink = SinkForm::kNatural;
  p.softmax.partial = Partial::kRounded;
  p.fp8 = p.softmax;
  p.tiles = kTiles;
  p.fields = kFields;

  Profile off = p;
  off.name = "trtllm-xqa-sm90@nofix";
  off.covers = "the same with the switch off: dense where the cache is shorter than the factor";
  off.skip.above_one = LambdaAboveOne::kDense;
  return {p, off};
}

}  // namespace assay::attention::families
