// The vector loops behind rows_simd.hpp, compiled once per instruction set by Highway and chosen at
// run time.
#include "model/attention/rows_simd.hpp"

#include "model/core/contract.hpp"
#include "model/numerics/add.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/attention/rows_simd.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace assay::attention {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using DF = hn::ScalableTag<float>;
using DI = hn::ScalableTag<std::int32_t>;
using DD = hn::Repartition<double, DF>;
using DL = hn::Repartition<std::int64_t, DF>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;
using VD = hn::Vec<DD>;

// Numbers of a row ordered as integers, -0 below +0, and what NaN there is.
void maximum(const std::int32_t* row, std::size_t count, std::int32_t* best, bool* any_nan,
             bool* all_nan) {
  const DI di;
  const std::size_t lanes = hn::Lanes(di);
  const VI magnitude_mask = hn::Set(di, 0x7FFFFFFF);
  const VI infinity = hn::Set(di, 0x7F800000);
  const VI lowest = hn::Set(di, INT32_MIN);
  VI largest = lowest;
  VI nan_seen = hn::Zero(di);
  VI number_seen = hn::Zero(di);
  const auto take = [&](VI bits, hn::Mask<DI> live) {
    const auto nan = hn::Gt(hn::And(bits, magnitude_mask), infinity);
    const VI key = hn::Xor(bits, hn::And(hn::BroadcastSignBit(bits), magnitude_mask));
    const auto number = hn::AndNot(nan, live);
    largest = hn::Max(largest, hn::IfThenElse(number, key, lowest));
    nan_seen = hn::Or(nan_seen, hn::VecFromMask(di, hn::And(nan, live)));
    number_seen = hn::Or(number_seen, hn::VecFromMask(di, number));
  };
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) take(hn::LoadU(di, row + i), hn::FirstN(di, lanes));
  if (i < count) {
    HWY_ALIGN std::int32_t tail[hn::MaxLanes(di)] = {};
    for (std::size_t j = 0; i + j < count; ++j) tail[j] = row[i + j];
    take(hn::Load(di, tail), hn::FirstN(di, count - i));
  }
  *best = hn::GetLane(hn::MaxOfLanes(di, largest));
  *any_nan = !hn::AllFalse(di, hn::Ne(nan_seen, hn::Zero(di)));
  *all_nan = *any_nan && hn::AllFalse(di, hn::Ne(number_seen, hn::Zero(di)));
}

// The sum a * b + c of doubles in which f32 operands were widened: the product is exact, the sum
// rounded to nearest, and sum + error is the exact value.
HWY_INLINE VD widened_sum(VD a, VD b, VD c, VD* error) {
  const VD product = hn::Mul(a, b);
  const VD sum = hn::Add(product, c);
  // Knuth's two-sum: sum + error is exact. Inf and NaN make the error NaN, which compares false.
  const VD from_product = hn::Sub(sum, c);
  const VD from_c = hn::Sub(sum, from_product);
  *error = hn::Add(hn::Sub(product, from_product), hn::Sub(c, from_c));
  return sum;
}

// Toward zero to f32's 24 bits: a sum that was rounded away from zero steps back by one double
// first. Then the low 29 bits go.
HWY_INLINE VD cut(VD sum, VD error) {
  const DD dd;
  const DL dl;
  const VD zero = hn::Zero(dd);
  const auto away = hn::Or(hn::And(hn::Gt(sum, zero), hn::Lt(error, zero)),
                           hn::And(hn::Lt(sum, zero), hn::Gt(error, zero)));
  const auto bits = hn::BitCast(dl, sum);
  const auto stepped = hn::Add(bits, hn::VecFromMask(dl, hn::RebindMask(dl, away)));
  return hn::BitCast(dd, hn::And(stepped, hn::Set(dl, ~std::int64_t{0x1FFFFFFF})));
}

// To odd in double precision, so that rounding it once more to f32 is the same as rounding once.
HWY_INLINE VD to_odd(VD sum, VD error) {
  const DD dd;
  const DL dl;
  const VD zero = hn::Zero(dd);
  const auto inexact = hn::Or(hn::Lt(error, zero), hn::Gt(error, zero));
  const auto away = hn::Or(hn::And(hn::Gt(sum, zero), hn::Lt(error, zero)),
                           hn::And(hn::Lt(sum, zero), hn::Gt(error, zero)));
  const auto bits = hn::BitCast(dl, sum);
  const auto below = hn::Add(bits, hn::VecFromMask(dl, hn::RebindMask(dl, away)));
  const auto one = hn::IfThenElseZero(hn::RebindMask(dl, inexact), hn::Set(dl, 1));
  return hn::BitCast(dd, hn::Or(below, one));
}

// Whether MulAdd of this instruction set rounds once.
constexpr bool kFused = HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL ||
                        HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_NEON;

// Calls one(vector of D) over the row, the last part padded with zeros.
template <class D, class One>
HWY_INLINE void over_row(D d, const float* row, float* out, std::size_t count, const One& one) {
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(one(hn::LoadU(d, row + i)), d, out + i);
  if (i == count) return;
  HWY_ALIGN float tail[hn::MaxLanes(d)] = {};
  for (std::size_t j = 0; i + j < count; ++j) tail[j] = row[i + j];
  hn::Store(one(hn::Load(d, tail)), d, tail);
  for (std::size_t j = 0; i + j < count; ++j) out[i + j] = tail[j];
}

template <bool kCut>
void fma_by_doubles(const float* row, float factor, float addend, bool flush, float* out,
                    std::size_t count) {
  const DD dd;
  const hn::Rebind<float, DD> dh;
  const hn::Rebind<std::int32_t, DD> dn;
  const VD f = hn::Set(dd, factor);
  const VD a = hn::Set(dd, addend);
  over_row(dh, row, out, count, [&](auto s) {
    if (kCut && flush) {
      // Only when cutting could a subnormal score be told from a zero: it decides the direction.
      const auto bits = hn::BitCast(dn, s);
      const auto magnitude = hn::And(bits, hn::Set(dn, 0x7FFFFFFF));
      s = hn::BitCast(dh, hn::IfThenZeroElse(hn::Lt(magnitude, hn::Set(dn, 0x00800000)), bits));
    }
    VD error;
    const VD sum = widened_sum(hn::PromoteTo(dd, s), f, a, &error);
    return hn::DemoteTo(dh, kCut ? cut(sum, error) : to_odd(sum, error));
  });
}

void nearest(const float* row, float factor, float addend, float* out, std::size_t count) {
  if constexpr (kFused) {
    const VF f = hn::Set(DF(), factor);
    const VF a = hn::Set(DF(), addend);
    over_row(DF(), row, out, count, [&](VF s) { return hn::MulAdd(s, f, a); });
  } else {
    fma_by_doubles<false>(row, factor, addend, false, out, count);
  }
}

void subtract_multiply(const float* row, float factor, float addend, float* out,
                       std::size_t count) {
  const VF f = hn::Set(DF(), factor);
  const VF a = hn::Set(DF(), addend);
  over_row(DF(), row, out, count, [&](VF s) { return hn::Mul(hn::Add(s, a), f); });
}

void run_arguments(ArgumentForm form, const float* row, float factor, float addend, bool flush,
                   float* out, std::size_t count) {
  switch (form) {
    case ArgumentForm::kRn:
      return nearest(row, factor, addend, out, count);
    case ArgumentForm::kRz:
      return fma_by_doubles<true>(row, factor, addend, flush, out, count);
    case ArgumentForm::kSubtractMultiply:
      return subtract_multiply(row, factor, addend, out, count);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace assay::attention
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace assay::attention {

HWY_EXPORT(maximum);
HWY_EXPORT(run_arguments);

F32 row_maximum(std::span<const F32> row, numerics::NanRule rule) {
  if (row.empty()) return F32{0xFF800000u};
  std::int32_t key = 0;
  bool any_nan = false;
  bool all_nan = false;
  HWY_DYNAMIC_DISPATCH(maximum)
  (reinterpret_cast<const std::int32_t*>(row.data()), row.size(), &key, &any_nan, &all_nan);
  if (all_nan || (any_nan && rule == numerics::NanRule::kPropagate))
    return numerics::canonical_nan<F32>();
  const auto bits = static_cast<std::uint32_t>(key);
  return F32{key < 0 ? bits ^ 0x7FFFFFFFu : bits};
}

void exponent_arguments(ArgumentForm form, std::span<const F32> row, F32 factor, F32 addend,
                        bool flush, std::span<F32> out) {
  CONTRACT(row.size() == out.size(), row.size(), out.size());
  if (flush) {
    factor = numerics::flush_subnormal(factor);
    addend = numerics::flush_subnormal(addend);
  }
  HWY_DYNAMIC_DISPATCH(run_arguments)
  (form, reinterpret_cast<const float*>(row.data()), numerics::to_float(factor),
   numerics::to_float(addend), flush, reinterpret_cast<float*>(out.data()), row.size());
}

}  // namespace assay::attention
#endif  // HWY_ONCE
