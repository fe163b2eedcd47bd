// The one-sided bodies as CUDA kernels: each wraps one instantiation of matrix.hpp over PtxOps.
// Decides nothing; a launcher finds a kernel by the same keys as the simulated machine finds a body.
// The kernels are compiled for every architecture of the build; the sm_100a code has not been run on
// hardware.
#include "cuda/kernels/one_sided/matrix.hpp"
#include "cuda/ops/ptx_ops.hpp"

namespace assay::cuda {

using namespace assay::one_sided;
static_assert(Ops<PtxOps>);

// What identifies the launching rank: ranks may share one launch as consecutive ranges of blocks.
struct LaunchIdentity {
  std::int32_t first_rank;
  std::uint32_t blocks_per_rank;
  std::uint64_t timeout_ns;
};

__device__ PtxOps make_ops(const LaunchIdentity& launch, std::uint32_t* shared) {
  const std::uint32_t local = blockIdx.x / launch.blocks_per_rank;
  return PtxOps{RankId(launch.first_rank + static_cast<std::int32_t>(local)),
                blockIdx.x % launch.blocks_per_rank, launch.blocks_per_rank, shared,
                launch.timeout_ns};
}

template <int kTopK>
__global__ void dispatch_kernel(DispatchParams params, LaunchIdentity launch) {
  __shared__ std::uint32_t shared[DispatchShared<kTopK>::kWords];
  PtxOps ops = make_ops(launch, shared);
  dispatch<kTopK>(ops, params);
}

template <Sum kSum, BitFormat In, BitFormat Out, int kTopK>
__global__ void combine_kernel(CombineParams params, LaunchIdentity launch) {
  __shared__ std::uint32_t shared[CombineShared::kWords];
  PtxOps ops = make_ops(launch, shared);
  combine<SumTraits<kSum>, In, Out, kTopK>(ops, params);
}

__global__ void sanitize_kernel(SanitizeParams params, LaunchIdentity launch) {
  PtxOps ops = make_ops(launch, nullptr);
  sanitize(ops, params);
}

template <BitFormat In>
__global__ void stage_kernel(StageParams params, LaunchIdentity launch) {
  PtxOps ops = make_ops(launch, nullptr);
  stage<In>(ops, params);
}

#define ASSAY_DISPATCH(k) \
  template __global__ void dispatch_kernel<k>(DispatchParams, LaunchIdentity);
ASSAY_TOP_KS(ASSAY_DISPATCH)

#define ASSAY_COMBINE_OF(sum, in, out, k) \
  template __global__ void combine_kernel<sum, in, out, k>(CombineParams, LaunchIdentity);
#define ASSAY_COMBINE(k)                                  \
  ASSAY_COMBINE_OF(Sum::kPayload, Bf16, Bf16, k)          \
  ASSAY_COMBINE_OF(Sum::kF32, Bf16, Bf16, k)              \
  ASSAY_COMBINE_OF(Sum::kF32Ftz, Bf16, Bf16, k)           \
  ASSAY_COMBINE_OF(Sum::kF32Compact, Bf16, Bf16, k)       \
  ASSAY_COMBINE_OF(Sum::kF32FtzThroughE4m3, Bf16, Bf16, k) \
  ASSAY_COMBINE_OF(Sum::kF32Ftz, E4m3, Bf16, k)
ASSAY_TOP_KS(ASSAY_COMBINE)
#ifndef ASSAY_REDUCED_MATRIX
#define ASSAY_COMBINE_MORE(k)                          \
  ASSAY_COMBINE_OF(Sum::kPayloadFtz, F32, F32, k)      \
  ASSAY_COMBINE_OF(Sum::kPayload, F16, F16, k)         \
  ASSAY_COMBINE_OF(Sum::kF32, F16, F16, k)             \
  ASSAY_COMBINE_OF(Sum::kF32Ftz, F16, F16, k)          \
  ASSAY_COMBINE_OF(Sum::kF32Compact, F16, F16, k)      \
  ASSAY_COMBINE_OF(Sum::kF32, F32, F32, k)             \
  ASSAY_COMBINE_OF(Sum::kF32Ftz, F32, F32, k)          \
  ASSAY_COMBINE_OF(Sum::kF32Compact, F32, F32, k)      \
  ASSAY_COMBINE_OF(Sum::kF32, E4m3, Bf16, k)           \
  ASSAY_COMBINE_OF(Sum::kF32Compact, E4m3, Bf16, k)
ASSAY_TOP_KS(ASSAY_COMBINE_MORE)
#endif

template __global__ void stage_kernel<Bf16>(StageParams, LaunchIdentity);
template __global__ void stage_kernel<F16>(StageParams, LaunchIdentity);
template __global__ void stage_kernel<F32>(StageParams, LaunchIdentity);

}  // namespace assay::cuda
