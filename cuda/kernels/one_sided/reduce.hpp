// The order in which a token's rows are added, and in what format (SPEC KER-4): the kernel's own
// account of the arithmetics that model/moe/combine.hpp specifies as data. Terms are indexed by
// constants only, so that they stay in registers.
#pragma once

#include "model/core/ops.hpp"

namespace assay::one_sided {
inline namespace bodies {  // a mutant's copy has a name of its own here

// Accumulate in fp32, round once at the end.
template <bool kFlush>
struct InF32 {
  template <class In>
  using Value = F32;
  template <class O, class In>
  ASSAY_HD static F32 from(O& ops, In x) {
    if constexpr (sizeof(In) == 4)
      return x;
    else if constexpr (sizeof(In) == 1)
      return ops.widen_e4m3(x);
    else
      return widen(ops, x);
  }
  template <class O>
  ASSAY_HD static F32 widen(O& ops, Bf16 x) {
    return ops.widen_bf16(x);
  }
  template <class O>
  ASSAY_HD static F32 widen(O& ops, F16 x) {
    return ops.widen_f16(x);
  }
  template <class O>
  ASSAY_HD static F32 add(O& ops, F32 a, F32 b) {
    return ops.add_f32(Ftz<kFlush>{}, a, b);
  }
  template <class O>
  ASSAY_HD static void to(O& ops, F32 sum, Bf16& out) {
    out = ops.narrow_bf16(sum);
  }
  template <class O>
  ASSAY_HD static void to(O& ops, F32 sum, F16& out) {
    out = ops.narrow_f16(sum);
  }
  template <class O>
  ASSAY_HD static void to(O&, F32 sum, F32& out) {
    out = sum;
  }
};

// Accumulate in the payload's own format: every add rounds. A bf16 or f16 add keeps subnormals even
// in a build that flushes fp32's, because the instruction has no such form.
template <bool kFlush>
struct InPayload {
  template <class In>
  using Value = In;
  template <class O, class In>
  ASSAY_HD static In from(O&, In x) {
    return x;
  }
  template <class O>
  ASSAY_HD static Bf16 add(O& ops, Bf16 a, Bf16 b) {
    return ops.add_bf16(a, b);
  }
  template <class O>
  ASSAY_HD static F16 add(O& ops, F16 a, F16 b) {
    return ops.add_f16(a, b);
  }
  template <class O>
  ASSAY_HD static F32 add(O& ops, F32 a, F32 b) {
    return ops.add_f32(Ftz<kFlush>{}, a, b);
  }
  template <class O, class In>
  ASSAY_HD static void to(O&, In sum, In& out) {
    out = sum;
  }
};

enum class Holes {
  kAddZero,  // a pick without a row contributes +0 at its own position
  kCompact,  // the rows that exist move up, in k order; the tree depends on how many there are
};

template <class AccumulateType, Holes kHolesValue, bool kThroughE4m3Value = false>
struct CombineArithmetic {
  using Accumulate = AccumulateType;
  static constexpr Holes kHoles = kHolesValue;
  // Low precision at the reader: a bf16 row is rounded to e4m3 and back before it is added.
  static constexpr bool kThroughE4m3 = kThroughE4m3Value;
};

// Neighbours first, then pairs of pairs: kCount terms from kFirst on, kCount a power of two.
template <class A, int kFirst, int kCount, class V, int kTerms, Ops O>
ASSAY_HD V balanced(O& ops, const V (&term)[kTerms]) {
  if constexpr (kCount == 1) {
    return term[kFirst];
  } else {
    constexpr int kHalf = kCount / 2;
    const V left = balanced<A, kFirst, kHalf>(ops, term);
    const V right = balanced<A, kFirst + kHalf, kHalf>(ops, term);
    return A::add(ops, left, right);
  }
}

// The tree over positions (SPEC KER-4.1). 12, 14 and 18 have no tree of their own upstream and take
// the generic left fold.
template <class A, class V, int kTerms, Ops O>
ASSAY_HD V sum_by_position(O& ops, const V (&term)[kTerms]) {
  if constexpr (kTerms == 1 || kTerms == 2 || kTerms == 4 || kTerms == 8 || kTerms == 16) {
    return balanced<A, 0, kTerms>(ops, term);
  } else if constexpr (kTerms == 6) {
    return A::add(ops, balanced<A, 0, 4>(ops, term), balanced<A, 4, 2>(ops, term));
  } else if constexpr (kTerms == 10) {
    return A::add(ops, balanced<A, 0, 8>(ops, term), balanced<A, 8, 2>(ops, term));
  } else if constexpr (kTerms == 22) {
    const V tail = A::add(ops, balanced<A, 16, 4>(ops, term), balanced<A, 20, 2>(ops, term));
    return A::add(ops, balanced<A, 0, 16>(ops, term), tail);
  } else {
    static_assert(kTerms == 12 || kTerms == 14 || kTerms == 18,
                  "no order is defined for this top_k");
    V sum = term[0];
    ASSAY_UNROLL
    for (int k = 1; k < kTerms; ++k) sum = A::add(ops, sum, term[k]);
    return sum;
  }
}

// Leaves that a compacted sum of up to top_k rows needs; unused leaves are +0.
ASSAY_HD constexpr int compact_leaves(int top_k) {
  return top_k <= 2 ? 2 : top_k <= 8 ? 8 : top_k <= 16 ? 16 : 32;
}

// The tree over the rows that exist (SPEC KER-4.2): the smallest of 2, 8, 16, 32 leaves that holds
// them. `count` is the same for the whole group.
template <class A, class V, int kLeaves, Ops O>
ASSAY_HD V sum_compacted(O& ops, const V (&term)[kLeaves], std::uint32_t count) {
  if constexpr (kLeaves >= 32)
    if (count > 16) return balanced<A, 0, 32>(ops, term);
  if constexpr (kLeaves >= 16)
    if (count > 8) return balanced<A, 0, 16>(ops, term);
  if constexpr (kLeaves >= 8)
    if (count > 2) return balanced<A, 0, 8>(ops, term);
  return balanced<A, 0, 2>(ops, term);
}

}  // namespace bodies
}  // namespace assay::one_sided
