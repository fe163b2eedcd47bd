// A quantiser recipe as data: which bits a block of numbers becomes, as one implementation computes
// them. "MXFP4" names a format; a recipe names bits (SPEC NUM-6.1). The table is recipes.cpp, the
// arithmetic of each rule is block_scale.cpp.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "model/core/evidence.hpp"

namespace assay::numerics::quantize {

enum class Element : std::uint8_t { kE4m3, kE5m2, kE2m1 };
enum class ScaleFormat : std::uint8_t { kF32, kUe8m0, kE4m3 };

// How the largest magnitude of a block is found (SPEC NUM-6.2).
enum class AmaxRule : std::uint8_t {
  kPackedPairs,   // maxima of even and odd columns in the source's 16-bit type, then even > odd
  kFromZero,      // maximum in f32 starting at +0, NaN dropped
  kFromFloor,     // maximum in f32 starting at 1e-4, NaN dropped
  kPropagateNan,  // maximum in f32, any NaN or Inf makes it NaN
};

// The arithmetic from amax to the stored scale and to the multiplier of the elements; one clause
// each (SPEC NUM-6.4 to NUM-6.9).
enum class ScaleRule : std::uint8_t {
  kDivide448,           // scale amax/448 in f32, multiplier 448/amax
  kCeilPowerOfTwo448,   // power of two at or above amax/448, exact reciprocal
  kRcpUe8m0Up,          // amax * rcp(448) rounded up to ue8m0, multiplier rcp(scale)
  kRcpUe8m0UpExp2,      // amax * rcp(6) rounded up to ue8m0, multiplier 2^-e
  kThreeRcpE4m3,        // G * (amax * rcp(6)) in e4m3, multiplier rcp(scale * rcp(G))
  kGlobalTimesRcpE4m3,  // same scale, multiplier G * rcp(scale)
  kIeeeE4m3,            // amax * (G * (1/6)) in e4m3, multiplier 1 / (scale * (1 / G))
  kIeeeE4m3Clamped,     // the same, multiplier at most the largest f32
  kUe8m0Up,             // amax * (1/max) rounded up to ue8m0, multiplier 2^-e by bits
  kFloorPowerOfTwo,     // OCP: floor(log2 amax) - emax, exact reciprocal
};

// Which value is compared with zero to give a zero multiplier to an all-zero block.
enum class ZeroTest : std::uint8_t { kNone, kAmax, kUnroundedScale, kStoredScale };

struct Recipe {
  std::string_view name;
  Element element = Element::kE4m3;
  ScaleFormat scale_format = ScaleFormat::kUe8m0;
  std::uint32_t block = 32;  // consecutive columns that share a scale
  AmaxRule amax = AmaxRule::kFromZero;
  ScaleRule scale = ScaleRule::kUe8m0Up;
  ZeroTest zero_test = ZeroTest::kNone;
  bool flush = false;                 // f32 arithmetic of the kernel's build is .ftz
  bool sixteen_bit_only = true;       // the kernel takes f16 and bf16 but no f32
  Grade grade = Grade::kBitsClaimed;  // how much may be claimed
  std::string_view source;

  constexpr bool takes_global_scale() const { return scale_format == ScaleFormat::kE4m3; }
};

// All recipes, in the order in which they are listed to users.
std::span<const Recipe> recipes();
// Null if there is none of that name.
const Recipe* find_recipe(std::string_view name);

}  // namespace assay::numerics::quantize
