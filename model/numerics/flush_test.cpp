// Products, fused sums and quotients with `.ftz` around 2^-126, where it matters that rounding
// comes first and knows no smallest exponent.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "model/core/testing.hpp"
#include "model/numerics/numerics.hpp"

using namespace assay;
using namespace assay::numerics;
using assay::testing::prop;

namespace {

// The definition: 2^100 times the result is far from the end of the exponents, so f32 rounds it to
// 24 bits. Right for |a| and |b| up to 2^-14 and |c| up to 2^-37: nothing overflows, and scaling
// normal numbers and zeros is exact.
F32 fma_ftz_by_definition(F32 a, F32 b, F32 c) {
  const float x = to_float(flush_subnormal(a)) * 0x1p50f;
  const float y = to_float(flush_subnormal(b)) * 0x1p50f;
  const float scaled = std::fma(x, y, to_float(flush_subnormal(c)) * 0x1p100f);
  if (std::fabs(scaled) < 0x1p-26f) return from_float(std::copysign(0.0f, scaled));
  return from_float(scaled * 0x1p-100f);
}

// The same for products, whose zeros have the sign that the operands' signs give.
F32 mul_ftz_by_definition(F32 a, F32 b) {
  const float product =
      to_float(flush_subnormal(a)) * 0x1p50f * (to_float(flush_subnormal(b)) * 0x1p50f);
  if (std::fabs(product) < 0x1p-26f) return from_float(std::copysign(0.0f, product));
  return from_float(product * 0x1p-100f);
}

// How the two other rules that one could think of end: after IEEE 754's rounding, which never goes
// below multiples of 2^-149, and before any rounding. Both exact for products: 48 bits in a double.
F32 flushed_after_ieee(F32 a, F32 b) { return flush_subnormal(mul_rn(a, b, false)); }
F32 flushed_before_rounding(F32 a, F32 b) {
  const double exact = static_cast<double>(to_float(a)) * static_cast<double>(to_float(b));
  if (std::fabs(exact) < 0x1p-126)
    return from_float(std::copysign(0.0f, static_cast<float>(exact)));
  return from_float(static_cast<float>(exact));
}

struct Random {  // a linear congruential generator's high bits: fixed, so that a failure repeats
  std::uint64_t state = 20261129;
  std::uint32_t bits(int count) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::uint32_t>(state >> (64 - count));
  }
};

struct Triple {
  F32 a, b, c;
};

// Operands whose product or sum lies near 2^-126: within one or two units of 24 bits where kind is
// 0 to 2 (as in the probe), and within 16 binades, with fractions of any kind, where it is 3.
Triple near_smallest(Random& random) {
  const std::uint32_t kind = random.bits(2);
  Triple t{F32{0x20000000u | random.bits(23)}, F32{0}, F32{0}};
  const double target = kind == 1 ? 0x1p-125 : 0x1p-126;
  t.b = from_float(static_cast<float>(target / static_cast<double>(to_float(t.a))));
  t.b.bits += random.bits(2) - 1;
  if (kind == 1) t.c.bits = 0x80800000u;
  if (kind == 2) {
    t.a.bits = 0xA0000000u;
    t.b.bits = (63u - random.bits(5)) << 23 | random.bits(23);
    t.c.bits = 0x00800000u + random.bits(1);
  }
  if (kind == 3) {
    const std::uint32_t field = 48 + random.bits(5);
    const auto fraction = [&] { return random.bits(1) ? random.bits(23) : 0x7FFFFFu; };
    t.a.bits = random.bits(1) << 31 | field << 23 | fraction();
    t.b.bits = random.bits(1) << 31 | (128 - field - 16 + random.bits(5)) << 23 | fraction();
    t.c.bits = random.bits(1) << 31 | random.bits(5) << 23 | fraction();
  }
  const std::uint32_t sign = random.bits(1) << 31;
  t.b.bits ^= sign;
  t.c.bits ^= sign;
  return t;
}

}  // namespace

TEST_CASE("the product that told the rules apart on an H200 is zero", "[NUM-3.2][NUM-3.5]") {
  constexpr F32 a{0xA03F50AD}, b{0x9FAB4711};
  static_assert(mul_rn(a, b, true).bits == 0);
  static_assert(mul_rn(a, b, false).bits == 0x00800000);  // rounds up to 2^-126
  CHECK(mul_rn(a, b, true).bits == 0);  // not a constant expression: the host's product
  CHECK(mul_rn(a, b, false).bits == 0x00800000u);
  CHECK(mul_rn(F32{a.bits ^ 0x80000000u}, b, true).bits == 0x80000000u);
  CHECK(fma_rn(a, b, F32{0x80000000}, true).bits == 0);
  // Within 2^-25 of 2^-126 a product rounds up to it and stays: recorded on the same GPU.
  const F32 c{0x20001200}, d = from_float(static_cast<float>(0x1p-126 / 0x1.0024p-63));
  CHECK(static_cast<double>(to_float(c)) * static_cast<double>(to_float(d)) < 0x1p-126);
  CHECK(mul_rn(c, d, true).bits == 0x00800000u);
}

TEST_CASE("flushing products round to 24 bits first, whatever their exponent",
          "[NUM-3.2][NUM-3.5]") {
  Random random;
  std::uint64_t wrong = 0, wrong_exact = 0, not_after_ieee = 0, not_before = 0;
  Triple first{};
  for (int i = 0; i < 2'000'000; ++i) {
    const Triple t = near_smallest(random);
    const F32 expected = mul_ftz_by_definition(t.a, t.b);
    if (!same_bits(mul_rn(t.a, t.b, true), expected) && wrong++ == 0) first = t;
    wrong_exact += !same_bits(exact_mul(t.a, t.b, Rounding::kNearestEven, true), expected);
    not_after_ieee += !same_bits(flushed_after_ieee(t.a, t.b), expected);
    not_before += !same_bits(flushed_before_rounding(t.a, t.b), expected);
  }
  CAPTURE(first.a.bits, first.b.bits);
  CHECK(wrong == 0);
  CHECK(wrong_exact == 0);
  CHECK(not_after_ieee > 10'000);  // else the operands have gone tame
  CHECK(not_before > 10'000);
}

TEST_CASE("flushing fused sums round to 24 bits first, whatever their exponent",
          "[NUM-3.2][NUM-3.6]") {
  Random random;
  std::uint64_t wrong = 0, wrong_exact = 0, wrong_cut = 0, not_after_ieee = 0, zeros = 0;
  Triple first{};
  for (int i = 0; i < 2'000'000; ++i) {
    const Triple t = near_smallest(random);
    const F32 expected = fma_ftz_by_definition(t.a, t.b, t.c);
    if (!same_bits(fma_rn(t.a, t.b, t.c, true), expected) && wrong++ == 0) first = t;
    wrong_exact += !same_bits(exact_fma(t.a, t.b, t.c, Rounding::kNearestEven, true), expected);
    const F32 c = flush_subnormal(t.c);
    not_after_ieee += !same_bits(flush_subnormal(fma_rn(t.a, t.b, c, false)), expected);
    // Toward zero nothing rounds up to 2^-126, so there flushing may as well come last.
    wrong_cut +=
        !same_bits(fma_rz(t.a, t.b, t.c, true), flush_subnormal(fma_rz(t.a, t.b, c, false)));
    zeros += is_zero(expected);
  }
  CAPTURE(first.a.bits, first.b.bits, first.c.bits);
  CHECK(wrong == 0);
  CHECK(wrong_exact == 0);
  CHECK(wrong_cut == 0);
  CHECK(not_after_ieee > 10'000);
  CHECK(zeros > 10'000);
}

TEST_CASE("quotients just below 2^-126 are flushed", "[NUM-3.2][NUM-3.10]") {
  // IEEE 754 rounds one of them up: half of the number below 2^-125, a tie.
  CHECK(div_rn(F32{0x80FFFFFF}, F32{0x40000000}, false).bits == 0x80800000u);
  CHECK(div_rn(F32{0x80FFFFFF}, F32{0x40000000}, true).bits == 0x80000000u);
  // For other divisors, significands one apart come nearest.
  std::uint64_t wrong = 0;
  for (std::uint32_t fraction = 1; fraction < 0x800000u; ++fraction) {
    const F32 a{0x10000000u | (fraction - 1)}, b{0x4F000000u | fraction};
    wrong += div_rn(a, b, true).bits != 0 || div_rn(F32{a.bits + 1}, b, true).bits != 0x00800000u;
    if (fraction % 16 == 0) wrong += exact_div(a, b, Rounding::kNearestEven, true).bits != 0;
  }
  CHECK(wrong == 0);
}

TEST_CASE("flushing results are never subnormal and otherwise those of IEEE 754", "[NUM-3.2]") {
  prop("a flushed result is the kept one, or zero where that is at most 2^-126", [] {
    const auto any = [] { return F32{*rc::gen::arbitrary<std::uint32_t>()}; };
    Random random{*rc::gen::arbitrary<std::uint64_t>()};
    const bool near = *rc::gen::arbitrary<bool>();
    const Triple t = near ? near_smallest(random) : Triple{any(), any(), any()};
    const F32 a = flush_subnormal(t.a), b = flush_subnormal(t.b), c = flush_subnormal(t.c);
    const auto agrees = [](F32 flushed, F32 kept) {
      if (is_zero(flushed) && magnitude(kept) <= Format<F32>::kMinNormal)
        return is_negative(flushed) == is_negative(kept);
      return !is_subnormal(flushed) && same_bits(flushed, kept);
    };
    RC_ASSERT(agrees(mul_rn(a, b, true), mul_rn(a, b, false)));
    RC_ASSERT(agrees(fma_rn(a, b, c, true), fma_rn(a, b, c, false)));
    RC_ASSERT(agrees(div_rn(a, b, true), div_rn(a, b, false)));
    RC_ASSERT(same_bits(mul_rn(t.a, t.b, true), mul_rn(a, b, true)));
    RC_ASSERT(same_bits(fma_rn(t.a, t.b, t.c, true), fma_rn(a, b, c, true)));
  });
}
