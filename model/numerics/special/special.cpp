// The special functions over arrays, compiled once per instruction set by Highway. The same integer
// sums as mufu.hpp, rearranged so that 32 bits hold them. Decides nothing; tests hold it to
// mufu.hpp.
#include "model/numerics/special/special.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/numerics/special/special.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace assay::numerics {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using DF = hn::ScalableTag<float>;
using DI = hn::ScalableTag<std::int32_t>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;

HWY_INLINE VI constant(std::int32_t value) { return hn::Set(DI(), value); }
HWY_INLINE VI bits_of(std::uint32_t value) {
  return hn::Set(DI(), static_cast<std::int32_t>(value));
}

HWY_INLINE VI truncated_square(VI x) {
  const VI one = constant(1);
  VI sum = hn::Zero(DI());
  // Bit 0 and bit 1 add x >> 18 and x >> 17, which are 0.
#define ASSAY_SQUARE_STEP(i) \
  sum = hn::Add(             \
      sum, hn::And(hn::ShiftRight<18 - (i)>(x), hn::Neg(hn::And(hn::ShiftRight<(i)>(x), one))));
  ASSAY_SQUARE_STEP(2)
  ASSAY_SQUARE_STEP(3)
  ASSAY_SQUARE_STEP(4) ASSAY_SQUARE_STEP(5) ASSAY_SQUARE_STEP(6) ASSAY_SQUARE_STEP(7)
      ASSAY_SQUARE_STEP(8) ASSAY_SQUARE_STEP(9) ASSAY_SQUARE_STEP(10) ASSAY_SQUARE_STEP(11)
          ASSAY_SQUARE_STEP(12) ASSAY_SQUARE_STEP(13) ASSAY_SQUARE_STEP(14) ASSAY_SQUARE_STEP(15)
              ASSAY_SQUARE_STEP(16)
#undef ASSAY_SQUARE_STEP
                  return hn::ShiftRight<1>(sum);
}

// The sum of `form`, cut by kShift bits, and the 13 bits below the cut where kShift is 15. The sum
// needs up to 41 bits. With b * x = 4 * (b * (x >> 2)) + b * (x & 3) and the low bits of A kept
// apart, every part fits 32 bits: |b| < 2^16 and x >> 2 < 2^15 (for the largest |b| also with the
// rest added: 65534 * 32767 + 2^17 < 2^31, and positive b stay below 47273).
template <int kShift>
struct Sum {
  VI value;
  VI below;
};
template <int kAShift, int kCFactor, int kConstant, int kShift>
HWY_INLINE Sum<kShift> interpolate(const MufuRow* table, VI index, VI x, VI square) {
  constexpr int kLowBits = kShift - kAShift;
  const VI at = hn::Add(hn::Add(index, index), index);
  const auto* base = reinterpret_cast<const std::int32_t*>(table);
  const VI a = hn::GatherIndex(DI(), base, at);
  const VI b = hn::GatherIndex(DI(), base + 1, at);
  const VI c = hn::GatherIndex(DI(), base + 2, at);
  const VI a_low = hn::ShiftLeft<kAShift>(hn::And(a, constant((1 << kLowBits) - 1)));
  const VI rest =
      hn::Add(hn::Add(a_low, hn::Mul(b, hn::And(x, constant(3)))),
              hn::Add(hn::Mul(hn::Mul(c, constant(kCFactor)), square), constant(kConstant)));
  const VI quarter = hn::Add(hn::Mul(b, hn::ShiftRight<2>(x)), hn::ShiftRight<2>(rest));
  return {hn::Add(hn::ShiftRight<kLowBits>(a), hn::ShiftRight<kShift - 2>(quarter)),
          hn::And(quarter, constant((1 << (kShift - 2)) - 1))};
}

// The masks that every function starts with.
struct Argument {
  VI bits, magnitude, sign;
  hn::Mask<DI> nan, infinite, tiny, negative;
  HWY_INLINE explicit Argument(VI x)
      : bits(x),
        magnitude(hn::And(x, bits_of(0x7FFFFFFF))),
        sign(hn::And(x, bits_of(0x80000000))),
        nan(hn::Gt(magnitude, bits_of(0x7F800000))),
        infinite(hn::Eq(magnitude, bits_of(0x7F800000))),
        tiny(hn::Lt(magnitude, bits_of(0x00800000))),
        negative(hn::Lt(x, hn::Zero(DI()))) {}
  HWY_INLINE VI with_nan(VI result) const {
    return hn::IfThenElse(nan, bits_of(0x7FFFFFFF), result);
  }
};

HWY_INLINE VI ex2(VI bits) {
  const DF df;
  const DI di;
  const Argument x(bits);
  const auto large = hn::Gt(x.magnitude, bits_of(0x42FFFFFF));
  // Exact: below 128 the product is below 2^30, and the conversion cuts. Subnormals give 0.
  const VF safe = hn::BitCast(df, hn::IfThenZeroElse(large, x.magnitude));
  VI fixed = hn::ConvertTo(di, hn::Mul(safe, hn::Set(df, 8388608.0f)));
  const VI flip = hn::VecFromMask(di, x.negative);
  const auto whole = hn::Eq(hn::And(fixed, constant(0x7FFFFF)), hn::Zero(di));
  const VI carry = hn::And(hn::And(flip, hn::VecFromMask(di, whole)), constant(1));
  fixed = hn::Add(hn::Xor(fixed, flip), carry);
  const VI exponent = hn::Add(hn::ShiftRight<23>(fixed), constant(127));
  const VI low = hn::And(fixed, constant(0x1FFFF));
  const VI index = hn::And(hn::ShiftRight<17>(fixed), constant(63));
  const VI sum = interpolate<13, 1, 0x77E2, 15>(kMufuEx2, index, low, truncated_square(low)).value;
  VI result = hn::Add(hn::ShiftLeft<23>(hn::Sub(exponent, constant(1))), sum);
  result = hn::IfThenZeroElse(hn::Lt(exponent, constant(1)), result);
  const VI saturated = hn::IfThenZeroElse(x.negative, bits_of(0x7F800000));
  return x.with_nan(hn::IfThenElse(large, saturated, result));
}

HWY_INLINE VI rcp(VI bits) {
  const Argument x(bits);
  const VI low = hn::And(x.magnitude, constant(0xFFFF));
  const VI index = hn::And(hn::ShiftRight<16>(x.magnitude), constant(127));
  const VI sum =
      interpolate<13, 1, 0x47E7, 15>(kMufuRcp, index, low, truncated_square(hn::Add(low, low)))
          .value;
  VI result =
      hn::Add(hn::ShiftLeft<23>(hn::Sub(constant(252), hn::ShiftRight<23>(x.magnitude))), sum);
  result = hn::IfThenZeroElse(hn::Lt(result, bits_of(0x00800000)), result);
  result = hn::IfThenZeroElse(x.infinite, result);
  result = hn::IfThenElse(x.tiny, bits_of(0x7F800000), result);
  return x.with_nan(hn::Or(result, x.sign));
}

HWY_INLINE VI rsqrt(VI bits) {
  const DI di;
  const Argument x(bits);
  const VI exponent = hn::Sub(hn::ShiftRight<23>(x.magnitude), constant(127));
  const VI odd = hn::And(exponent, constant(1));
  const VI half = hn::ShiftRight<1>(exponent);
  const VI low = hn::And(x.magnitude, constant(0x1FFFF));
  const VI index =
      hn::Or(hn::ShiftLeft<6>(odd), hn::And(hn::ShiftRight<17>(x.magnitude), constant(63)));
  const VI sum =
      interpolate<14, 4, 0x7FFF, 16>(kMufuRsqrt, index, low, truncated_square(low)).value;
  VI result = hn::Add(hn::ShiftLeft<23>(hn::Sub(constant(125), half)), sum);
  const VI mantissa_and_parity =
      hn::Or(hn::And(x.magnitude, constant(0x7FFFFF)), hn::ShiftLeft<23>(odd));
  result = hn::IfThenElse(hn::Eq(mantissa_and_parity, hn::Zero(di)),
                          hn::ShiftLeft<23>(hn::Sub(constant(127), half)), result);
  result = hn::IfThenZeroElse(x.infinite, result);
  result = hn::IfThenElse(x.negative, bits_of(0x7FFFFFFF), result);
  result = hn::IfThenElse(x.tiny, hn::Or(bits_of(0x7F800000), x.sign), result);
  return x.with_nan(result);
}

HWY_INLINE VI lg2(VI bits) {
  const DF df;
  const DI di;
  const Argument x(bits);
  const VI low = hn::And(x.magnitude, constant(0x1FFFF));
  const VI index = hn::And(hn::ShiftRight<17>(x.magnitude), constant(63));
  // Units of 2^-23 and, below them, 13 bits more: together the unit's 36-bit fraction.
  const auto sum = interpolate<12, 2, 0x3345, 15>(kMufuLg2, index, low, truncated_square(low));
  VI high = hn::Add(hn::ShiftLeft<23>(hn::Sub(hn::ShiftRight<23>(x.magnitude), constant(127))),
                    sum.value);
  const VI sign = hn::BroadcastSignBit(high);
  high = hn::Xor(high, sign);
  const VI rest = hn::Xor(sum.below, hn::And(sign, constant(0x1FFF)));
  // high * 2^13 + rest, cut to 24 bits. Bits of `high` beyond 24 are cut at once; then both are
  // exact in fp32, and a sum that rounded up is stepped back.
  VI excess = hn::ShiftRight<24>(high);
  excess = hn::Or(excess, hn::ShiftRight<1>(excess));
  excess = hn::Or(excess, hn::ShiftRight<2>(excess));
  excess = hn::Or(excess, hn::ShiftRight<4>(excess));
  const VF big = hn::Mul(hn::ConvertTo(df, hn::AndNot(excess, high)), hn::Set(df, 8192.0f));
  const VF small = hn::ConvertTo(df, rest);
  const VF total = hn::Add(big, small);
  const VF error = hn::Sub(small, hn::Sub(total, big));
  const VI step = hn::VecFromMask(di, hn::RebindMask(di, hn::Lt(error, hn::Zero(df))));
  VI result = hn::Add(hn::BitCast(di, total), step);
  result = hn::Sub(result, constant(36 << 23));
  result = hn::Or(result, hn::And(sign, bits_of(0x80000000)));
  result = hn::IfThenZeroElse(hn::Eq(bits, bits_of(0x3F800000)), result);
  result = hn::IfThenElse(x.infinite, bits_of(0x7F800000), result);
  result = hn::IfThenElse(x.negative, bits_of(0x7FFFFFFF), result);
  result = hn::IfThenElse(x.tiny, bits_of(0xFF800000), result);
  return x.with_nan(result);
}

template <VI (*kFunction)(VI)>
HWY_INLINE void over_array(const std::int32_t* x, std::int32_t* y, std::size_t count) {
  const DI di;
  const std::size_t lanes = hn::Lanes(di);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(kFunction(hn::LoadU(di, x + i)), di, y + i);
  if (i == count) return;
  HWY_ALIGN std::int32_t tail[hn::MaxLanes(di)] = {};
  for (std::size_t j = 0; i + j < count; ++j) tail[j] = x[i + j];
  hn::Store(kFunction(hn::Load(di, tail)), di, tail);
  for (std::size_t j = 0; i + j < count; ++j) y[i + j] = tail[j];
}

void run(Mufu function, const std::int32_t* x, std::int32_t* y, std::size_t count) {
  switch (function) {
    case Mufu::kEx2:
      return over_array<ex2>(x, y, count);
    case Mufu::kRcp:
      return over_array<rcp>(x, y, count);
    case Mufu::kRsqrt:
      return over_array<rsqrt>(x, y, count);
    case Mufu::kLg2:
      return over_array<lg2>(x, y, count);
    case Mufu::kTanh:
      for (std::size_t i = 0; i < count; ++i)
        y[i] = static_cast<std::int32_t>(tanh_approx(F32{static_cast<std::uint32_t>(x[i])}).bits);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace assay::numerics
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace assay::numerics {

HWY_EXPORT(run);

std::string_view mufu_name(Mufu function) {
  switch (function) {
    case Mufu::kEx2:
      return "ex2";
    case Mufu::kRcp:
      return "rcp";
    case Mufu::kRsqrt:
      return "rsqrt";
    case Mufu::kLg2:
      return "lg2";
    case Mufu::kTanh:
      return "tanh";
  }
  return "?";
}

Expected<Mufu> parse_mufu(std::string_view name) {
  for (const Mufu function : {Mufu::kEx2, Mufu::kRcp, Mufu::kRsqrt, Mufu::kLg2, Mufu::kTanh})
    if (name == mufu_name(function)) return function;
  return bad_input("function is '" + std::string(name) +
                   "'; allowed are ex2, rcp, rsqrt, lg2 and tanh");
}

void mufu(Mufu function, std::span<const F32> x, std::span<F32> y) {
  CONTRACT(x.size() == y.size(), x.size(), y.size());
  static_assert(sizeof(F32) == sizeof(std::int32_t));
  HWY_DYNAMIC_DISPATCH(run)
  (function, reinterpret_cast<const std::int32_t*>(x.data()),
   reinterpret_cast<std::int32_t*>(y.data()), x.size());
}

}  // namespace assay::numerics
#endif  // HWY_ONCE
