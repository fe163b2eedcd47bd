// Values as bits: spelling them three ways, their distance in units of the last place, and the
// histogram of such distances. Decides SPEC VER-2.2. Nothing here is a tolerance: two values agree
// when their bits do.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "model/moe/combine.hpp"

namespace assay::verify {

// kE2m1 elements share a byte, the first in the low nibble. kUe8m0 is a power of two without sign:
// its codes are counted like numbers, not in ulp.
enum class ElementFormat : std::uint8_t {
  kBytes,
  kInt32,
  kBf16,
  kF16,
  kF32,
  kE4m3,
  kE5m2,
  kE2m1,
  kUe8m0,
};
std::string_view format_name(ElementFormat format);  // "bytes", "int32", "bf16", ...
std::int64_t format_bytes(ElementFormat format);
ElementFormat format_of(moe::Dtype dtype);

// The element at `index` of packed elements. No alignment needed.
std::uint32_t load_element(ElementFormat format, const std::byte* elements, std::int64_t index);

bool is_nan(ElementFormat format, std::uint32_t bits);

// "0x3f81 (0x1.02p+0, 1.0078125)"; NaN and Inf by name; int32 as a number.
std::string show_value(ElementFormat format, std::uint32_t bits);

// Steps from `expected` to `got` along the representable numbers, -0 and +0 being one number: 1 is
// the next larger. Saturates at the range of int64. CONTRACT: both are numbers, format is floating.
std::int64_t ulp_distance(ElementFormat format, std::uint32_t got, std::uint32_t expected);
// "+1 ulp bf16", "-0 for +0", "NaN for a number", ...
std::string show_distance(ElementFormat format, std::uint32_t got, std::uint32_t expected);

struct UlpHistogram {
  // Equal bits; distances 1, 2, 3 to 8, more; only the sign of zero; NaN or Inf on one side or NaNs
  // with different bits.
  enum Bin { kEqual, kOne, kTwo, kFew, kMore, kZeroSign, kNan, kNumBins };
  std::array<std::int64_t, kNumBins> count{};

  void add(ElementFormat format, std::uint32_t got, std::uint32_t expected);
  void add_equal(std::int64_t elements) { count[kEqual] += elements; }
  std::int64_t total() const;
  std::int64_t different() const { return total() - count[kEqual]; }
  UlpHistogram& operator+=(const UlpHistogram& other);
  // "0:917501 1:3 2:0 3-8:0 >8:0 sign:0 nan:0"
  std::string print() const;
};

}  // namespace assay::verify
