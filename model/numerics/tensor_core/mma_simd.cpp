// The vector kernels behind mma_simd.hpp, compiled once per instruction set by Highway and chosen
// at run time. No flag of the build selects an instruction set (DESIGN: no -march=native).
#include "model/numerics/tensor_core/mma_simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/numerics/tensor_core/mma_simd.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace assay::numerics::simd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using DF = hn::ScalableTag<float>;
using DI = hn::ScalableTag<std::int32_t>;
using DU = hn::ScalableTag<std::uint32_t>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;
using VU = hn::Vec<DU>;

// Toward zero, for values within the range of int32. Highway's ConvertTo repairs values beyond it,
// which costs a third of the inner loop; here they cannot occur in lanes that are used.
HWY_INLINE VI truncate(VF v) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  return VI{_mm512_cvttps_epi32(v.raw)};
#elif HWY_TARGET == HWY_AVX2
  return VI{_mm256_cvttps_epi32(v.raw)};
#elif HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_SSSE3
  return VI{_mm_cvttps_epi32(v.raw)};
#else
  return hn::ConvertTo(DI(), v);
#endif
}

// 2^exponent for exponents of normal numbers.
HWY_INLINE VF power_of_two(VI exponent) {
  return hn::BitCast(DF(), hn::ShiftLeft<23>(hn::Add(exponent, hn::Set(DI(), 127))));
}

// The exponent that c counts with, including e_zero for a zero and kSpecialExponent for NaN and
// Inf.
template <bool kF16Output>
HWY_INLINE VI accumulator_exponent(VU c, int zero_exponent) {
  const DI di;
  const VI field = hn::BitCast(di, hn::And(hn::ShiftRight<23>(c), hn::Set(DU(), 0xFF)));
  const VI magnitude = hn::BitCast(di, hn::And(c, hn::Set(DU(), 0x7FFFFFFF)));
  VI exponent = hn::Sub(hn::Max(field, hn::Set(di, 1)), hn::Set(di, 127));
  if (kF16Output) exponent = hn::Max(exponent, hn::Set(di, -14));
  exponent =
      hn::IfThenElse(hn::Eq(field, hn::Set(di, 255)), hn::Set(di, kSpecialExponent), exponent);
  return hn::IfThenElse(hn::Eq(magnitude, hn::Zero(di)), hn::Set(di, zero_exponent), exponent);
}

// sum + c in fp32, toward zero. The products' sum fits 32 bits (supports() checks the bound); with
// c it may need a 33rd, so sign and magnitude are taken apart first.
HWY_INLINE VU round_toward_zero(VI products, VI c, VI unit_exponent) {
  const DI di;
  const DU du;
  const VI sum = hn::Add(products, c);
  const VI wrapped = hn::And(hn::Xor(products, sum), hn::Xor(c, sum));  // negative if it overflowed
  const VI sign = hn::BroadcastSignBit(hn::Xor(sum, wrapped));
  const VU magnitude = hn::BitCast(du, hn::Sub(hn::Xor(sum, sign), sign));
  // Clear the bits that do not fit 24: they are as many as magnitude >> 24 is wide.
  VU excess = hn::ShiftRight<24>(magnitude);
  excess = hn::Or(excess, hn::ShiftRight<1>(excess));
  excess = hn::Or(excess, hn::ShiftRight<2>(excess));
  excess = hn::Or(excess, hn::ShiftRight<4>(excess));
  const VI kept = hn::BitCast(di, hn::AndNot(excess, magnitude));
  VF value = hn::ConvertTo(DF(), kept);  // exact, but a magnitude of 2^31 or more reads as negative
  const VF two_to_32 = hn::Set(DF(), 4294967296.0f);
  value = hn::IfThenElse(hn::RebindMask(DF(), hn::Lt(kept, hn::Zero(di))),
                         hn::Add(value, two_to_32), value);
  value = hn::Mul(value, power_of_two(unit_exponent));  // exact, or overflow to Inf as it should be
  const VU sign_bit = hn::And(hn::BitCast(du, sign), hn::Set(du, 0x80000000u));
  return hn::Or(hn::BitCast(du, value), sign_bit);  // a zero sum has sign 0: it is +0
}

// The same where the sum of all terms is below 2^24, cut to 13 fraction bits.
HWY_INLINE VU round_to_e8m13(VI products, VI c, VI unit_exponent) {
  const VF value = hn::ConvertTo(DF(), hn::Add(products, c));
  const VU bits = hn::BitCast(DU(), hn::Mul(value, power_of_two(unit_exponent)));
  return hn::And(bits, hn::Set(DU(), 0xFFFFFC00u));
}

// fp16 results round to nearest: one lane at a time, since it happens once in L products.
HWY_INLINE VU round_to_f16(const Rule& rule, VI products, VI c, VI unit_exponent) {
  HWY_ALIGN std::int32_t p[hn::MaxLanes(DI())];
  HWY_ALIGN std::int32_t q[hn::MaxLanes(DI())];
  HWY_ALIGN std::int32_t e[hn::MaxLanes(DI())];
  HWY_ALIGN std::uint32_t out[hn::MaxLanes(DI())];
  hn::Store(products, DI(), p);
  hn::Store(c, DI(), q);
  hn::Store(unit_exponent, DI(), e);
  for (std::size_t i = 0; i < hn::Lanes(DI()); ++i)
    out[i] = round_to_output(rule, std::int64_t{p[i]} + q[i], e[i]).bits;
  return hn::Load(DU(), out);
}

template <OutputFormat kOutput>
HWY_INLINE VU finish(const Rule& rule, VI products, VI c, VI unit_exponent) {
  if constexpr (kOutput == OutputFormat::kF16)
    return round_to_f16(rule, products, c, unit_exponent);
  else if constexpr (kOutput == OutputFormat::kE8m13)
    return round_to_e8m13(products, c, unit_exponent);
  else
    return round_toward_zero(products, c, unit_exponent);
}

// One block of kProducts products for one row of A and all lanes; `first` is its first k.
template <int kProducts, OutputFormat kOutput>
HWY_INLINE void block(const Panel& panel, int row, int first) {
  const DF df;
  const DI di;
  const DU du;
  const std::size_t n = hn::Lanes(di);
  const Rule& rule = panel.arithmetic->rule;
  const float* HWY_RESTRICT a = panel.a_value + static_cast<std::size_t>(row) * panel.k + first;
  const std::int32_t* HWY_RESTRICT ae =
      panel.a_exponent + static_cast<std::size_t>(row) * panel.k + first;
  const float* HWY_RESTRICT b = panel.b_value + static_cast<std::size_t>(first) * n;
  const std::int32_t* HWY_RESTRICT be = panel.b_exponent + static_cast<std::size_t>(first) * n;
  std::uint32_t* HWY_RESTRICT d = panel.d + static_cast<std::size_t>(row) * n;

  const VU c = hn::Load(du, d);
  VI largest = hn::Set(di, 2 * kZeroExponent);
  for (int i = 0; i < kProducts; ++i)
    largest = hn::Max(largest, hn::Add(hn::Set(di, ae[i]), hn::Load(di, be + i * n)));
  const VI c_exponent = accumulator_exponent<kOutput == OutputFormat::kF16>(c, rule.zero_exponent);
  const VI alignment = hn::Max(hn::Max(largest, c_exponent), hn::Set(di, rule.zero_exponent));

  const VI highest = hn::Set(di, kAlignmentMax);
  const VI lowest = hn::Set(di, kAlignmentMin);
  const VI clamped = hn::Min(hn::Max(alignment, lowest), highest);
  const VI unit_exponent = hn::Sub(clamped, hn::Set(di, rule.fraction_bits));
  const VF scale = power_of_two(hn::Neg(unit_exponent));
  VI sum = hn::Zero(di);
  for (int i = 0; i < kProducts; ++i) {
    const VF p = hn::Mul(hn::Set(df, a[i]), hn::Load(df, b + i * n));
    sum = hn::Add(sum, truncate(hn::Mul(p, scale)));
  }
  const VI c_term = truncate(hn::Mul(hn::BitCast(df, c), scale));
  const VU result = finish<kOutput>(rule, sum, c_term, unit_exponent);

  // Where every product has a zero factor and c is zero, the result is +0 as it stands: rows and
  // columns of zeros, which fill tiles up, need no repair.
  const auto all_zero = hn::And(hn::Lt(largest, hn::Set(di, kZeroExponent / 2)),
                                hn::Eq(hn::BitCast(di, hn::ShiftLeft<1>(c)), hn::Zero(di)));
  const auto outside = hn::AndNot(all_zero, hn::Ne(alignment, clamped));
  if (HWY_LIKELY(hn::AllFalse(di, outside))) {
    hn::Store(result, du, d);
    return;
  }
  HWY_ALIGN std::uint32_t old[hn::MaxLanes(du)];
  HWY_ALIGN std::int32_t bad[hn::MaxLanes(di)];
  hn::Store(c, du, old);
  hn::Store(hn::VecFromMask(di, outside), di, bad);
  hn::Store(result, du, d);
  for (std::size_t lane = 0; lane < n; ++lane) {
    if (bad[lane] != 0) {
      d[lane] =
          panel.exact_block(panel.context, row, static_cast<int>(lane), first, F32{old[lane]}).bits;
    }
  }
}

template <int kProducts, OutputFormat kOutput>
void blocks(const Panel& panel) {
  // Rows inside, chain outside: the chain is a dependency, rows are not.
  for (int first = 0; first < panel.k; first += kProducts)
    for (int row = 0; row < panel.m; ++row) block<kProducts, kOutput>(panel, row, first);
}

void run(const Panel& panel) {
  const Rule& rule = panel.arithmetic->rule;
  switch (rule.output) {
    case OutputFormat::kF32:
      if (rule.products == 16) return blocks<16, OutputFormat::kF32>(panel);
      if (rule.products == 8) return blocks<8, OutputFormat::kF32>(panel);
      return blocks<4, OutputFormat::kF32>(panel);
    case OutputFormat::kE8m13:
      if (rule.products == 32) return blocks<32, OutputFormat::kE8m13>(panel);
      return blocks<16, OutputFormat::kE8m13>(panel);
    case OutputFormat::kF16:
      if (rule.products == 32) return blocks<32, OutputFormat::kF16>(panel);
      if (rule.products == 16) return blocks<16, OutputFormat::kF16>(panel);
      return blocks<8, OutputFormat::kF16>(panel);
  }
}

int lanes() { return static_cast<int>(hn::Lanes(DI())); }
const char* name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace assay::numerics::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace assay::numerics::simd {

HWY_EXPORT(run);
HWY_EXPORT(lanes);
HWY_EXPORT(name);

bool supports(const Arithmetic& arithmetic) {
  const Rule& rule = arithmetic.rule;
  if (arithmetic.lowering != Lowering::kNative || rule.scale != ScaleFormat::kNone) return false;
  if (rule.floor_alignment || rule.renormalised_products || rule.late_c) return false;
  const bool f16 = rule.output == OutputFormat::kF16;
  if (rule.rounding != (f16 ? Rounding::kNearestEven : Rounding::kTowardZero)) return false;
  // 4 * 2^F bounds an aligned product, and products of up to 16 at F 25 stay below 2^31 because a
  // significand is below 2: (2 - 2^-10)^2 * 16 * 2^25 < 2^31. e8m13 sums must stay below 2^24.
  switch (rule.output) {
    case OutputFormat::kF32:
      return rule.fraction_bits <= 25 &&
             (rule.products == 16 || rule.products == 8 || rule.products == 4);
    case OutputFormat::kE8m13:
      return rule.fraction_bits <= 16 && (rule.products == 32 || rule.products == 16);
    case OutputFormat::kF16:
      return (rule.fraction_bits <= 24 && rule.products == 32) ||
             (rule.fraction_bits <= 25 && (rule.products == 16 || rule.products == 8));
  }
  return false;
}

int lanes() { return HWY_DYNAMIC_DISPATCH(lanes)(); }
void run_panel(const Panel& panel) { HWY_DYNAMIC_DISPATCH(run)(panel); }
std::string_view target_name() { return HWY_DYNAMIC_DISPATCH(name)(); }

}  // namespace assay::numerics::simd
#endif  // HWY_ONCE
