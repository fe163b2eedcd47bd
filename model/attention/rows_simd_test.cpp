// The vector loops against the scalar functions: random bits, and numbers near each other.
#include "model/attention/rows_simd.hpp"

#include <random>
#include <vector>

#include "model/core/testing.hpp"
#include "model/numerics/add.hpp"
#include "model/numerics/special/mufu.hpp"

namespace {

using namespace assay;
using namespace assay::attention;
using numerics::NanRule;

F32 bits_like_scores(std::mt19937& random) {
  switch (random() % 8) {
    case 0:
      return F32{static_cast<std::uint32_t>(random())};  // anything
    case 1:
      return F32{0xFF7FFFFFu};
    case 2:
      return F32{0xFF800000u};
    case 3:
      return F32{static_cast<std::uint32_t>(random()) & 0x807FFFFFu};  // subnormal
    default: {
      // -64 to 64 with all significands.
      const std::uint32_t exponent = 127 - 20 + random() % 27;
      return F32{(static_cast<std::uint32_t>(random()) & 0x807FFFFFu) | exponent << 23};
    }
  }
}

F32 scalar_argument(ArgumentForm form, F32 s, F32 factor, F32 addend, bool flush) {
  switch (form) {
    case ArgumentForm::kRn:
      return numerics::fma_rn(s, factor, addend, flush);
    case ArgumentForm::kRz:
      return numerics::fma_rz(s, factor, addend, flush);
    case ArgumentForm::kSubtractMultiply:
      return numerics::mul_rn(numerics::add_rn(s, addend, flush), factor, flush);
  }
  return F32{0};
}

}  // namespace

TEST_CASE("vector maxima have the bits of max_of", "[ATT-5.8]") {
  std::mt19937 random(1);
  for (int round = 0; round < 20000; ++round) {
    std::vector<F32> row(1 + random() % 40);
    const bool mostly_nan = random() % 4 == 0;
    for (F32& x : row) {
      x = bits_like_scores(random);
      if (mostly_nan && random() % 8 != 0)
        x.bits = 0x7FC00001u | (static_cast<std::uint32_t>(random()) & 0x80000000u);
    }
    for (const NanRule rule : {NanRule::kDrop, NanRule::kPropagate}) {
      F32 expected = row[0];
      for (const F32 x : row) expected = numerics::max_of(expected, x, rule);
      const F32 got = row_maximum(row, rule);
      if (got.bits != expected.bits) {
        CAPTURE(got.bits, expected.bits, row.size());
        FAIL("maximum");
      }
    }
  }
}

TEST_CASE("vector arguments give the exponential the bits of the scalar ones", "[ATT-5.8]") {
  std::mt19937 random(2);
  constexpr ArgumentForm kForms[] = {ArgumentForm::kRn, ArgumentForm::kRz,
                                     ArgumentForm::kSubtractMultiply};
  for (int round = 0; round < 20000; ++round) {
    const ArgumentForm form = kForms[round % 3];
    const bool flush = round / 3 % 2 != 0;
    std::vector<F32> row(1 + random() % 70), out(row.size());
    for (F32& x : row) x = bits_like_scores(random);
    const F32 factor{(static_cast<std::uint32_t>(random()) & 0x7FFFFFu) |
                     (127 - 6 + static_cast<std::uint32_t>(random() % 8)) << 23};
    const F32 addend = bits_like_scores(random);
    // A score whose product nearly cancels the addend: cutting and rounding differ there.
    if (random() % 2 == 0) row[0] = numerics::div_rn(F32{addend.bits ^ 0x80000000u}, factor, false);
    exponent_arguments(form, row, factor, addend, flush, out);
    for (std::size_t i = 0; i < row.size(); ++i) {
      const F32 expected =
          numerics::ex2_approx_ftz(scalar_argument(form, row[i], factor, addend, flush));
      const F32 got = numerics::ex2_approx_ftz(out[i]);
      if (got.bits != expected.bits) {
        CAPTURE(static_cast<int>(form), flush, row[i].bits, factor.bits, addend.bits, got.bits,
                expected.bits);
        FAIL("argument");
      }
    }
  }
}

TEST_CASE("cutting and rounding are two functions", "[ATT-5.8]") {
  // Without this, the forms above could be one and the same.
  std::vector<F32> row, rn(64), rz(64);
  for (std::uint32_t i = 0; i < 64; ++i) row.push_back(F32{0x3F800000u + 12345 * i});
  const F32 third{0x3EAAAAABu};
  const F32 addend{0x41200000u};
  exponent_arguments(ArgumentForm::kRn, row, third, addend, false, rn);
  exponent_arguments(ArgumentForm::kRz, row, third, addend, false, rz);
  int different = 0;
  for (std::size_t i = 0; i < row.size(); ++i) {
    different += rn[i].bits != rz[i].bits;
    REQUIRE(rn[i].bits == numerics::fma_rn(row[i], third, addend, false).bits);
    REQUIRE(rz[i].bits == numerics::fma_rz(row[i], third, addend, false).bits);
  }
  REQUIRE(different > 20);
}
