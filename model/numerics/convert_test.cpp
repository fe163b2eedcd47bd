// Conversions against a definition that looks values up: a format is the sorted table of its values
// (as doubles, which hold every f32 exactly), and rounding picks a neighbour in the table.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "model/core/testing.hpp"
#include "model/numerics/numerics.hpp"

using namespace assay;
using namespace assay::numerics;
using assay::testing::prop;

namespace {

struct Shape {
  int mantissa_bits;
  int bias;
  std::uint32_t max_finite;
  std::uint32_t overflow;  // the magnitude an overflowing value gets when not saturating
  std::uint32_t nan;
  bool has_infinity;
};
// Typed in from the formats' documents, not taken from Format<T>.
template <class T>
Shape shape();
template <>
Shape shape<F16>() {
  return {10, 15, 0x7BFF, 0x7C00, 0x7FFF, true};
}
template <>
Shape shape<Bf16>() {
  return {7, 127, 0x7F7F, 0x7F80, 0x7FFF, true};
}
template <>
Shape shape<E5m2>() {
  return {2, 15, 0x7B, 0x7C, 0x7F, true};
}
template <>
Shape shape<E4m3>() {
  return {3, 7, 0x7E, 0x7F, 0x7F, false};
}
template <>
Shape shape<E2m1>() {
  return {1, 1, 0x7, 0x7, 0x7, false};
}

// The value of a magnitude code, also of those beyond the largest finite one.
double value_of(const Shape& s, std::uint32_t code) {
  const int field = static_cast<int>(code >> s.mantissa_bits);
  const double fraction = code & ((1u << s.mantissa_bits) - 1);
  const double one = std::ldexp(1.0, s.mantissa_bits);
  return field == 0 ? std::ldexp(fraction, 1 - s.bias - s.mantissa_bits)
                    : std::ldexp(fraction + one, field - s.bias - s.mantissa_bits);
}

template <class T>
class Table {
 public:
  Table() : shape_(shape<T>()) {
    for (std::uint32_t c = 0; c <= shape_.max_finite + 1; ++c) {
      values_.push_back(value_of(shape_, c));
    }
    while (sign_bit_ <= shape_.max_finite) sign_bit_ <<= 1;
  }

  // Where |x| lies: at or above the value of code `below`. The nearer neighbour is the upper one if
  // `nearer_up`. Beyond the table, `below` is one past the largest finite code.
  struct Place {
    std::uint32_t below = 0;
    bool inexact = false;
    bool nearer_up = false;
  };
  Place find(double m) const {
    const auto after = std::upper_bound(values_.begin(), values_.end(), m);
    if (after == values_.end()) return {shape_.max_finite + 1, true, false};
    const auto below = static_cast<std::uint32_t>(after - values_.begin()) - 1;
    const double down = m - values_[below], up = values_[below + 1] - m;  // both exact
    return {below, down != 0, up < down || (up == down && below % 2 == 1)};
  }

  std::uint32_t narrow(F32 x, Rounding rounding, Overflow overflow) const {
    return narrow(x, find(std::fabs(static_cast<double>(to_float(x)))), rounding, overflow);
  }
  std::uint32_t narrow(F32 x, Place place, Rounding rounding, Overflow overflow) const {
    const float value = to_float(x);
    const bool negative = std::signbit(value);
    const std::uint32_t sign = negative ? sign_bit_ : 0;
    if (std::isnan(value)) return shape_.nan;
    const bool saturate = overflow == Overflow::kSaturate;
    if (std::isinf(value)) return sign | (saturate ? shape_.max_finite : shape_.overflow);
    bool away = rounding == Rounding::kNearestEven && place.nearer_up;
    if (rounding == Rounding::kUp) away = place.inexact && !negative;
    if (rounding == Rounding::kDown) away = place.inexact && negative;
    const std::uint32_t code = place.below + (away ? 1 : 0);
    if (code <= shape_.max_finite) return sign | code;
    const bool stays = rounding == Rounding::kTowardZero ||
                       (rounding == Rounding::kUp && negative) ||
                       (rounding == Rounding::kDown && !negative);
    return sign | (saturate || stays ? shape_.max_finite : shape_.overflow);
  }

  std::uint32_t sign_bit() const { return sign_bit_; }

 private:
  Shape shape_;
  std::vector<double> values_;
  std::uint32_t sign_bit_ = 8;
};

// Every input whose low bits matter: all 2^19 upper parts with the lower 13 bits at zero, at one,
// and around and at one half, and all ones. A tie of any of the formats, at any subnormal position,
// is an upper part with zeros below or the middle pattern; its neighbours are the others.
template <class Check>
void every_critical_f32(Check&& check) {
  for (std::uint32_t upper = 0; upper < (1u << 19); ++upper) {
    for (const std::uint32_t low : {0x0u, 0x1u, 0xFFFu, 0x1000u, 0x1001u, 0x1FFFu}) {
      check(F32{(upper << 13) | low});
    }
  }
}

constexpr Rounding kRoundings[] = {Rounding::kNearestEven, Rounding::kTowardZero, Rounding::kUp,
                                   Rounding::kDown};
constexpr Overflow kOverflows[] = {Overflow::kInfinity, Overflow::kSaturate};

template <class T>
void check_narrowing() {
  const Table<T> table;
  std::uint64_t wrong = 0;
  F32 first{0};
  const auto check = [&](F32 x) {
    const auto place = table.find(std::fabs(static_cast<double>(to_float(x))));
    for (const Rounding rounding : kRoundings) {
      for (const Overflow overflow : kOverflows) {
        if (narrow<T>(x, rounding, overflow).bits == table.narrow(x, place, rounding, overflow))
          continue;
        if (wrong++ == 0) first = x;
      }
    }
  };
  every_critical_f32(check);
  std::uint32_t x = 0x9E3779B9u;
  for (int i = 0; i < 500'000; ++i) {
    x = x * 1664525u + 1013904223u;
    check(F32{x});
  }
  CAPTURE(first.bits);
  CHECK(wrong == 0);
}

template <class T>
void check_widening(std::uint32_t codes, std::uint32_t (*nan_rule)(std::uint32_t)) {
  const Table<T> table;
  const Shape s = shape<T>();
  std::uint32_t wrong = 0, first = 0;
  for (std::uint32_t code = 0; code < codes; ++code) {
    const T x{static_cast<typename Format<T>::Bits>(code)};
    const std::uint32_t m = code & (table.sign_bit() - 1);
    const bool negative = (code & table.sign_bit()) != 0;
    std::uint32_t expected = 0;
    const bool finite = m <= s.max_finite;
    if (finite) {
      const double value = value_of(s, m);
      expected = from_float(static_cast<float>(negative ? -value : value)).bits;
    } else if (s.has_infinity && m == s.overflow) {
      expected = negative ? 0xFF800000u : 0x7F800000u;
    } else {
      expected = nan_rule(code);
    }
    bool ok = widen(x).bits == expected && is_nan(x) == (expected << 1 > 0xFF000000u);
    // Back again, every number is itself under every rounding.
    for (const Rounding rounding : kRoundings) {
      if (!is_nan(x)) ok &= narrow<T>(widen(x), rounding, Overflow::kInfinity).bits == code;
      if (finite) ok &= narrow<T>(widen(x), rounding, Overflow::kSaturate).bits == code;
    }
    if (!ok && wrong++ == 0) first = code;
  }
  CAPTURE(first);
  CHECK(wrong == 0);
}

std::uint32_t canonical(std::uint32_t) { return 0x7FFFFFFFu; }
std::uint32_t shifted(std::uint32_t code) { return code << 16; }

}  // namespace

TEST_CASE("widening gives the value of every code and narrowing brings it back",
          "[NUM-1.1][NUM-1.2]") {
  check_widening<F16>(1u << 16, canonical);
  check_widening<Bf16>(1u << 16, shifted);
  check_widening<E5m2>(1u << 8, canonical);
  check_widening<E4m3>(1u << 8, canonical);
  check_widening<E2m1>(1u << 4, canonical);
}

TEST_CASE("a widened NaN is canonical except from bf16, where its bits move",
          "[NUM-1.3][NUM-0.3]") {
  CHECK(widen(F16{0xFE01}).bits == 0x7FFFFFFFu);
  CHECK(widen(F16{0x7C01}).bits == 0x7FFFFFFFu);
  CHECK(widen(E4m3{0xFF}).bits == 0x7FFFFFFFu);
  CHECK(widen(E5m2{0xFD}).bits == 0x7FFFFFFFu);
  CHECK(widen(Bf16{0xFF81}).bits == 0xFF810000u);
}

TEST_CASE("a ue8m0 code is a power of two and 0xFF is NaN", "[NUM-1.4]") {
  for (unsigned code = 0; code < 255; ++code) {
    const Ue8m0 x{static_cast<std::uint8_t>(code)};
    CHECK(to_float(widen(x)) == std::ldexp(1.0f, static_cast<int>(code) - 127));
    CHECK(narrow<Ue8m0>(widen(x), Rounding::kUp, Overflow::kSaturate).bits == code);
    CHECK(narrow<Ue8m0>(widen(x), Rounding::kTowardZero, Overflow::kSaturate).bits == code);
  }
  CHECK(widen(Ue8m0{0xFF}).bits == 0x7FFFFFFFu);
}

TEST_CASE("narrowing picks the neighbour that the rounding names", "[NUM-2.1][NUM-2.2][NUM-2.3]") {
  check_narrowing<F16>();
  check_narrowing<Bf16>();
  check_narrowing<E5m2>();
  check_narrowing<E4m3>();
  check_narrowing<E2m1>();
}

TEST_CASE("narrowing rounds the borders as published", "[NUM-2.2][NUM-2.3]") {
  CHECK(cvt_rn_bf16_f32(F32{0x7F7FFFFF}).bits == 0x7F80);  // rounds into Inf
  CHECK(cvt_rz_bf16_f32(F32{0x7F7FFFFF}).bits == 0x7F7F);
  CHECK(cvt_rn_bf16_f32(F32{0xFFC00001}).bits == 0x7FFF);
  CHECK(cvt_rz_bf16_f32(F32{0x7F800001}).bits == 0x7FFF);
  CHECK(cvt_rn_f16_f32(from_float(65519.0f)).bits == 0x7BFF);
  CHECK(cvt_rn_f16_f32(from_float(65520.0f)).bits == 0x7C00);
  CHECK(cvt_rz_f16_f32(from_float(1e30f)).bits == 0x7BFF);
  CHECK(cvt_rz_f16_f32(F32{0x7F800000}).bits == 0x7C00);
  CHECK(cvt_rn_satfinite_e4m3(from_float(464.0f)).bits == 0x7E);
  CHECK(cvt_rn_satfinite_e4m3(from_float(465.0f)).bits == 0x7E);
  CHECK(cvt_rn_satfinite_e4m3(F32{0xFF800000}).bits == 0xFE);
  CHECK(cvt_rn_satfinite_e4m3(F32{0xFFFFFFFF}).bits == 0x7F);
  CHECK(cvt_rn_satfinite_e4m3(from_float(0x1p-10f)).bits == 0x00);  // tie to even zero
  CHECK(cvt_rn_satfinite_e4m3(from_float(-0x1.000002p-10f)).bits == 0x81);
  CHECK(cvt_rn_satfinite_e5m2(F32{0x7F800000}).bits == 0x7B);
  CHECK(cvt_rn_satfinite_e5m2(F32{0xFFC00000}).bits == 0x7F);
  CHECK(cvt_rn_satfinite_e2m1(from_float(5.0f)).bits == 0x6);    // tie between 4 and 6
  CHECK(cvt_rn_satfinite_e2m1(from_float(2.5f)).bits == 0x4);    // tie between 2 and 3
  CHECK(cvt_rn_satfinite_e2m1(from_float(-0.25f)).bits == 0x8);  // tie to -0
  CHECK(cvt_rn_satfinite_e2m1(F32{0xFFC00000}).bits == 0x7);     // NaN is +6
  CHECK(narrow<E4m3>(from_float(-465.0f), Rounding::kNearestEven, Overflow::kInfinity).bits ==
        0xFF);
}

TEST_CASE("ue8m0 is the power of two above or below the absolute value", "[NUM-2.4]") {
  std::uint64_t wrong = 0;
  every_critical_f32([&](F32 x) {
    const double m = std::fabs(static_cast<double>(to_float(x)));
    int up = 255, down = 255, up_open = 255, down_open = 255;
    if (!std::isnan(m)) {
      up = down = 254;
      if (!std::isinf(m)) {
        int exponent = 0;  // m = f * 2^exponent with f in [1/2, 1)
        const double f = std::frexp(m, &exponent);
        down_open = m == 0 ? 0 : std::max(exponent - 1 + 127, 0);
        up_open = m == 0 ? 0 : std::max(exponent - (f == 0.5 ? 1 : 0) + 127, 0);
        up = std::min(up_open, 254);
        down = down_open;
      }
    }
    wrong += narrow<Ue8m0>(x, Rounding::kUp, Overflow::kSaturate).bits != up;
    wrong += narrow<Ue8m0>(x, Rounding::kUp, Overflow::kInfinity).bits != up_open;
    wrong += narrow<Ue8m0>(x, Rounding::kTowardZero, Overflow::kSaturate).bits != down;
    wrong += narrow<Ue8m0>(x, Rounding::kTowardZero, Overflow::kInfinity).bits != down_open;
  });
  CHECK(wrong == 0);
}

TEST_CASE("the first source of a packed conversion is the high half", "[NUM-2.5]") {
  CHECK(pack_x2(Bf16{0x1234}, Bf16{0x5678}) == 0x12345678u);
  CHECK(pack_x2(E4m3{0x12}, E4m3{0x34}) == 0x1234u);
  CHECK(pack_x2(E2m1{0x1}, E2m1{0x2}) == 0x12u);
}

TEST_CASE("a 16-bit source converts with one rounding", "[NUM-2.6]") {
  // 16-bit sources are f32 values, so every code agrees with the table through f32.
  const Table<E4m3> e4m3;
  const Table<E2m1> e2m1;
  std::uint32_t wrong = 0;
  for (std::uint32_t code = 0; code < (1u << 16); ++code) {
    const F16 h{static_cast<std::uint16_t>(code)};
    const Bf16 b{static_cast<std::uint16_t>(code)};
    const auto rn = Rounding::kNearestEven;
    const auto sat = Overflow::kSaturate;
    wrong += cvt_rn_satfinite_e4m3(h).bits != e4m3.narrow(widen(h), rn, sat);
    wrong += cvt_rn_satfinite_e4m3(b).bits != e4m3.narrow(widen(b), rn, sat);
    wrong += cvt_rn_satfinite_e2m1(h).bits != e2m1.narrow(widen(h), rn, sat);
  }
  CHECK(wrong == 0);
}

TEST_CASE("the short form of bf16 rounding equals the general one", "[NUM-2.1]") {
  std::uint64_t wrong = 0;
  every_critical_f32([&](F32 x) {
    wrong += !same_bits(cvt_rn_bf16_f32(x),
                        narrow<Bf16>(x, Rounding::kNearestEven, Overflow::kInfinity));
  });
  CHECK(wrong == 0);
}
