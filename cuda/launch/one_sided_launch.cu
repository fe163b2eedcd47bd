// The one-sided bodies as CUDA kernels, and the table through which a launcher finds them by the
// same keys as the simulated machine finds a body. The sm_100a code has not been run on hardware.
#include "cuda/launch/one_sided_launch.hpp"

#include <algorithm>
#include <string>

#include "cuda/kernels/one_sided/matrix.hpp"
#include "cuda/launch/device.hpp"
#include "cuda/ops/ptx_ops.hpp"

namespace assay::cuda {

using namespace assay::one_sided;
static_assert(Ops<PtxOps>);

namespace {

template <int kTopK>
__global__ void dispatch_kernel(const __grid_constant__ DispatchParams params,
                                const RankLaunch launch) {
  __shared__ std::uint32_t shared[DispatchShared<kTopK>::kWords];
  PtxOps ops = PtxOps::of(launch, shared);
  dispatch<kTopK>(ops, params);
}

template <Sum kSum, BitFormat In, BitFormat Out, int kTopK>
__global__ void combine_kernel(const __grid_constant__ CombineParams params,
                               const RankLaunch launch) {
  __shared__ std::uint32_t shared[CombineShared::kWords];
  PtxOps ops = PtxOps::of(launch, shared);
  combine<SumTraits<kSum>, In, Out, kTopK>(ops, params);
}

__global__ void sanitize_kernel(const __grid_constant__ SanitizeParams params,
                                const RankLaunch launch) {
  PtxOps ops = PtxOps::of(launch, nullptr);
  sanitize(ops, params);
}

template <BitFormat In>
__global__ void stage_kernel(const __grid_constant__ StageParams params, const RankLaunch launch) {
  PtxOps ops = PtxOps::of(launch, nullptr);
  stage<In>(ops, params);
}

template <class Kernel>
const void* pointer(Kernel* kernel) {
  return reinterpret_cast<const void*>(kernel);
}

const void* find_dispatch_kernel(int top_k) {
  switch (top_k) {
#define ASSAY_CASE(k) \
  case k:             \
    return pointer(&dispatch_kernel<k>);
    ASSAY_TOP_KS(ASSAY_CASE)
#undef ASSAY_CASE
    default:
      return nullptr;
  }
}

template <Sum kSum, BitFormat In, BitFormat Out>
const void* find_combine_kernel_of(int top_k) {
  switch (top_k) {
#define ASSAY_CASE(k) \
  case k:             \
    return pointer(&combine_kernel<kSum, In, Out, k>);
    ASSAY_TOP_KS(ASSAY_CASE)
#undef ASSAY_CASE
    default:
      return nullptr;
  }
}

template <Sum kSum>
const void* find_combine_kernel_in(RowFormat rows, RowFormat out, int top_k) {
  constexpr bool kInPayload = kSum == Sum::kPayload || kSum == Sum::kPayloadFtz;
  constexpr bool kThrough = SumTraits<kSum>::kThroughE4m3;
  if (rows == RowFormat::kBf16 && out == RowFormat::kBf16)
    return find_combine_kernel_of<kSum, Bf16, Bf16>(top_k);
  if constexpr (!kInPayload && !kThrough)
    if (rows == RowFormat::kE4m3 && out == RowFormat::kBf16)
      return find_combine_kernel_of<kSum, E4m3, Bf16>(top_k);
#ifndef ASSAY_REDUCED_MATRIX
  if (rows == RowFormat::kF16 && out == RowFormat::kF16)
    return find_combine_kernel_of<kSum, F16, F16>(top_k);
  if constexpr (!kThrough)
    if (rows == RowFormat::kF32 && out == RowFormat::kF32)
      return find_combine_kernel_of<kSum, F32, F32>(top_k);
  if constexpr (!kInPayload && !kThrough)
    if (rows == RowFormat::kE4m3 && out == RowFormat::kF16)
      return find_combine_kernel_of<kSum, E4m3, F16>(top_k);
#endif
  return nullptr;
}

const void* find_combine_kernel(Sum sum, RowFormat rows, RowFormat out, int top_k) {
  switch (sum) {
    case Sum::kPayload:
      return find_combine_kernel_in<Sum::kPayload>(rows, out, top_k);
    case Sum::kPayloadFtz:
      return find_combine_kernel_in<Sum::kPayloadFtz>(rows, out, top_k);
    case Sum::kF32:
      return find_combine_kernel_in<Sum::kF32>(rows, out, top_k);
    case Sum::kF32Ftz:
      return find_combine_kernel_in<Sum::kF32Ftz>(rows, out, top_k);
    case Sum::kF32Compact:
      return find_combine_kernel_in<Sum::kF32Compact>(rows, out, top_k);
    case Sum::kF32CompactFtz:
      return find_combine_kernel_in<Sum::kF32CompactFtz>(rows, out, top_k);
    case Sum::kF32ThroughE4m3:
      return find_combine_kernel_in<Sum::kF32ThroughE4m3>(rows, out, top_k);
    case Sum::kF32FtzThroughE4m3:
      return find_combine_kernel_in<Sum::kF32FtzThroughE4m3>(rows, out, top_k);
  }
  return nullptr;
}

const void* find_stage_kernel(RowFormat rows) {
  switch (rows) {
    case RowFormat::kBf16:
      return pointer(&stage_kernel<Bf16>);
    case RowFormat::kF16:
      return pointer(&stage_kernel<F16>);
    case RowFormat::kF32:
      return pointer(&stage_kernel<F32>);
    case RowFormat::kE4m3:
      return nullptr;
  }
  return nullptr;
}

// The struct that a launch copies: RankLaunch follows the params of every kernel.
template <class Params>
Status launch(const void* kernel, const Params& params, std::uint32_t blocks,
              const LaunchConfig& config) {
  Params copy = params;
  RankLaunch identity{config.rank, config.timeout_ns};
  void* arguments[] = {&copy, &identity};
  ASSAY_CUDA(cudaLaunchKernel(kernel, dim3(blocks), dim3(config.threads), arguments, 0,
                              static_cast<cudaStream_t>(config.stream.handle)),
             "kernel launch");
  return Done{};
}

}  // namespace

Expected<OneSidedKernels> OneSidedKernels::find(int top_k, Sum sum, RowFormat rows,
                                                RowFormat pulled, RowFormat out) {
  OneSidedKernels kernels;
  kernels.dispatch_ = find_dispatch_kernel(top_k);
  kernels.combine_ = find_combine_kernel(sum, pulled, out, top_k);
  kernels.sanitize_ = pointer(&sanitize_kernel);
  kernels.stage_ = find_stage_kernel(rows);
  if (kernels.dispatch_ == nullptr)
    return unsupported("this build has no dispatch kernel for top_k " + std::to_string(top_k));
  if (kernels.combine_ == nullptr)
    return unsupported("this build has no combine kernel for top_k " + std::to_string(top_k) +
                       " with this arithmetic and format");
  return kernels;
}

Status OneSidedKernels::load(std::uint32_t threads) const {
  for (const void* kernel : {dispatch_, sanitize_, stage_, combine_}) {
    if (kernel == nullptr) continue;
    cudaFuncAttributes attributes{};
    ASSAY_CUDA(cudaFuncGetAttributes(&attributes, kernel), "loading a one-sided kernel");
    if (static_cast<std::uint32_t>(attributes.maxThreadsPerBlock) < threads)
      return unsupported("a one-sided kernel runs with at most " +
                         std::to_string(attributes.maxThreadsPerBlock) + " threads per block, " +
                         std::to_string(threads) + " were asked for");
  }
  return Done{};
}

Status OneSidedKernels::dispatch(const DispatchParams& params, const LaunchConfig& config) const {
  return launch(dispatch_, params, std::max(params.num_tokens, 1u), config);
}
Status OneSidedKernels::combine(const CombineParams& params, const LaunchConfig& config) const {
  return launch(combine_, params, std::max(params.num_tokens, 1u), config);
}
// Rows are shared out over the blocks; these grids fill a part of any device and need no more.
Status OneSidedKernels::sanitize(const SanitizeParams& params, const LaunchConfig& config) const {
  return launch(sanitize_, params, 32, config);
}
Status OneSidedKernels::stage(const StageParams& params, const LaunchConfig& config) const {
  return launch(stage_, params, 64, config);
}

}  // namespace assay::cuda
