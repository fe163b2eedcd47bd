// Sums and products against definitions in wide integers; all bf16 pairs.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "model/core/testing.hpp"
#include "model/numerics/bulk.hpp"
#include "model/numerics/numerics.hpp"
#include "model/numerics/reference_add.hpp"

using namespace assay;
using namespace assay::numerics;
using assay::testing::prop;

namespace {

struct Random {  // xorshift64*: fixed, so that a failure repeats
  std::uint64_t state = 0x9E3779B97F4A7C15u;
  std::uint64_t next() {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 0x2545F4914F6CDD1Du;
  }
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>((next() >> 32) % n); }
};

// f32 operands that meet: exponents within 30 of each other, fractions that are random, all zeros,
// all ones or a single bit, now and then subnormal, Inf or NaN.
struct Adversary {
  Random random;

  std::uint32_t fraction() {
    switch (random.below(6)) {
      case 0:
        return 0;
      case 1:
        return 0x7FFFFFu;
      case 2:
        return 1u << random.below(23);
      case 3:
        return 0x7FFFFFu ^ (1u << random.below(23));
      default:
        return static_cast<std::uint32_t>(random.next() >> 41);
    }
  }
  F32 near(std::uint32_t field) {
    const int shifted = static_cast<int>(field) + static_cast<int>(random.below(61)) - 30;
    return with_field(static_cast<std::uint32_t>(std::clamp(shifted, 0, 255)));
  }
  F32 with_field(std::uint32_t field) {
    const std::uint32_t sign = random.below(2) << 31;
    return F32{sign | (field << 23) | fraction()};
  }
  F32 any() {
    return random.below(8) == 0 ? with_field(random.below(3)) : with_field(random.below(256));
  }
};

bool is_number(std::uint32_t code) { return (code & 0x7FFF) <= 0x7F80; }

// The sum of two bf16 magnitudes |a| >= |b|, the second added or taken away, in 64-bit integers:
// exact if their exponents differ by at most 40, and beyond that b is less than a quarter of a's
// last bit, for which one unit at distance 40 stands as well as any other value.
std::uint32_t sum_of_magnitudes(std::uint32_t a, std::uint32_t b, bool subtract) {
  const auto significand = [](std::uint32_t m) -> std::int64_t {
    return m < 0x80 ? m : (m & 0x7F) | 0x80;
  };
  const auto field = [](std::uint32_t m) { return m < 0x80 ? 1 : static_cast<int>(m >> 7); };
  int unit = field(b);
  std::int64_t small = significand(b);
  if (field(a) - unit > 40) {
    unit = field(a) - 40;
    small = small != 0;
  }
  const std::int64_t large = significand(a) << (field(a) - unit);
  const auto exact = static_cast<std::uint64_t>(subtract ? large - small : large + small);
  if (exact == 0) return 0;
  const int excess = static_cast<int>(std::bit_width(exact)) - 8;
  if (excess <= 0) {
    const int up = std::min(-excess, unit - 1);
    return static_cast<std::uint32_t>(((unit - up - 1) << 7) + static_cast<int>(exact << up));
  }
  const std::uint64_t kept = exact >> excess;
  const std::uint64_t twice_lost = (exact - (kept << excess)) * 2;
  const std::uint64_t step = std::uint64_t{1} << excess;
  const bool away = twice_lost > step || (twice_lost == step && kept % 2 == 1);
  const auto code =
      static_cast<std::uint32_t>(((unit + excess - 1) << 7) + static_cast<int>(kept) + away);
  return std::min(code, 0x7F80u);
}

}  // namespace

TEST_CASE("every sum of two bf16 numbers is the nearest bf16 to the exact sum", "[NUM-3.4]") {
  std::vector<Bf16> a, b, sums;
  std::uint64_t wrong = 0, pairs = 0;
  std::uint32_t first_a = 0, first_b = 0;
  for (std::uint32_t large = 0; large < 0x7F80; ++large) {
    b.clear();
    for (std::uint32_t small = 0; small <= large; ++small) {
      b.push_back(Bf16{static_cast<std::uint16_t>(small)});
      b.push_back(Bf16{static_cast<std::uint16_t>(small | 0x8000)});
    }
    a.assign(b.size(), Bf16{static_cast<std::uint16_t>(large)});
    sums.resize(b.size());
    add_rows(a, b, sums);
    for (std::size_t i = 0; i < b.size(); ++i) {
      const std::uint32_t small = b[i].bits & 0x7FFF;
      const std::uint32_t expected = sum_of_magnitudes(large, small, (b[i].bits & 0x8000) != 0);
      if (sums[i].bits != expected && wrong++ == 0) {
        first_a = large;
        first_b = b[i].bits;
      }
    }
    pairs += b.size();
  }
  CAPTURE(first_a, first_b);
  CHECK(wrong == 0);
  CHECK(pairs == std::uint64_t{0x7F80} * 0x7F81);  // 2 * (1 + ... + 0x7F80)
}

TEST_CASE("bf16 sums do not depend on the order of the operands", "[NUM-3.4]") {
  std::vector<Bf16> all(1u << 16), a(all.size()), sums(all.size()), swapped(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i].bits = static_cast<std::uint16_t>(i);
  std::uint64_t wrong = 0;
  for (std::size_t code = 0; code < all.size(); ++code) {
    const std::size_t n = code + 1;  // each unordered pair once
    std::fill_n(a.begin(), n, all[code]);
    add_rows(std::span(a).first(n), std::span(all).first(n), std::span(sums).first(n));
    add_rows(std::span(all).first(n), std::span(a).first(n), std::span(swapped).first(n));
    std::uint32_t differ = 0;
    for (std::size_t i = 0; i < n; ++i) differ += sums[i].bits != swapped[i].bits;
    wrong += differ;
  }
  CHECK(wrong == 0);
}

TEST_CASE("bf16 sums mirror with the signs, and NaN comes from NaN or opposite Infs",
          "[NUM-3.4][NUM-3.3]") {
  std::vector<Bf16> all(1u << 16), mirrored(all.size()), a(all.size()), minus_a(all.size());
  std::vector<Bf16> sums(all.size()), negated(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].bits = static_cast<std::uint16_t>(i);
    mirrored[i].bits = static_cast<std::uint16_t>(i ^ 0x8000);
  }
  std::uint64_t wrong_mirror = 0, wrong_nan = 0;
  for (std::uint32_t code = 0; code < 0x8000; ++code) {
    std::fill(a.begin(), a.end(), all[code]);
    std::fill(minus_a.begin(), minus_a.end(), mirrored[code]);
    add_rows(a, all, sums);
    add_rows(minus_a, mirrored, negated);
    // The sum of a and -a is +0, or NaN if they are Infs: neither has a mirror image.
    const std::uint32_t opposite = code | 0x8000;
    const std::uint32_t cancelled = code == 0x7F80 || !is_number(code) ? 0x7FFF : 0;
    wrong_mirror += sums[opposite].bits != cancelled || negated[opposite].bits != cancelled;
    sums[opposite].bits = negated[opposite].bits = 0x7FFF;
    std::uint32_t mirror = 0, nan = 0;
    for (std::uint32_t i = 0; i < all.size(); ++i) {
      const bool is_canonical = sums[i].bits == 0x7FFF;
      mirror += negated[i].bits != (is_canonical ? 0x7FFF : sums[i].bits ^ 0x8000);
      const bool want_nan = code > 0x7F80 || (i & 0x7FFF) > 0x7F80 || i == opposite;
      nan += is_canonical != want_nan || (!want_nan && !is_number(sums[i].bits));
    }
    wrong_mirror += mirror;
    wrong_nan += nan;
  }
  CHECK(wrong_mirror == 0);
  CHECK(wrong_nan == 0);
}

TEST_CASE("the fast bf16 reference of these tests agrees with the definition", "[NUM-3.4]") {
  Random random;
  std::uint64_t wrong = 0;
  for (int i = 0; i < 300'000; ++i) {
    std::uint32_t a = random.below(0x7F80);
    std::uint32_t b =
        i % 2 ? random.below(0x7F80) : random.below(a + 1) % 0x400 + (a > 0x400 ? a - 0x400 : 0);
    if (a < b) std::swap(a, b);
    const std::uint32_t sign = random.below(2) << 15;
    const Bf16 expected = reference::add(Bf16{static_cast<std::uint16_t>(a)},
                                         Bf16{static_cast<std::uint16_t>(b | sign)});
    wrong += sum_of_magnitudes(a, b, sign != 0) != expected.bits;
  }
  CHECK(wrong == 0);
}

TEST_CASE("scalar bf16 and f16 sums agree with the definition", "[NUM-3.4]") {
  Random random;
  std::uint64_t wrong = 0;
  for (int i = 0; i < 1'000'000; ++i) {
    const auto a = static_cast<std::uint16_t>(random.next() >> 48);
    auto b = static_cast<std::uint16_t>(random.next() >> 48);
    if (i % 2)
      b = static_cast<std::uint16_t>((a ^ (random.below(2) << 15)) + random.below(0x4000) - 0x2000);
    wrong += !same_bits(add_rn(Bf16{a}, Bf16{b}), reference::add(Bf16{a}, Bf16{b}));
    wrong += !same_bits(add_rn(F16{a}, F16{b}), reference::add(F16{a}, F16{b}));
  }
  CHECK(wrong == 0);
}

TEST_CASE("f32 sums agree with the definition, with and without flushing",
          "[NUM-3.1][NUM-3.2][NUM-3.3]") {
  Adversary adversary;
  std::uint64_t wrong = 0, wrong_exact = 0, subnormal_results = 0, nans = 0;
  F32 first_a{0}, first_b{0};
  for (int i = 0; i < 600'000; ++i) {
    const F32 a = adversary.any();
    F32 b = adversary.random.below(4) == 0 ? adversary.any() : adversary.near(magnitude(a) >> 23);
    if (i % 16 == 0) b = F32{(a.bits ^ 0x80000000u) + adversary.random.below(5) - 2};
    const F32 kept = reference::add(a, b), flushed = reference::add_ftz(a, b);
    const bool ok = same_bits(add_rn(a, b, false), kept) && same_bits(add_rn(a, b, true), flushed);
    if (!ok && wrong++ == 0) {
      first_a = a;
      first_b = b;
    }
    wrong_exact += !same_bits(exact_add(a, b, Rounding::kNearestEven, false), kept);
    wrong_exact += !same_bits(exact_add(a, b, Rounding::kNearestEven, true), flushed);
    subnormal_results += is_subnormal(kept);
    nans += is_nan(kept);
  }
  CAPTURE(first_a.bits, first_b.bits);
  CHECK(wrong == 0);
  CHECK(wrong_exact == 0);
  CHECK(subnormal_results > 1000);  // else the adversary has gone tame
  CHECK(nans > 1000);
}

TEST_CASE("adds keep or flush subnormals and make one NaN", "[NUM-3.2][NUM-3.3]") {
  const F32 tiny{0x00000001}, minus_tiny{0x80000001}, small{0x00800000}, minus_zero{0x80000000};
  CHECK(add_rn(tiny, tiny, false).bits == 0x00000002u);
  CHECK(add_rn(tiny, tiny, true).bits == 0);
  CHECK(add_rn(minus_tiny, minus_tiny, true).bits == 0x80000000u);
  CHECK(add_rn(minus_tiny, minus_zero, true).bits == 0x80000000u);
  CHECK(add_rn(minus_tiny, tiny, true).bits == 0);
  CHECK(add_rn(F32{0x80C00000}, small, false).bits == 0x80400000u);
  CHECK(add_rn(F32{0x80C00000}, small, true).bits == 0x80000000u);  // a subnormal result
  CHECK(add_rn(F32{0x7F800000}, F32{0xFF800000}, false).bits == 0x7FFFFFFFu);
  CHECK(add_rn(F32{0xFFC12345}, small, false).bits == 0x7FFFFFFFu);
  CHECK(add_rn(F32{0x7F800001}, small, true).bits == 0x7FFFFFFFu);
  CHECK(add_rn(Bf16{0x0001}, Bf16{0x0001}).bits == 0x0002);  // native bf16 keeps subnormals
  CHECK(add_rn(Bf16{0xFF81}, Bf16{0x0001}).bits == 0x7FFF);
  CHECK(add_rn(F16{0x7C00}, F16{0xFC00}).bits == 0x7FFF);
}

TEST_CASE("products, quotients and fused sums agree with the host's IEEE operations in integers",
          "[NUM-3.5][NUM-3.6][NUM-3.10]") {
  Adversary adversary;
  std::uint64_t wrong = 0;
  F32 first[3] = {};
  for (int i = 0; i < 4'000'000; ++i) {
    const F32 a = adversary.any();
    const F32 b = adversary.any();
    const int field =
        static_cast<int>(magnitude(a) >> 23) + static_cast<int>(magnitude(b) >> 23) - 127;
    const F32 c = i % 4 == 0
                      ? adversary.any()
                      : adversary.near(static_cast<std::uint32_t>(std::clamp(field, 0, 255)));
    const bool flush = i % 3 == 0;
    const bool ok =
        same_bits(mul_rn(a, b, flush), exact_mul(a, b, Rounding::kNearestEven, flush)) &&
        same_bits(div_rn(a, b, flush), exact_div(a, b, Rounding::kNearestEven, flush)) &&
        same_bits(fma_rn(a, b, c, flush), exact_fma(a, b, c, Rounding::kNearestEven, flush));
    if (!ok && wrong++ == 0) {
      first[0] = a;
      first[1] = b;
      first[2] = c;
    }
  }
  CAPTURE(first[0].bits, first[1].bits, first[2].bits);
  CHECK(wrong == 0);
}

TEST_CASE("directed roundings bracket the exact fused sum", "[NUM-3.6]") {
  prop("down <= nearest <= up, and toward zero is the one of smaller magnitude", [] {
    Adversary adversary;
    adversary.random.state = *rc::gen::nonZero<std::uint64_t>();
    const F32 a = adversary.any(), b = adversary.any(), c = adversary.near(magnitude(a) >> 23);
    const F32 down = exact_fma(a, b, c, Rounding::kDown, false);
    const F32 up = exact_fma(a, b, c, Rounding::kUp, false);
    const F32 nearest = exact_fma(a, b, c, Rounding::kNearestEven, false);
    const F32 cut = fma_rz(a, b, c, false);
    if (is_nan(nearest)) {
      RC_ASSERT(is_nan(down) && is_nan(up) && is_nan(cut));
      return;
    }
    RC_ASSERT(to_float(down) <= to_float(nearest) && to_float(nearest) <= to_float(up));
    RC_ASSERT(same_bits(nearest, down) || same_bits(nearest, up));
    RC_ASSERT(magnitude(cut) == std::min(magnitude(down), magnitude(up)));
    // At most one step apart: the next magnitude is the next code.
    const auto gap =
        static_cast<std::int64_t>(magnitude(up)) - static_cast<std::int64_t>(magnitude(down));
    RC_ASSERT(gap >= -1 && gap <= 1);
  });
}

TEST_CASE("constant expressions use the integer arithmetic and agree", "[NUM-3.1][NUM-3.5]") {
  constexpr F32 third{0x3EAAAAAB}, three{0x40400000};
  static_assert(add_rn(third, three, false).bits == 0x40555555);
  static_assert(mul_rn(third, three, false).bits == 0x3F800000);
  static_assert(fma_rn(third, three, F32{0xBF800000}, false).bits == 0x33000000);
  volatile std::uint32_t x = 0x3EAAAAAB;
  CHECK(add_rn(F32{x}, three, false).bits == 0x40555555u);
  CHECK(fma_rn(F32{x}, three, F32{0xBF800000}, false).bits == 0x33000000u);
}

TEST_CASE("the build does not fuse products into sums", "[NUM-0.1]") {
  // (1 + 2^-12)^2 - (1 + 2^-11) is 2^-24 exactly, which the rounding of the product removes.
  volatile float x = 1.0f + 0x1p-12f, c = -(1.0f + 0x1p-11f);
  const float a = x, b = c;
  CHECK(a * a + b == 0.0f);
  CHECK(to_float(fma_rn(from_float(a), from_float(a), from_float(b), false)) == 0x1p-24f);
}

TEST_CASE("the host's floating-point unit is in IEEE mode", "[NUM-0.2]") {
  CHECK(host_arithmetic_is_ieee());
}
