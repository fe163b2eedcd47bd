// The one-sided bodies as CUDA kernels, and the table through which a launcher finds them by the
// same keys as the simulated machine finds a body. Included by the two files that instantiate it;
// every mutant has a copy, with bodies of its own. The sm_100a code has not been run on hardware.
#pragma once

#include "cuda/kernels/one_sided/matrix.hpp"
#include "cuda/launch/kernel_table.hpp"
#include "cuda/ops/launched_rank.hpp"

namespace assay::cuda {
inline namespace kernels {  // a mutant's copy has a name of its own here

using namespace assay::one_sided;
static_assert(Ops<PtxOps>);

// What a kernel is made of: its parameters, the words of shared memory it names, its text.
template <int kTopK>
struct FenceDispatch {
  using Params = DispatchParams;
  static constexpr std::uint32_t kSharedWords = DispatchShared<kTopK>::kWords;
  static __device__ void run(PtxOps& ops, const Params& params) { dispatch<kTopK>(ops, params); }
};
template <Sum kSum, BitFormat In, BitFormat Out, int kTopK>
struct FenceCombine {
  using Params = CombineParams;
  static constexpr std::uint32_t kSharedWords = CombineShared::kWords;
  static __device__ void run(PtxOps& ops, const Params& params) {
    combine<SumTraits<kSum>, In, Out, kTopK>(ops, params);
  }
};
template <int kTopK>
struct SentinelDispatch {
  using Params = SentinelDispatchParams;
  static constexpr std::uint32_t kSharedWords = SentinelDispatchShared<kTopK>::kWords;
  static __device__ void run(PtxOps& ops, const Params& params) {
    sentinel_dispatch<kTopK>(ops, params);
  }
};
template <Sum kSum, BitFormat In, BitFormat Out, int kTopK>
struct SentinelCombine {
  using Params = SentinelCombineParams;
  static constexpr std::uint32_t kSharedWords = SentinelShared::kWords;
  static __device__ void run(PtxOps& ops, const Params& params) {
    sentinel_combine<SumTraits<kSum>, In, Out, kTopK>(ops, params);
  }
};
// A protocol, by its two kernels.
struct Fence {
  template <int kTopK>
  using Dispatch = FenceDispatch<kTopK>;
  template <Sum kSum, BitFormat In, BitFormat Out, int kTopK>
  using Combine = FenceCombine<kSum, In, Out, kTopK>;
};
struct Sentinel {
  template <int kTopK>
  using Dispatch = SentinelDispatch<kTopK>;
  template <Sum kSum, BitFormat In, BitFormat Out, int kTopK>
  using Combine = SentinelCombine<kSum, In, Out, kTopK>;
};
struct OrderSlots {
  using Params = OrderSlotsParams;
  static constexpr std::uint32_t kSharedWords = GroupPrefixShared::kWords;
  static __device__ void run(PtxOps& ops, const Params& params) { order_slots(ops, params); }
};
struct ExpertLists {
  using Params = ExpertListParams;
  static constexpr std::uint32_t kSharedWords = GroupPrefixShared::kWords;
  static __device__ void run(PtxOps& ops, const Params& params) { list_experts(ops, params); }
};
struct FenceSanitize {
  using Params = SanitizeParams;
  static constexpr std::uint32_t kSharedWords = 1;  // none; an array cannot be empty
  static __device__ void run(PtxOps& ops, const Params& params) { sanitize(ops, params); }
};
template <BitFormat In>
struct FenceStage {
  using Params = StageParams;
  static constexpr std::uint32_t kSharedWords = 1;
  static __device__ void run(PtxOps& ops, const Params& params) { stage<In>(ops, params); }
};

template <class Body, int kRanksMax>
__global__ void one_sided_kernel(
    const __grid_constant__ LaunchParams<typename Body::Params, kRanksMax> launch) {
  static_assert(sizeof(launch) <= kLaunchBytesMax);
  __shared__ std::uint32_t shared[Body::kSharedWords];
  const std::uint32_t index = index_of_rank(launch.ranks);
  PtxOps ops = ops_of_rank(launch.ranks, index, shared);
  // In this order, or kernels would come without end, each waiting for the one before it, and hold
  // what peers on the same device need to run (SPEC CUD-3.4). Both pass without the attribute.
  ops.wait_for_grid(Site::kNone);
  ops.launch_dependents(Site::kNone);
  Body::run(ops, launch.params[index]);
}

template <class Body, int kRanksMax>
const void* pointer() {
  return reinterpret_cast<const void*>(&one_sided_kernel<Body, kRanksMax>);
}

// The reduced matrix lacks the top_k of two of the models that `assay bench` knows.
#ifdef ASSAY_REDUCED_MATRIX
#define ASSAY_BENCH_TOP_KS(X) X(6) X(16)
#else
#define ASSAY_BENCH_TOP_KS(X)
#endif

template <class Protocol, int kRanksMax>
const void* find_dispatch_kernel(int top_k) {
  switch (top_k) {
#define ASSAY_CASE(k) \
  case k:             \
    return pointer<typename Protocol::template Dispatch<k>, kRanksMax>();
    ASSAY_TOP_KS(ASSAY_CASE)
    ASSAY_BENCH_TOP_KS(ASSAY_CASE)
#undef ASSAY_CASE
    default:
      return nullptr;
  }
}

template <class Protocol, Sum kSum, BitFormat In, BitFormat Out, int kRanksMax>
const void* find_combine_kernel_of(int top_k) {
  switch (top_k) {
#define ASSAY_CASE(k) \
  case k:             \
    return pointer<typename Protocol::template Combine<kSum, In, Out, k>, kRanksMax>();
    ASSAY_TOP_KS(ASSAY_CASE)
#undef ASSAY_CASE
    default:
      break;
  }
  if constexpr (kSum == Sum::kF32 && std::is_same_v<In, Bf16>) {
    switch (top_k) {
#define ASSAY_CASE(k) \
  case k:             \
    return pointer<typename Protocol::template Combine<kSum, In, Out, k>, kRanksMax>();
      ASSAY_BENCH_TOP_KS(ASSAY_CASE)
#undef ASSAY_CASE
      default:
        break;
    }
  }
  return nullptr;
}

#ifdef ASSAY_REDUCED_MATRIX
inline constexpr bool kReduced = true;
#else
inline constexpr bool kReduced = false;
#endif

// Whether this build has a combine from In to Out. e4m3 rows are summed in fp32 only. The reduced
// matrix has bf16 outputs, and of Sentinel, whose kernels are large, one arithmetic.
template <class Protocol, Sum kSum, BitFormat In, BitFormat Out>
constexpr bool has_combine() {
  constexpr bool kInPayload = kSum == Sum::kPayload || kSum == Sum::kPayloadFtz;
  constexpr bool kThrough = SumTraits<kSum>::kThroughE4m3;
  if (std::is_same_v<In, E4m3> && (kInPayload || kThrough)) return false;
  if (std::is_same_v<In, F32> && kThrough) return false;
  if (!kReduced) return true;
  if (std::is_same_v<Protocol, Sentinel> && (kSum != Sum::kF32 || std::is_same_v<In, E4m3>))
    return false;
  return std::is_same_v<Out, Bf16>;
}

template <class Protocol, Sum kSum, BitFormat In, BitFormat Out, int kRanksMax>
const void* find_combine_kernel_between(int top_k) {
  if constexpr (has_combine<Protocol, kSum, In, Out>())
    return find_combine_kernel_of<Protocol, kSum, In, Out, kRanksMax>(top_k);
  return nullptr;
}

template <class Protocol, Sum kSum, int kRanksMax>
const void* find_combine_kernel_in(RowFormat rows, RowFormat out, int top_k) {
  if (rows == RowFormat::kBf16 && out == RowFormat::kBf16)
    return find_combine_kernel_between<Protocol, kSum, Bf16, Bf16, kRanksMax>(top_k);
  if (rows == RowFormat::kE4m3 && out == RowFormat::kBf16)
    return find_combine_kernel_between<Protocol, kSum, E4m3, Bf16, kRanksMax>(top_k);
  if (rows == RowFormat::kF16 && out == RowFormat::kF16)
    return find_combine_kernel_between<Protocol, kSum, F16, F16, kRanksMax>(top_k);
  if (rows == RowFormat::kF32 && out == RowFormat::kF32)
    return find_combine_kernel_between<Protocol, kSum, F32, F32, kRanksMax>(top_k);
  if (rows == RowFormat::kE4m3 && out == RowFormat::kF16)
    return find_combine_kernel_between<Protocol, kSum, E4m3, F16, kRanksMax>(top_k);
  return nullptr;
}

template <class Protocol, int kRanksMax>
const void* find_combine_kernel(const KernelRequest& r) {
  switch (r.sum) {
#define ASSAY_CASE(name) \
  case Sum::name:        \
    return find_combine_kernel_in<Protocol, Sum::name, kRanksMax>(r.pulled, r.out, r.top_k);
    ASSAY_CASE(kPayload)
    ASSAY_CASE(kPayloadFtz)
    ASSAY_CASE(kF32)
    ASSAY_CASE(kF32Ftz)
    ASSAY_CASE(kF32Compact)
    ASSAY_CASE(kF32CompactFtz)
    ASSAY_CASE(kF32ThroughE4m3)
    ASSAY_CASE(kF32FtzThroughE4m3)
#undef ASSAY_CASE
  }
  return nullptr;
}

template <int kRanksMax>
const void* find_stage_kernel(RowFormat rows) {
  switch (rows) {
    case RowFormat::kBf16:
      return pointer<FenceStage<Bf16>, kRanksMax>();
    case RowFormat::kF16:
      return pointer<FenceStage<F16>, kRanksMax>();
    case RowFormat::kF32:
      return pointer<FenceStage<F32>, kRanksMax>();
    case RowFormat::kE4m3:
      return nullptr;
  }
  return nullptr;
}

template <int kRanksMax>
const void* find_kernel(Step step, const KernelRequest& request) {
  switch (step) {
    case Step::kOrderSlots:
      return pointer<OrderSlots, kRanksMax>();
    case Step::kDispatch:
      return find_dispatch_kernel<Fence, kRanksMax>(request.top_k);
    case Step::kSanitize:
      return pointer<FenceSanitize, kRanksMax>();
    case Step::kExpertLists:
      return pointer<ExpertLists, kRanksMax>();
    case Step::kStage:
      return find_stage_kernel<kRanksMax>(request.rows);
    case Step::kCombine:
      return find_combine_kernel<Fence, kRanksMax>(request);
    case Step::kSentinelDispatch:
      return find_dispatch_kernel<Sentinel, kRanksMax>(request.top_k);
    case Step::kSentinelCombine:
      return find_combine_kernel<Sentinel, kRanksMax>(request);
  }
  return nullptr;
}

}  // namespace kernels
}  // namespace assay::cuda
