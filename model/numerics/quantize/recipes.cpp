// The recipes. Each row is one implementation; the sources are named by repository and commit, and
// none of these kernels has been run here, hence bits-claimed throughout (SPEC NUM-6.1).
#include "model/numerics/quantize/recipe.hpp"

namespace assay::numerics::quantize {

namespace {

constexpr std::string_view kDeepEp =
    "deepseek-ai/DeepEP 01cc84a csrc/kernels/utils.cuh calculate_fp8_scales, internode_ll.cu";
constexpr std::string_view kTrtllm =
    "NVIDIA/TensorRT-LLM cpp/tensorrt_llm/kernels/quantization.cuh, built without fast-math";
constexpr std::string_view kFlashInfer =
    "flashinfer-ai/flashinfer 014327a csrc/nv_internal/tensorrt_llm/kernels/"
    "quantization_utils.cuh, built with fast-math";
constexpr std::string_view kTe =
    "NVIDIA/TransformerEngine 0718c01 transformer_engine/common/cast, util/ptx.cuh";
constexpr std::string_view kOcp =
    "OCP Microscaling Formats 1.0, 6.3; zero, NaN and Inf blocks are decided here";

constexpr Recipe kRecipes[] = {
    {.name = "deepep-fp8_block128",
     .element = Element::kE4m3,
     .scale_format = ScaleFormat::kF32,
     .block = 128,
     .amax = AmaxRule::kFromFloor,
     .scale = ScaleRule::kDivide448,
     .source = kDeepEp},
    {.name = "deepep-fp8_block128_pow2",
     .element = Element::kE4m3,
     .scale_format = ScaleFormat::kF32,
     .block = 128,
     .amax = AmaxRule::kFromFloor,
     .scale = ScaleRule::kCeilPowerOfTwo448,
     .source = kDeepEp},
    {.name = "deepep-fp8_block128_ue8m0",
     .element = Element::kE4m3,
     .scale_format = ScaleFormat::kUe8m0,
     .block = 128,
     .amax = AmaxRule::kFromFloor,
     .scale = ScaleRule::kCeilPowerOfTwo448,
     .source = kDeepEp},
    {.name = "trtllm-mxfp8",
     .element = Element::kE4m3,
     .scale_format = ScaleFormat::kUe8m0,
     .block = 32,
     .amax = AmaxRule::kPackedPairs,
     .scale = ScaleRule::kRcpUe8m0Up,
     .zero_test = ZeroTest::kAmax,
     .source = kTrtllm},
    {.name = "flashinfer-mxfp8",
     .element = Element::kE4m3,
     .scale_format = ScaleFormat::kUe8m0,
     .block = 32,
     .amax = AmaxRule::kPackedPairs,
     .scale = ScaleRule::kRcpUe8m0Up,
     .zero_test = ZeroTest::kStoredScale,
     .flush = true,
     .source = kFlashInfer},
    {.name = "trtllm-mxfp4",
     .element = Element::kE2m1,
     .scale_format = ScaleFormat::kUe8m0,
     .block = 32,
     .amax = AmaxRule::kPackedPairs,
     .scale = ScaleRule::kRcpUe8m0UpExp2,
     .zero_test = ZeroTest::kUnroundedScale,
     .source = kTrtllm},
    {.name = "flashinfer-mxfp4",
     .element = Element::kE2m1,
     .scale_format = ScaleFormat::kUe8m0,
     .block = 32,
     .amax = AmaxRule::kPackedPairs,
     .scale = ScaleRule::kRcpUe8m0UpExp2,
     .zero_test = ZeroTest::kUnroundedScale,
     .flush = true,
     .source = kFlashInfer},
    {.name = "trtllm-nvfp4",
     .element = Element::kE2m1,
     .scale_format = ScaleFormat::kE4m3,
     .block = 16,
     .amax = AmaxRule::kPackedPairs,
     .scale = ScaleRule::kThreeRcpE4m3,
     .zero_test = ZeroTest::kAmax,
     .source = kTrtllm},
    {.name = "flashinfer-nvfp4",
     .element = Element::kE2m1,
     .scale_format = ScaleFormat::kE4m3,
     .block = 16,
     .amax = AmaxRule::kPackedPairs,
     .scale = ScaleRule::kThreeRcpE4m3,
     .zero_test = ZeroTest::kAmax,
     .flush = true,
     .source = kFlashInfer},
    {.name = "trtllm-nvfp4_g_rcp",
     .element = Element::kE2m1,
     .scale_format = ScaleFormat::kE4m3,
     .block = 16,
     .amax = AmaxRule::kPackedPairs,
     .scale = ScaleRule::kGlobalTimesRcpE4m3,
     .zero_test = ZeroTest::kStoredScale,
     .source = "older copies of the TensorRT-LLM kernel, without fast-math"},
    {.name = "flashinfer-nvfp4_te_exact",
     .element = Element::kE2m1,
     .scale_format = ScaleFormat::kE4m3,
     .block = 16,
     .amax = AmaxRule::kPackedPairs,
     .scale = ScaleRule::kIeeeE4m3,
     .zero_test = ZeroTest::kAmax,
     .flush = true,
     .source = kFlashInfer},
    {.name = "te-mxfp8",
     .element = Element::kE4m3,
     .scale_format = ScaleFormat::kUe8m0,
     .block = 32,
     .amax = AmaxRule::kFromZero,
     .scale = ScaleRule::kUe8m0Up,
     .sixteen_bit_only = false,
     .source = kTe},
    {.name = "te-mxfp8_e5m2",
     .element = Element::kE5m2,
     .scale_format = ScaleFormat::kUe8m0,
     .block = 32,
     .amax = AmaxRule::kFromZero,
     .scale = ScaleRule::kUe8m0Up,
     .sixteen_bit_only = false,
     .source = kTe},
    {.name = "te-nvfp4",
     .element = Element::kE2m1,
     .scale_format = ScaleFormat::kE4m3,
     .block = 16,
     .amax = AmaxRule::kFromZero,
     .scale = ScaleRule::kIeeeE4m3Clamped,
     .sixteen_bit_only = false,
     .source = kTe},
    {.name = "ocp-mxfp8",
     .element = Element::kE4m3,
     .scale_format = ScaleFormat::kUe8m0,
     .block = 32,
     .amax = AmaxRule::kPropagateNan,
     .scale = ScaleRule::kFloorPowerOfTwo,
     .sixteen_bit_only = false,
     .source = kOcp},
    {.name = "ocp-mxfp8_e5m2",
     .element = Element::kE5m2,
     .scale_format = ScaleFormat::kUe8m0,
     .block = 32,
     .amax = AmaxRule::kPropagateNan,
     .scale = ScaleRule::kFloorPowerOfTwo,
     .sixteen_bit_only = false,
     .source = kOcp},
    {.name = "ocp-mxfp4",
     .element = Element::kE2m1,
     .scale_format = ScaleFormat::kUe8m0,
     .block = 32,
     .amax = AmaxRule::kPropagateNan,
     .scale = ScaleRule::kFloorPowerOfTwo,
     .sixteen_bit_only = false,
     .source = kOcp},
};

}  // namespace

std::span<const Recipe> recipes() { return kRecipes; }

const Recipe* find_recipe(std::string_view name) {
  for (const Recipe& recipe : kRecipes) {
    if (recipe.name == name) return &recipe;
  }
  return nullptr;
}

}  // namespace assay::numerics::quantize
