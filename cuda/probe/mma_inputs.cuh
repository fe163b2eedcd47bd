// Inputs of matrix instructions, made on the GPU from a counter, in seven styles. Operands are
// stored K-major as bits: a [tiles, 64, k], b [tiles, n, k], c [tiles, 64, n] as fp32 (fp16 values
// widened where the accumulator is fp16).
//   0 normal(0,1)                     3 equal magnitudes that cancel
//   1 exponents over +-20 binades     4 raw bit patterns without NaN and Inf
//   2 raw bit patterns                5 large pairs that cancel exactly, small products left over
//                                     6 zeros of both signs, subnormals and the smallest products
#pragma once

#include "cuda/probe/probe.cuh"
#include "model/numerics/tensor_core/dot.hpp"

namespace assay::probe {

using namespace assay::numerics;

inline constexpr int kStyles = 7;

struct Generator {
  std::uint64_t key;
  __device__ std::uint64_t word() { return key = mix(key); }
  __device__ float uniform() { return (static_cast<float>(word() >> 40) + 0.5f) * 0x1p-24f; }
  __device__ float normal() { return sqrtf(-2.0f * logf(uniform())) * cospif(2.0f * uniform()); }
  __device__ int below(int n) {
    return static_cast<int>((word() >> 33) % static_cast<unsigned>(n));
  }
};

template <OperandFormat kFormat>
__device__ std::uint32_t operand_from(float x) {
  const F32 bits{__float_as_uint(x)};
  if constexpr (kFormat == OperandFormat::kF16)
    return narrow<F16>(bits, Rounding::kNearestEven, Overflow::kSaturate).bits;
  if constexpr (kFormat == OperandFormat::kBf16) return cvt_rn_bf16_f32(bits).bits;
  if constexpr (kFormat == OperandFormat::kE4m3) return cvt_rn_satfinite_e4m3(bits).bits;
  if constexpr (kFormat == OperandFormat::kE5m2) return cvt_rn_satfinite_e5m2(bits).bits;
  return bits.bits;
}

template <OperandFormat kFormat>
__device__ std::uint32_t sign_of_operand() {
  constexpr FormatShape s = shape_of(kFormat);
  return 1u << (s.exponent_bits + s.fraction_bits + (kFormat == OperandFormat::kTf32 ? 13 : 0));
}

// Element k of row `row` of one operand. Cancelling styles agree between the two elements of a
// pair.
template <OperandFormat kFormat>
__device__ std::uint32_t operand(int style, bool is_a, std::uint64_t tile, int row, int k,
                                 int k_total, std::uint64_t seed) {
  constexpr FormatShape s = shape_of(kFormat);
  constexpr int low = s.fraction_bits + (kFormat == OperandFormat::kTf32 ? 13 : 0);
  const std::uint32_t sign = sign_of_operand<kFormat>();
  const std::uint64_t side = is_a ? 0 : 1;
  const std::uint64_t row_key =
      mix(seed ^ mix(tile * 2 + side) ^ mix(static_cast<std::uint64_t>(row) + 77));
  Generator own{mix(row_key + static_cast<std::uint64_t>(k))};
  Generator pair{mix(row_key + 0x100000 + static_cast<std::uint64_t>(k / 2))};
  Generator whole{mix(seed ^ mix(tile * 2 + side + 5))};
  switch (style) {
    case 0:
      return operand_from<kFormat>(own.normal());
    case 1:
      return operand_from<kFormat>(own.normal() * exp2f(40.0f * own.uniform() - 20.0f));
    case 2:
    case 4: {
      std::uint32_t bits = static_cast<std::uint32_t>(own.word() >> 32) & (2 * sign - 1);
      while (style == 4 && decode(kFormat, bits).number_class != NumberClass::kFinite)
        bits = static_cast<std::uint32_t>(own.word() >> 32) & (2 * sign - 1);
      return bits;
    }
    case 3: {
      const std::uint32_t magnitude = operand_from<kFormat>(fabsf(whole.normal()) + 0.25f);
      return magnitude | ((own.word() & 1) ? sign : 0u);
    }
    case 5: {
      if (k / 2 % 4 == 3) return operand_from<kFormat>(own.normal() * exp2f(-2.0f - own.below(9)));
      const std::uint32_t bits = operand_from<kFormat>(pair.normal() * exp2f(pair.below(5)));
      return is_a && k % 2 == 1 ? bits ^ sign : bits;
    }
    default: {
      const std::uint32_t random = static_cast<std::uint32_t>(own.word() >> 32);
      const std::uint32_t random_sign = random & 1 ? sign : 0u;
      // Every fourth row of a is all zeros whose products with b's are all -0 (or all +0).
      if (row % 4 == 0 && is_a) return row % 8 == 0 ? sign : 0u;
      if (row % 4 == 0) return operand_from<kFormat>(fabsf(own.normal()));
      // The next one has products just above and below the last bit kept under e_zero.
      if (row % 4 == 1) {
        const int first = s.bias > 33 ? s.bias - 33 : s.bias > 12 ? s.bias - 12 : 0;
        const int count = s.bias > 33 ? 11 : 6;
        const auto field =
            static_cast<std::uint32_t>(is_a ? own.below(2) : first + own.below(count));
        return (random >> 3 & ((1u << low) - 1)) | field << low | random_sign;
      }
      if (random % 5 == 0) return random_sign;
      const int reach = is_a ? 3 : s.bias + 3 < 36 ? s.bias + 3 : 36;
      const int from = is_a || s.bias < 33 ? 0 : s.bias - 33;
      const std::uint32_t field = static_cast<std::uint32_t>(from + own.below(reach));
      return (random >> 3 & ((1u << low) - 1)) | field << low | random_sign;
    }
  }
}

__device__ inline F32 accumulator_input(int style, std::uint64_t index, std::uint64_t tile,
                                        bool f16, std::uint64_t seed) {
  Generator own{mix(seed ^ mix(index + 0x5000000000ull))};
  Generator whole{mix(seed ^ mix(tile + 0x9000000000ull))};
  F32 c{0};
  if (style < 5 && tile % 3 == 0) return c;
  switch (style) {
    case 0:
      c = F32{__float_as_uint(own.normal())};
      break;
    case 1:
      c = F32{__float_as_uint(own.normal() * exp2f(40.0f * own.uniform() - 20.0f))};
      break;
    case 2:
      c = F32{static_cast<std::uint32_t>(own.word() >> 32)};
      break;
    case 3:
      c = F32{__float_as_uint((own.word() & 1 ? 1.0f : -1.0f) * (fabsf(whole.normal()) + 0.25f))};
      break;
    case 4:
      c = F32{static_cast<std::uint32_t>(own.word() >> 32)};
      if ((c.bits & 0x7F800000u) == 0x7F800000u) c.bits ^= 0x40000000u;
      break;
    case 5:
      c = F32{__float_as_uint(own.normal() * exp2f(-2.0f - own.below(12)))};
      break;
    default: {
      const std::uint64_t random = own.word();
      c = F32{static_cast<std::uint32_t>(random >> 63) << 31};
      if (random >> 60 & 3) break;  // three quarters are zeros of either sign
      if (f16) return widen(F16{static_cast<std::uint16_t>((c.bits >> 16) | (random & 0x3FF))});
      c.bits |= static_cast<std::uint32_t>(random) & 0x7FFFFFu;
    }
  }
  return f16 ? widen(cvt_rn_f16_f32(c)) : c;
}

template <OperandFormat kFormat, class T>
__global__ void make_operands(T* out, int style, bool is_a, int rows, int k, std::uint64_t count,
                              std::uint64_t seed) {
  const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    const int element = static_cast<int>(i % k);
    const int row = static_cast<int>(i / k % rows);
    out[i] = static_cast<T>(operand<kFormat>(style, is_a, i / k / rows, row, element, k, seed));
  }
}

__global__ void make_accumulators(F32* out, int style, int per_tile, bool f16, std::uint64_t count,
                                  std::uint64_t seed) {
  const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += stride)
    out[i] = accumulator_input(style, i, i / per_tile, f16, seed);
}

}  // namespace assay::probe
