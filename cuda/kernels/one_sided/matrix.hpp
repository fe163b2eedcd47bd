// The instantiation matrix of the one-sided kernels, as data: which top_k, arithmetics and formats
// exist, and how a host finds the body for a request. Decides nothing about what a body does. The
// same lists serve the simulated machine and nvcc; a build may ask for fewer
// (ASSAY_REDUCED_MATRIX).
#pragma once

#include "cuda/kernels/one_sided/one_sided.hpp"

namespace assay::one_sided {
inline namespace bodies {  // a mutant's copy has a name of its own here

// The top_k values that have a kernel upstream (SPEC KER-4.1).
#define ASSAY_TOP_KS_REDUCED(X) X(1) X(2) X(4) X(8) X(12)
#define ASSAY_TOP_KS_FULL(X) X(1) X(2) X(4) X(6) X(8) X(10) X(12) X(14) X(16) X(18) X(22)
#ifdef ASSAY_REDUCED_MATRIX
#define ASSAY_TOP_KS(X) ASSAY_TOP_KS_REDUCED(X)
#else
#define ASSAY_TOP_KS(X) ASSAY_TOP_KS_FULL(X)
#endif

template <Sum kSum>
struct SumTraits;
template <>
struct SumTraits<Sum::kPayload> : CombineArithmetic<InPayload<false>, Holes::kAddZero> {};
template <>
struct SumTraits<Sum::kPayloadFtz> : CombineArithmetic<InPayload<true>, Holes::kAddZero> {};
template <>
struct SumTraits<Sum::kF32> : CombineArithmetic<InF32<false>, Holes::kAddZero> {};
template <>
struct SumTraits<Sum::kF32Ftz> : CombineArithmetic<InF32<true>, Holes::kAddZero> {};
template <>
struct SumTraits<Sum::kF32Compact> : CombineArithmetic<InF32<false>, Holes::kCompact> {};
template <>
struct SumTraits<Sum::kF32CompactFtz> : CombineArithmetic<InF32<true>, Holes::kCompact> {};
template <>
struct SumTraits<Sum::kF32ThroughE4m3> : CombineArithmetic<InF32<false>, Holes::kAddZero, true> {};
template <>
struct SumTraits<Sum::kF32FtzThroughE4m3> : CombineArithmetic<InF32<true>, Holes::kAddZero, true> {
};

template <Ops O>
using DispatchBody = void (*)(O&, const DispatchParams&);
template <Ops O>
using CombineBody = void (*)(O&, const CombineParams&);
template <Ops O>
using SentinelDispatchBody = void (*)(O&, const SentinelDispatchParams&);
template <Ops O>
using SentinelCombineBody = void (*)(O&, const SentinelCombineParams&);

// The bodies of a protocol, by the same keys.
struct FenceBodies {
  template <Ops O>
  using Dispatch = DispatchBody<O>;
  template <Ops O>
  using Combine = CombineBody<O>;
  template <int kTopK, Ops O>
  static constexpr Dispatch<O> dispatch() {
    return &one_sided::dispatch<kTopK, O>;
  }
  template <class Arithmetic, BitFormat In, BitFormat Out, int kTopK, Ops O>
  static constexpr Combine<O> combine() {
    return &one_sided::combine<Arithmetic, In, Out, kTopK, O>;
  }
};
struct SentinelBodies {
  template <Ops O>
  using Dispatch = SentinelDispatchBody<O>;
  template <Ops O>
  using Combine = SentinelCombineBody<O>;
  template <int kTopK, Ops O>
  static constexpr Dispatch<O> dispatch() {
    return &sentinel_dispatch<kTopK, O>;
  }
  template <class Arithmetic, BitFormat In, BitFormat Out, int kTopK, Ops O>
  static constexpr Combine<O> combine() {
    return &sentinel_combine<Arithmetic, In, Out, kTopK, O>;
  }
};

// The dispatch body for a top_k; null if this build has none.
template <class Bodies, Ops O>
typename Bodies::template Dispatch<O> find_dispatch_in(int top_k) {
  switch (top_k) {
#define ASSAY_CASE(k) \
  case k:             \
    return Bodies::template dispatch<k, O>();
    ASSAY_TOP_KS(ASSAY_CASE)
#undef ASSAY_CASE
    default:
      return nullptr;
  }
}

template <class Bodies, Sum kSum, BitFormat In, BitFormat Out, Ops O>
typename Bodies::template Combine<O> find_combine_of(int top_k) {
  switch (top_k) {
#define ASSAY_CASE(k) \
  case k:             \
    return Bodies::template combine<SumTraits<kSum>, In, Out, k, O>();
    ASSAY_TOP_KS(ASSAY_CASE)
#undef ASSAY_CASE
    default:
      return nullptr;
  }
}

// The combine body for one arithmetic and its formats; null if there is none. Rows and output have
// one format, but for e4m3 on the wire: such rows are summed in fp32 only, into bf16 or f16.
template <class Bodies, Sum kSum, Ops O>
typename Bodies::template Combine<O> find_combine_in(RowFormat rows, RowFormat out, int top_k) {
  constexpr bool kInPayload = kSum == Sum::kPayload || kSum == Sum::kPayloadFtz;
  if (rows == RowFormat::kBf16 && out == RowFormat::kBf16)
    return find_combine_of<Bodies, kSum, Bf16, Bf16, O>(top_k);
#ifndef ASSAY_REDUCED_MATRIX
  if (rows == RowFormat::kF16 && out == RowFormat::kF16)
    return find_combine_of<Bodies, kSum, F16, F16, O>(top_k);
  if constexpr (!SumTraits<kSum>::kThroughE4m3)
    if (rows == RowFormat::kF32 && out == RowFormat::kF32)
      return find_combine_of<Bodies, kSum, F32, F32, O>(top_k);
  if constexpr (!kInPayload && !SumTraits<kSum>::kThroughE4m3) {
    if (rows == RowFormat::kE4m3 && out == RowFormat::kBf16)
      return find_combine_of<Bodies, kSum, E4m3, Bf16, O>(top_k);
    if (rows == RowFormat::kE4m3 && out == RowFormat::kF16)
      return find_combine_of<Bodies, kSum, E4m3, F16, O>(top_k);
  }
#endif
  static_cast<void>(kInPayload);
  return nullptr;
}

// By Fence.
template <Ops O>
DispatchBody<O> find_dispatch(int top_k) {
  return find_dispatch_in<FenceBodies, O>(top_k);
}
template <Sum kSum, Ops O>
CombineBody<O> find_combine(RowFormat rows, RowFormat out, int top_k) {
  return find_combine_in<FenceBodies, kSum, O>(rows, out, top_k);
}

}  // namespace bodies
}  // namespace assay::one_sided
