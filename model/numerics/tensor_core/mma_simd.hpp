// The fast route of mma(): T-FDPA on the machine's vectors, one result per lane, with the bits of
// fdpa.hpp. Internal to tensor_core. The idea, per block of L products:
//   * A product of two narrow operands is exact in fp32, and so is a power-of-two multiple of it,
//   so
//     "shift to F bits below the alignment and cut the magnitude" is one multiplication by
//     2^(F - alignment) and one conversion to an integer, which truncates toward zero.
//   * The alignment is the largest sum of two exponents: integer adds and maxima.
//   * Where fp32 could overflow or lose bits (alignment outside [kAlignmentMin, kAlignmentMax]) or
//   a
//     NaN or Inf is near, the lane is handed to fdpa(). Specials carry an exponent so large that
//     the same range test finds them.
// Decides nothing: bits are those of the scalar path, which tests hold it to (SPEC NUM-4.11).
#pragma once

#include <cstdint>
#include <string_view>

#include "model/core/bits.hpp"
#include "model/numerics/tensor_core/dot.hpp"

namespace assay::numerics::simd {

// Below 2^126 in all: a product is less than 4 * 2^alignment, so no fp32 product overflows.
inline constexpr int kAlignmentMax = 124;
// The least bit kept is 2^(alignment - F) >= 2^-125, a normal number; products that fp32 rounds
// because they are subnormal lie far below it and are cut to zero either way.
inline constexpr int kAlignmentMin = -100;

// Exponents of operands that are not ordinary: the sum of any two with a special one is above
// kAlignmentMax, and with a zero, but no special, below kAlignmentMin.
inline constexpr std::int32_t kSpecialExponent = 16000;
inline constexpr std::int32_t kZeroExponent = -5000;

// An operand prepared for the vectors.
struct Prepared {
  float value = 0;
  std::int32_t exponent = kZeroExponent;
};

// One panel: up to lanes() columns of B. Arrays are padded with zeros to whole vectors.
struct Panel {
  const Arithmetic* arithmetic = nullptr;
  int m = 0;
  int k = 0;                       // a multiple of arithmetic->k
  const float* a_value = nullptr;  // [m, k]
  const std::int32_t* a_exponent = nullptr;
  const float* b_value = nullptr;  // [k, lanes]
  const std::int32_t* b_exponent = nullptr;
  std::uint32_t* d = nullptr;  // [m, lanes]: c on entry, the result on return
  // The result of one block of one lane by the scalar path.
  F32 (*exact_block)(const void* context, int row, int lane, int first_k, F32 c) = nullptr;
  const void* context = nullptr;
};

bool supports(const Arithmetic& arithmetic);
int lanes();
void run_panel(const Panel& panel);
std::string_view target_name();

}  // namespace assay::numerics::simd
