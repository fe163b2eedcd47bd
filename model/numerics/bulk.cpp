// The row functions of bulk.hpp, compiled once per instruction set (Highway's foreach_target).
// Whole vectors go through the code below; the rest of a row through the scalar functions, which
// have the same bits by SPEC NUM-3.9 and by test.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/numerics/bulk.cpp"
#include <hwy/foreach_target.h>
// clang-format off: foreach_target.h must come before highway.h.
#include <hwy/highway.h>
// clang-format on

#include "model/core/contract.hpp"
#include "model/numerics/add.hpp"
#include "model/numerics/bulk.hpp"
#include "model/numerics/convert.hpp"
#include "model/numerics/formats.hpp"

HWY_BEFORE_NAMESPACE();
namespace assay::numerics::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Lanes = hn::ScalableTag<std::uint32_t>;
using Floats = hn::ScalableTag<float>;
using Words = hn::Vec<Lanes>;
using WordsMask = hn::Mask<Lanes>;
template <class T>
using CodeLanes = hn::Rebind<typename Format<T>::Bits, Lanes>;

HWY_INLINE Words all(std::uint32_t value) { return hn::Set(Lanes(), value); }
HWY_INLINE hn::Vec<Floats> as_float(Words x) { return hn::BitCast(Floats(), x); }
HWY_INLINE Words as_words(hn::Vec<Floats> x) { return hn::BitCast(Lanes(), x); }

// a < b for lanes below 2^31: signed comparisons exist on every target, unsigned ones do not.
HWY_INLINE WordsMask less(Words a, Words b) {
  const hn::RebindToSigned<Lanes> d;
  return hn::RebindMask(Lanes(), hn::Lt(hn::BitCast(d, a), hn::BitCast(d, b)));
}
HWY_INLINE WordsMask is_nan_lane(Words x) {
  return less(all(Format<F32>::kInfinity), hn::And(x, all(0x7FFFFFFFu)));
}

// Codes of T in memory to and from 32-bit lanes.
template <class T>
HWY_INLINE Words load_codes(const T* p) {
  if constexpr (sizeof(T) == 4) {
    return hn::LoadU(Lanes(), &p->bits);
  } else {
    return hn::PromoteTo(Lanes(), hn::LoadU(CodeLanes<T>(), &p->bits));
  }
}
template <class T>
HWY_INLINE void store_codes(Words x, T* p) {
  if constexpr (sizeof(T) == 4) {
    hn::StoreU(x, Lanes(), &p->bits);
  } else {
    const hn::RebindToSigned<Lanes> d;  // codes are small, so saturation never acts
    hn::StoreU(hn::DemoteTo(CodeLanes<T>(), hn::BitCast(d, x)), CodeLanes<T>(), &p->bits);
  }
}

template <class T>
HWY_INLINE Words widen_lanes(Words x) {
  using Src = Format<T>;
  if constexpr (std::is_same_v<T, F32>) {
    return x;
  } else if constexpr (std::is_same_v<T, Bf16>) {
    return hn::ShiftLeft<16>(x);
  } else {
    constexpr int gap = 23 - Src::kMantissaBits;
    constexpr int sign_gap = 31 - Src::kExponentBits - Src::kMantissaBits;
    constexpr std::uint32_t last_number = Src::kHasInfinity ? Src::kInfinity : Src::kMaxFinite;
    // The smallest step, 2^(1 - bias - mantissa bits), as f32.
    constexpr std::uint32_t step = static_cast<std::uint32_t>(128 - Src::kBias - Src::kMantissaBits)
                                   << 23;
    const Words m = hn::And(x, all(Src::kMagnitudeMask));
    const Words sign = hn::ShiftLeft<sign_gap>(hn::And(x, all(Src::kSignMask)));
    const Words normal =
        hn::Add(hn::ShiftLeft<gap>(m), all(static_cast<std::uint32_t>(127 - Src::kBias) << 23));
    const hn::RebindToSigned<Lanes> d;
    const Words small =
        as_words(hn::Mul(hn::ConvertTo(Floats(), hn::BitCast(d, m)), as_float(all(step))));
    Words y = hn::IfThenElse(less(m, all(Src::kMinNormal)), small, normal);
    if constexpr (Src::kHasInfinity) {
      y = hn::IfThenElse(hn::Eq(m, all(Src::kInfinity)), all(Format<F32>::kInfinity), y);
    }
    return hn::IfThenElse(less(all(last_number), m), all(Format<F32>::kNan), hn::Or(y, sign));
  }
}

// Round to nearest even; `largest` replaces every magnitude code above the largest finite one.
template <class T>
HWY_INLINE Words narrow_lanes(Words x, std::uint32_t largest) {
  using Dst = Format<T>;
  constexpr int shift = 23 - Dst::kMantissaBits;
  constexpr int sign_shift = 31 - Dst::kExponentBits - Dst::kMantissaBits;
  const Words m = hn::And(x, all(0x7FFFFFFFu));
  const Words sign = hn::And(hn::ShiftRight<sign_shift>(x), all(Dst::kSignMask));
  // Normal results: add half a step, less one if the last kept bit is even, and cut.
  const Words odd = hn::And(hn::ShiftRight<shift>(m), all(1));
  const Words up = hn::Add(hn::Add(m, all((1u << (shift - 1)) - 1)), odd);
  constexpr std::uint32_t rebias = static_cast<std::uint32_t>(127 - Dst::kBias) << 23;
  Words code = hn::ShiftRight<shift>(hn::Sub(up, all(rebias)));
  if constexpr (Dst::kBias != 127) {
    // Subnormal results: adding 2^23 steps makes the floating-point unit round to a step.
    constexpr std::uint32_t magic =
        static_cast<std::uint32_t>(128 - Dst::kBias - Dst::kMantissaBits + 23) << 23;
    const Words small = hn::Sub(as_words(hn::Add(as_float(m), as_float(all(magic)))), all(magic));
    code = hn::IfThenElse(less(m, all(rebias + (1u << 23))), small, code);
  }
  if constexpr (Dst::kBias == 127) {
    // bf16 has f32's exponents: codes run into Inf by themselves, if Inf is wanted.
    static_assert(std::is_same_v<T, Bf16>);
  } else {
    code = hn::IfThenElse(less(all(Dst::kMaxFinite), code), all(largest), code);
  }
  return hn::IfThenElse(is_nan_lane(x), all(Dst::kNan), hn::Or(code, sign));
}

HWY_INLINE Words flush_lanes(Words x) {
  const auto subnormal = less(hn::And(x, all(0x7FFFFFFFu)), all(Format<F32>::kMinNormal));
  return hn::IfThenElse(subnormal, hn::And(x, all(0x80000000u)), x);
}

template <bool Flush>
HWY_INLINE Words add_lanes(Words a, Words b) {
  if constexpr (Flush) {
    a = flush_lanes(a);
    b = flush_lanes(b);
  }
  const Words sum = as_words(hn::Add(as_float(a), as_float(b)));
  const Words y = hn::IfThenElse(is_nan_lane(sum), all(Format<F32>::kNan), sum);
  return Flush ? flush_lanes(y) : y;
}

template <class From>
HWY_INLINE void widen_loop(const From* in, F32* out, std::size_t n) {
  const std::size_t step = hn::Lanes(Lanes());
  std::size_t i = 0;
  for (; i + step <= n; i += step) store_codes(widen_lanes<From>(load_codes(in + i)), out + i);
  for (; i < n; ++i) out[i] = widen(in[i]);
}

template <class To>
HWY_INLINE void narrow_loop(const F32* in, To* out, std::size_t n, Overflow overflow) {
  const std::uint32_t largest =
      overflow == Overflow::kSaturate ? Format<To>::kMaxFinite : Format<To>::kInfinity;
  const std::size_t step = hn::Lanes(Lanes());
  std::size_t i = 0;
  for (; i + step <= n; i += step) {
    store_codes(narrow_lanes<To>(load_codes(in + i), largest), out + i);
  }
  for (; i < n; ++i) out[i] = narrow<To>(in[i], Rounding::kNearestEven, overflow);
}

template <bool Flush>
HWY_INLINE void add_f32_loop(const F32* a, const F32* b, F32* out, std::size_t n) {
  const std::size_t step = hn::Lanes(Lanes());
  std::size_t i = 0;
  for (; i + step <= n; i += step) {
    store_codes(add_lanes<Flush>(load_codes(a + i), load_codes(b + i)), out + i);
  }
  for (; i < n; ++i) out[i] = add_rn(a[i], b[i], Flush);
}

template <class T>
HWY_INLINE void add_narrow_loop(const T* a, const T* b, T* out, std::size_t n) {
  const std::size_t step = hn::Lanes(Lanes());
  std::size_t i = 0;
  for (; i + step <= n; i += step) {
    const Words sum =
        add_lanes<false>(widen_lanes<T>(load_codes(a + i)), widen_lanes<T>(load_codes(b + i)));
    store_codes(narrow_lanes<T>(sum, Format<T>::kInfinity), out + i);
  }
  for (; i < n; ++i) out[i] = add_rn(a[i], b[i]);
}

void widen_bf16(const Bf16* in, F32* out, std::size_t n) { widen_loop(in, out, n); }
void widen_f16(const F16* in, F32* out, std::size_t n) { widen_loop(in, out, n); }
void widen_e4m3(const E4m3* in, F32* out, std::size_t n) { widen_loop(in, out, n); }
void widen_e5m2(const E5m2* in, F32* out, std::size_t n) { widen_loop(in, out, n); }
void narrow_bf16(const F32* in, Bf16* out, std::size_t n) {
  narrow_loop(in, out, n, Overflow::kInfinity);
}
void narrow_f16(const F32* in, F16* out, std::size_t n) {
  narrow_loop(in, out, n, Overflow::kInfinity);
}
void narrow_e4m3(const F32* in, E4m3* out, std::size_t n) {
  narrow_loop(in, out, n, Overflow::kSaturate);
}
void narrow_e5m2(const F32* in, E5m2* out, std::size_t n) {
  narrow_loop(in, out, n, Overflow::kSaturate);
}
void add_f32(const F32* a, const F32* b, F32* out, std::size_t n, bool flush) {
  flush ? add_f32_loop<true>(a, b, out, n) : add_f32_loop<false>(a, b, out, n);
}
void add_bf16(const Bf16* a, const Bf16* b, Bf16* out, std::size_t n) {
  add_narrow_loop(a, b, out, n);
}
void add_f16(const F16* a, const F16* b, F16* out, std::size_t n) { add_narrow_loop(a, b, out, n); }

}  // namespace assay::numerics::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace assay::numerics {
namespace {

HWY_EXPORT(widen_bf16);
HWY_EXPORT(widen_f16);
HWY_EXPORT(widen_e4m3);
HWY_EXPORT(widen_e5m2);
HWY_EXPORT(narrow_bf16);
HWY_EXPORT(narrow_f16);
HWY_EXPORT(narrow_e4m3);
HWY_EXPORT(narrow_e5m2);
HWY_EXPORT(add_f32);
HWY_EXPORT(add_bf16);
HWY_EXPORT(add_f16);

void check_lengths(std::size_t a, std::size_t b) { CONTRACT(a == b, a, b); }

}  // namespace

void widen_row(std::span<const Bf16> in, std::span<F32> out) {
  check_lengths(in.size(), out.size());
  HWY_DYNAMIC_DISPATCH(widen_bf16)(in.data(), out.data(), in.size());
}
void widen_row(std::span<const F16> in, std::span<F32> out) {
  check_lengths(in.size(), out.size());
  HWY_DYNAMIC_DISPATCH(widen_f16)(in.data(), out.data(), in.size());
}
void widen_row(std::span<const E4m3> in, std::span<F32> out) {
  check_lengths(in.size(), out.size());
  HWY_DYNAMIC_DISPATCH(widen_e4m3)(in.data(), out.data(), in.size());
}
void widen_row(std::span<const E5m2> in, std::span<F32> out) {
  check_lengths(in.size(), out.size());
  HWY_DYNAMIC_DISPATCH(widen_e5m2)(in.data(), out.data(), in.size());
}

void narrow_row(std::span<const F32> in, std::span<Bf16> out) {
  check_lengths(in.size(), out.size());
  HWY_DYNAMIC_DISPATCH(narrow_bf16)(in.data(), out.data(), in.size());
}
void narrow_row(std::span<const F32> in, std::span<F16> out) {
  check_lengths(in.size(), out.size());
  HWY_DYNAMIC_DISPATCH(narrow_f16)(in.data(), out.data(), in.size());
}
void narrow_row(std::span<const F32> in, std::span<E4m3> out) {
  check_lengths(in.size(), out.size());
  HWY_DYNAMIC_DISPATCH(narrow_e4m3)(in.data(), out.data(), in.size());
}
void narrow_row(std::span<const F32> in, std::span<E5m2> out) {
  check_lengths(in.size(), out.size());
  HWY_DYNAMIC_DISPATCH(narrow_e5m2)(in.data(), out.data(), in.size());
}

void add_rows(std::span<const F32> a, std::span<const F32> b, std::span<F32> out, bool flush) {
  check_lengths(a.size(), b.size());
  check_lengths(a.size(), out.size());
  HWY_DYNAMIC_DISPATCH(add_f32)(a.data(), b.data(), out.data(), a.size(), flush);
}
void add_rows(std::span<const Bf16> a, std::span<const Bf16> b, std::span<Bf16> out) {
  check_lengths(a.size(), b.size());
  check_lengths(a.size(), out.size());
  HWY_DYNAMIC_DISPATCH(add_bf16)(a.data(), b.data(), out.data(), a.size());
}
void add_rows(std::span<const F16> a, std::span<const F16> b, std::span<F16> out) {
  check_lengths(a.size(), b.size());
  check_lengths(a.size(), out.size());
  HWY_DYNAMIC_DISPATCH(add_f16)(a.data(), b.data(), out.data(), a.size());
}

}  // namespace assay::numerics
#endif  // HWY_ONCE
