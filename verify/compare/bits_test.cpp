// Distances over all bf16 neighbours, and every spelling of a value and of a difference.
#include "verify/compare/bits.hpp"

#include <cmath>

#include "model/core/testing.hpp"

namespace assay::verify {
namespace {

constexpr ElementFormat kBf16 = ElementFormat::kBf16;

TEST_CASE("a value is shown as bits, hex float and decimal", "[VER-2.2]") {
  CHECK(show_value(kBf16, 0x3F81) == "0x3f81 (0x1.02p+0, 1.0078125)");
  CHECK(show_value(kBf16, 0x8000) == "0x8000 (-0x0p+0, -0)");
  CHECK(show_value(kBf16, 0x7FFF) == "0x7fff (NaN)");
  CHECK(show_value(kBf16, 0xFF80) == "0xff80 (-Inf)");
  CHECK(show_value(ElementFormat::kF16, 0x0001) == "0x0001 (0x1p-24, 5.96046448e-08)");
  CHECK(show_value(ElementFormat::kE4m3, 0x7E) == "0x7e (0x1.cp+8, 448)");
  CHECK(show_value(ElementFormat::kF32, 0x3DCCCCCD) == "0x3dcccccd (0x1.99999ap-4, 0.100000001)");
  CHECK(show_value(ElementFormat::kInt32, 0xFFFFFFFF) == "-1");
  CHECK(show_value(ElementFormat::kBytes, 0x0A) == "0x0a");
}

TEST_CASE("one step along the bf16 numbers is one ulp, through zero and between binades",
          "[VER-2.2]") {
  // Every pair of neighbours: codes ascend with magnitude on either side of zero.
  for (std::uint32_t code = 0; code < 0x7F80; ++code) {
    if (ulp_distance(kBf16, code + 1, code) != 1) FAIL(code);
    if (ulp_distance(kBf16, 0x8000 | (code + 1), 0x8000 | code) != -1) FAIL(code);
  }
  CHECK(ulp_distance(kBf16, 0x0001, 0x8001) == 2);
  CHECK(ulp_distance(kBf16, 0x8000, 0x0000) == 0);
  CHECK(ulp_distance(ElementFormat::kF32, 0x7F7FFFFF, 0xFF7FFFFF) == 2 * std::int64_t{0x7F7FFFFF});
}

TEST_CASE("a distance that is no number of ulps is told in words", "[VER-2.2]") {
  CHECK(show_distance(kBf16, 0x3F81, 0x3F80) == "+1 ulp bf16");
  CHECK(show_distance(kBf16, 0x8000, 0x0000) == "-0 for +0");
  CHECK(show_distance(kBf16, 0x0000, 0x8000) == "+0 for -0");
  CHECK(show_distance(kBf16, 0x7FFF, 0x3F80) == "NaN for a number");
  CHECK(show_distance(kBf16, 0x7FFF, 0x7F80) == "NaN for Inf");
  CHECK(show_distance(kBf16, 0x3F80, 0x7FFF) == "a number for NaN");
  CHECK(show_distance(kBf16, 0x7FC0, 0x7FFF) == "NaN with other bits");
  CHECK(show_distance(ElementFormat::kInt32, 3, 5) == "off by -2");
}

TEST_CASE("the histogram has a bin for everything and loses nothing", "[VER-2.2]") {
  UlpHistogram histogram;
  histogram.add_equal(10);
  const std::pair<std::uint32_t, UlpHistogram::Bin> cases[] = {
      {0x3F80, UlpHistogram::kEqual}, {0x3F81, UlpHistogram::kOne},  {0x3F7E, UlpHistogram::kTwo},
      {0x3F88, UlpHistogram::kFew},   {0x3F89, UlpHistogram::kMore}, {0x7FFF, UlpHistogram::kNan},
      {0x7F80, UlpHistogram::kNan},   {0xBF80, UlpHistogram::kMore}};
  for (const auto& [got, bin] : cases) {
    UlpHistogram one;
    one.add(kBf16, got, 0x3F80);
    CHECK(one.count[bin] == 1);
    histogram += one;
  }
  histogram.add(kBf16, 0x8000, 0);
  CHECK(histogram.count[UlpHistogram::kZeroSign] == 1);
  CHECK(histogram.total() == 19);
  CHECK(histogram.print() == "0:11 1:1 2:1 3-8:1 >8:2 sign:1 nan/inf:2");
}

}  // namespace
}  // namespace assay::verify
