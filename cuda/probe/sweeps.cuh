// Exhaustive comparisons of single-value instructions with the model, both computed on the GPU: the
// special functions, what the compiler makes of them, conversions, and additions of 16-bit pairs.
#pragma once

#include <functional>

#include "cuda/probe/probe.cuh"
#include "model/numerics/add.hpp"
#include "model/numerics/convert.hpp"
#include "model/numerics/max_min.hpp"
#include "model/numerics/special/fast_math.hpp"
#include "model/numerics/special/half.hpp"
#include "model/numerics/special/polynomial.hpp"

namespace assay::probe {

using namespace assay::numerics;

// --- one input, all 2^32 bit patterns (or all 2^16) ---------------------------------------------

#define ASSAY_PTX_UNARY(function, instruction)                \
  __device__ inline std::uint32_t function(std::uint32_t x) { \
    std::uint32_t y;                                          \
    asm volatile(instruction " %0, %1;" : "=r"(y) : "r"(x));  \
    return y;                                                 \
  }
ASSAY_PTX_UNARY(hw_ex2_ftz, "ex2.approx.ftz.f32")
ASSAY_PTX_UNARY(hw_rcp_ftz, "rcp.approx.ftz.f32")
ASSAY_PTX_UNARY(hw_rsqrt_ftz, "rsqrt.approx.ftz.f32")
ASSAY_PTX_UNARY(hw_lg2_ftz, "lg2.approx.ftz.f32")
ASSAY_PTX_UNARY(hw_ex2, "ex2.approx.f32")
ASSAY_PTX_UNARY(hw_rcp, "rcp.approx.f32")
ASSAY_PTX_UNARY(hw_rsqrt, "rsqrt.approx.f32")
ASSAY_PTX_UNARY(hw_lg2, "lg2.approx.f32")
ASSAY_PTX_UNARY(hw_tanh, "tanh.approx.f32")

__device__ inline float as_float(std::uint32_t x) { return __uint_as_float(x); }
__device__ inline std::uint32_t as_bits(float x) { return __float_as_uint(x); }

// A conversion to a 16-bit register from one f32, and to a pair of bytes from (upper = 1.0, lower).
#define ASSAY_PTX_TO_16(function, instruction)                \
  __device__ inline std::uint32_t function(std::uint32_t x) { \
    std::uint16_t y;                                          \
    asm volatile(instruction " %0, %1;" : "=h"(y) : "r"(x));  \
    return y;                                                 \
  }
#define ASSAY_PTX_TO_BYTES(function, instruction)                                  \
  __device__ inline std::uint32_t function(std::uint32_t x) {                      \
    std::uint16_t y;                                                               \
    asm volatile(instruction " %0, %1, %2;" : "=h"(y) : "r"(0x3F800000u), "r"(x)); \
    return y & 0xFFu;                                                              \
  }
ASSAY_PTX_TO_16(hw_cvt_rn_bf16, "cvt.rn.bf16.f32")
ASSAY_PTX_TO_16(hw_cvt_rz_bf16, "cvt.rz.bf16.f32")
ASSAY_PTX_TO_16(hw_cvt_rn_f16, "cvt.rn.f16.f32")
ASSAY_PTX_TO_16(hw_cvt_rz_f16, "cvt.rz.f16.f32")
ASSAY_PTX_TO_BYTES(hw_cvt_e4m3, "cvt.rn.satfinite.e4m3x2.f32")
ASSAY_PTX_TO_BYTES(hw_cvt_e5m2, "cvt.rn.satfinite.e5m2x2.f32")

// The FlashAttention-4 polynomial as its kernels spell it, on scalars.
__device__ inline std::uint32_t hw_polynomial(std::uint32_t bits) {
  float x = as_float(bits), shifted, whole, fraction, value;
  asm volatile("max.f32 %0, %1, 0fC2FE0000;" : "=f"(x) : "f"(x));
  asm volatile("add.rm.ftz.f32 %0, %1, 0f4B400000;" : "=f"(shifted) : "f"(x));
  asm volatile("sub.rn.ftz.f32 %0, %1, 0f4B400000;" : "=f"(whole) : "f"(shifted));
  asm volatile("sub.rn.ftz.f32 %0, %1, %2;" : "=f"(fraction) : "f"(x), "f"(whole));
  asm volatile("fma.rn.ftz.f32 %0, 0f3D9DF09D, %1, 0f3E6906A4;" : "=f"(value) : "f"(fraction));
  asm volatile("fma.rn.ftz.f32 %0, %0, %1, 0f3F31F519;" : "+f"(value) : "f"(fraction));
  asm volatile("fma.rn.ftz.f32 %0, %0, %1, 0f3F800000;" : "+f"(value) : "f"(fraction));
  return (as_bits(shifted) << 23) + as_bits(value);
}

#define ASSAY_UNARY(type, hardware_call, model_call)                                    \
  struct type {                                                                         \
    static __device__ std::uint32_t hardware(std::uint32_t x) { return hardware_call; } \
    static __device__ std::uint32_t model(std::uint32_t x) { return model_call; }       \
  };
ASSAY_UNARY(Ex2Ftz, hw_ex2_ftz(x), ex2_approx_ftz(F32{x}).bits)
ASSAY_UNARY(RcpFtz, hw_rcp_ftz(x), rcp_approx_ftz(F32{x}).bits)
ASSAY_UNARY(RsqrtFtz, hw_rsqrt_ftz(x), rsqrt_approx_ftz(F32{x}).bits)
ASSAY_UNARY(Lg2Ftz, hw_lg2_ftz(x), lg2_approx_ftz(F32{x}).bits)
ASSAY_UNARY(Ex2, hw_ex2(x), ex2_approx(F32{x}).bits)
ASSAY_UNARY(Rcp, hw_rcp(x), rcp_approx(F32{x}).bits)
ASSAY_UNARY(Rsqrt, hw_rsqrt(x), rsqrt_approx(F32{x}).bits)
ASSAY_UNARY(Lg2, hw_lg2(x), lg2_approx(F32{x}).bits)
ASSAY_UNARY(Exp2f, as_bits(exp2f(as_float(x))), ex2_approx(F32{x}).bits)
ASSAY_UNARY(Expf, as_bits(expf(as_float(x))), expf_default(F32{x}).bits)
ASSAY_UNARY(IntrinsicExpf, as_bits(__expf(as_float(x))), intrinsic_expf(F32{x}, false).bits)
ASSAY_UNARY(IntrinsicLogf, as_bits(__logf(as_float(x))), intrinsic_logf(F32{x}, false).bits)
ASSAY_UNARY(Polynomial, hw_polynomial(x), ex2_polynomial(F32{x}).bits)
ASSAY_UNARY(Tanh, hw_tanh(x), tanh_approx(F32{x}).bits)
ASSAY_UNARY(CvtRnBf16, hw_cvt_rn_bf16(x), cvt_rn_bf16_f32(F32{x}).bits)
ASSAY_UNARY(CvtRzBf16, hw_cvt_rz_bf16(x), cvt_rz_bf16_f32(F32{x}).bits)
ASSAY_UNARY(CvtRnF16, hw_cvt_rn_f16(x), cvt_rn_f16_f32(F32{x}).bits)
ASSAY_UNARY(CvtRzF16, hw_cvt_rz_f16(x), cvt_rz_f16_f32(F32{x}).bits)
ASSAY_UNARY(CvtE4m3, hw_cvt_e4m3(x), cvt_rn_satfinite_e4m3(F32{x}).bits)
ASSAY_UNARY(CvtE5m2, hw_cvt_e5m2(x), cvt_rn_satfinite_e5m2(F32{x}).bits)

__device__ inline std::uint32_t hw_f16_to_f32(std::uint32_t x) {
  float y;
  asm volatile("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(static_cast<std::uint16_t>(x)));
  return as_bits(y);
}
#define ASSAY_PTX_FROM_BYTES(function, instruction)                                             \
  __device__ inline std::uint32_t function(std::uint32_t x) {                                   \
    std::uint32_t y;                                                                            \
    asm volatile(instruction " %0, %1;" : "=r"(y) : "h"(static_cast<std::uint16_t>(x & 0xFF))); \
    return hw_f16_to_f32(y & 0xFFFFu);                                                          \
  }
ASSAY_PTX_FROM_BYTES(hw_e4m3_to_f32, "cvt.rn.f16x2.e4m3x2")
ASSAY_PTX_FROM_BYTES(hw_e5m2_to_f32, "cvt.rn.f16x2.e5m2x2")
ASSAY_UNARY(WidenF16, hw_f16_to_f32(x), widen(F16{static_cast<std::uint16_t>(x)}).bits)
ASSAY_UNARY(WidenE4m3, hw_e4m3_to_f32(x), widen(E4m3{static_cast<std::uint8_t>(x)}).bits)
ASSAY_UNARY(WidenE5m2, hw_e5m2_to_f32(x), widen(E5m2{static_cast<std::uint8_t>(x)}).bits)

#define ASSAY_PTX_16(function, instruction)                                              \
  __device__ inline std::uint32_t function(std::uint32_t x) {                            \
    std::uint16_t y;                                                                     \
    asm volatile(instruction " %0, %1;" : "=h"(y) : "h"(static_cast<std::uint16_t>(x))); \
    return y;                                                                            \
  }
ASSAY_PTX_16(hw_ex2_f16, "ex2.approx.f16")
ASSAY_PTX_16(hw_ex2_bf16, "ex2.approx.ftz.bf16")
ASSAY_PTX_16(hw_tanh_f16, "tanh.approx.f16")
ASSAY_PTX_16(hw_tanh_bf16, "tanh.approx.bf16")
ASSAY_UNARY(Ex2F16, hw_ex2_f16(x), ex2_approx(F16{static_cast<std::uint16_t>(x)}).bits)
ASSAY_UNARY(Ex2Bf16, hw_ex2_bf16(x), ex2_approx_ftz(Bf16{static_cast<std::uint16_t>(x)}).bits)
ASSAY_UNARY(TanhF16, hw_tanh_f16(x), tanh_approx(F16{static_cast<std::uint16_t>(x)}).bits)
ASSAY_UNARY(TanhBf16, hw_tanh_bf16(x), tanh_approx(Bf16{static_cast<std::uint16_t>(x)}).bits)

// sm_100a's conversions; on other architectures the kernels are empty and are not launched.
#if defined(__CUDA_ARCH_FEAT_SM100_ALL)
__device__ inline std::uint32_t hw_cvt_e2m1(std::uint32_t x) {
  std::uint32_t y;
  asm volatile("{.reg .b8 b; cvt.rn.satfinite.e2m1x2.f32 b, %1, %2; cvt.u32.u8 %0, b;}"
               : "=r"(y)
               : "r"(0x3F800000u), "r"(x));
  return y & 0xFu;
}
ASSAY_PTX_TO_BYTES(hw_cvt_ue8m0_rp, "cvt.rp.satfinite.ue8m0x2.f32")
ASSAY_PTX_TO_BYTES(hw_cvt_ue8m0_rz, "cvt.rz.satfinite.ue8m0x2.f32")
#else
__device__ inline std::uint32_t hw_cvt_e2m1(std::uint32_t) { return 0; }
__device__ inline std::uint32_t hw_cvt_ue8m0_rp(std::uint32_t) { return 0; }
__device__ inline std::uint32_t hw_cvt_ue8m0_rz(std::uint32_t) { return 0; }
#endif
ASSAY_UNARY(CvtE2m1, hw_cvt_e2m1(x), cvt_rn_satfinite_e2m1(F32{x}).bits)
ASSAY_UNARY(CvtUe8m0Rp, hw_cvt_ue8m0_rp(x), cvt_rp_satfinite_ue8m0(F32{x}).bits)
ASSAY_UNARY(CvtUe8m0Rz, hw_cvt_ue8m0_rz(x), cvt_rz_satfinite_ue8m0(F32{x}).bits)

// --- two inputs: all pairs of 16-bit patterns, or 2^32 pairs drawn from all patterns -------------

#define ASSAY_BINARY(type, hardware_call, model_call)                                              \
  struct type {                                                                                    \
    static __device__ std::uint32_t hardware(std::uint32_t x, std::uint32_t y) {                   \
      return hardware_call;                                                                        \
    }                                                                                              \
    static __device__ std::uint32_t model(std::uint32_t x, std::uint32_t y) { return model_call; } \
  };
#define ASSAY_PTX_BINARY(function, instruction)                                \
  __device__ inline std::uint32_t function(std::uint32_t x, std::uint32_t y) { \
    std::uint32_t z;                                                           \
    asm volatile(instruction ";" : "=r"(z) : "r"(x), "r"(y));                  \
    return z;                                                                  \
  }
#define ASSAY_PTX_BINARY_16(function, instruction)                                          \
  __device__ inline std::uint32_t function(std::uint32_t x, std::uint32_t y) {              \
    std::uint16_t z;                                                                        \
    asm volatile(instruction " %0, %1, %2;"                                                 \
                 : "=h"(z)                                                                  \
                 : "h"(static_cast<std::uint16_t>(x)), "h"(static_cast<std::uint16_t>(y))); \
    return z;                                                                               \
  }
ASSAY_PTX_BINARY_16(hw_add_bf16, "add.bf16")
ASSAY_PTX_BINARY_16(hw_add_f16, "add.f16")
ASSAY_PTX_BINARY(hw_add, "add.rn.f32 %0, %1, %2")
ASSAY_PTX_BINARY(hw_add_ftz, "add.rn.ftz.f32 %0, %1, %2")
ASSAY_PTX_BINARY(hw_mul_ftz, "mul.rn.ftz.f32 %0, %1, %2")
ASSAY_PTX_BINARY(hw_fma, "fma.rn.f32 %0, %1, %2, %1")
ASSAY_PTX_BINARY(hw_fma_ftz, "fma.rn.ftz.f32 %0, %1, %2, %1")
ASSAY_PTX_BINARY(hw_fma_rz, "fma.rz.f32 %0, %1, %2, %1")
ASSAY_PTX_BINARY(hw_max, "max.f32 %0, %1, %2")
ASSAY_PTX_BINARY(hw_max_nan, "max.NaN.f32 %0, %1, %2")
ASSAY_PTX_BINARY(hw_min, "min.f32 %0, %1, %2")
ASSAY_PTX_BINARY(hw_div_ftz, "div.approx.ftz.f32 %0, %1, %2")
ASSAY_PTX_BINARY(hw_div, "div.approx.f32 %0, %1, %2")
ASSAY_PTX_BINARY(hw_div_full, "div.full.ftz.f32 %0, %1, %2")

__device__ inline Bf16 bf16_of(std::uint32_t x) { return Bf16{static_cast<std::uint16_t>(x)}; }
__device__ inline F16 f16_of(std::uint32_t x) { return F16{static_cast<std::uint16_t>(x)}; }
ASSAY_BINARY(AddBf16, hw_add_bf16(x, y), add_rn(bf16_of(x), bf16_of(y)).bits)
ASSAY_BINARY(AddF16, hw_add_f16(x, y), add_rn(f16_of(x), f16_of(y)).bits)
ASSAY_BINARY(Add, hw_add(x, y), add_rn(F32{x}, F32{y}, false).bits)
ASSAY_BINARY(AddFtz, hw_add_ftz(x, y), add_rn(F32{x}, F32{y}, true).bits)
ASSAY_BINARY(MulFtz, hw_mul_ftz(x, y), mul_rn(F32{x}, F32{y}, true).bits)
ASSAY_BINARY(Fma, hw_fma(x, y), fma_rn(F32{x}, F32{y}, F32{x}, false).bits)
ASSAY_BINARY(FmaFtz, hw_fma_ftz(x, y), fma_rn(F32{x}, F32{y}, F32{x}, true).bits)
ASSAY_BINARY(FmaRz, hw_fma_rz(x, y), fma_rz(F32{x}, F32{y}, F32{x}, false).bits)
ASSAY_BINARY(Max, hw_max(x, y), max_of(F32{x}, F32{y}).bits)
ASSAY_BINARY(MaxNan, hw_max_nan(x, y), max_of(F32{x}, F32{y}, NanRule::kPropagate).bits)
ASSAY_BINARY(Min, hw_min(x, y), min_of(F32{x}, F32{y}).bits)
ASSAY_BINARY(DivApproxFtz, hw_div_ftz(x, y), div_approx_ftz(F32{x}, F32{y}).bits)
ASSAY_BINARY(DivApprox, hw_div(x, y), div_approx(F32{x}, F32{y}).bits)
ASSAY_BINARY(DivFullFtz, hw_div_full(x, y), div_full_ftz(F32{x}, F32{y}).bits)

__device__ inline void finish_sweep(Comparison* out, unsigned long long wrong,
                                    unsigned long long hash) {
  for (int offset = 16; offset > 0; offset /= 2) {
    wrong += __shfl_down_sync(0xFFFFFFFFu, wrong, offset);
    hash += __shfl_down_sync(0xFFFFFFFFu, hash, offset);
  }
  if (threadIdx.x % 32 == 0) {
    if (wrong) atomicAdd(&out->mismatches[0], wrong);
    atomicAdd(&out->hash, hash);
  }
}

template <class Op>
__global__ void unary_sweep(std::uint64_t inputs, Comparison* out) {
  unsigned long long wrong = 0, hash = 0;
  const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < inputs;
       i += stride) {
    const auto x = static_cast<std::uint32_t>(i);
    const std::uint32_t hardware = Op::hardware(x);
    const std::uint32_t model = Op::model(x);
    hash += mix(std::uint64_t{x} << 32 | hardware);
    if (hardware != model) {
      ++wrong;
      show(out, x, 0, hardware, model);
    }
  }
  finish_sweep(out, wrong, hash);
}

template <class Op, bool kAllPairs>
__global__ void binary_sweep(std::uint64_t inputs, Comparison* out) {
  unsigned long long wrong = 0, hash = 0;
  const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < inputs;
       i += stride) {
    std::uint32_t x = static_cast<std::uint32_t>(i >> 16),
                  y = static_cast<std::uint32_t>(i & 0xFFFF);
    if (!kAllPairs) {
      const std::uint64_t random = mix(i);
      x = static_cast<std::uint32_t>(random >> 32);
      y = static_cast<std::uint32_t>(random);
      // Half of the pairs have near exponents; random patterns rarely do.
      if (i & 1)
        y = (y & 0x807FFFFFu) | ((x + ((random >> 20 & 7) << 23) - (3u << 23)) & 0x7F800000u);
    }
    const std::uint32_t hardware = Op::hardware(x, y);
    const std::uint32_t model = Op::model(x, y);
    hash += mix(i ^ std::uint64_t{hardware} << 32);
    if (hardware != model) {
      ++wrong;
      show(out, x, y, hardware, model);
    }
  }
  finish_sweep(out, wrong, hash);
}

inline constexpr int kSweepBlocks = 132 * 16;
inline constexpr int kSweepThreads = 256;

template <class Op>
SweepResult run_unary(const char* name, std::uint64_t inputs) {
  DeviceComparison comparison;
  unary_sweep<Op><<<kSweepBlocks, kSweepThreads>>>(inputs, comparison.get());
  return {name, inputs, comparison.read()};
}

template <class Op, bool kAllPairs>
SweepResult run_binary(const char* name) {
  DeviceComparison comparison;
  const std::uint64_t inputs = std::uint64_t{1} << 32;
  binary_sweep<Op, kAllPairs><<<kSweepBlocks, kSweepThreads>>>(inputs, comparison.get());
  return {name, inputs, comparison.read()};
}

// All sweeps of this GPU, in order. `each` is called after each one.
inline void run_sweeps(int compute_major, const std::function<void(const SweepResult&)>& each) {
  constexpr std::uint64_t all = std::uint64_t{1} << 32;
  each(run_unary<Ex2Ftz>("ex2.approx.ftz.f32", all));
  each(run_unary<RcpFtz>("rcp.approx.ftz.f32", all));
  each(run_unary<RsqrtFtz>("rsqrt.approx.ftz.f32", all));
  each(run_unary<Lg2Ftz>("lg2.approx.ftz.f32", all));
  each(run_unary<Ex2>("ex2.approx.f32", all));
  each(run_unary<Rcp>("rcp.approx.f32", all));
  each(run_unary<Rsqrt>("rsqrt.approx.f32", all));
  each(run_unary<Lg2>("lg2.approx.f32", all));
  each(run_unary<Exp2f>("exp2f, no fast-math", all));
  each(run_unary<Expf>("expf, no fast-math", all));
  each(run_unary<IntrinsicExpf>("__expf, no fast-math", all));
  each(run_unary<IntrinsicLogf>("__logf, no fast-math", all));
  each(run_unary<Polynomial>("degree-3 polynomial ex2", all));
  each(run_unary<Tanh>("tanh.approx.f32", all));
  each(run_unary<CvtRnBf16>("cvt.rn.bf16.f32", all));
  each(run_unary<CvtRzBf16>("cvt.rz.bf16.f32", all));
  each(run_unary<CvtRnF16>("cvt.rn.f16.f32", all));
  each(run_unary<CvtRzF16>("cvt.rz.f16.f32", all));
  each(run_unary<CvtE4m3>("cvt.rn.satfinite.e4m3x2.f32", all));
  each(run_unary<CvtE5m2>("cvt.rn.satfinite.e5m2x2.f32", all));
  if (compute_major >= 10) {
    each(run_unary<CvtE2m1>("cvt.rn.satfinite.e2m1x2.f32", all));
    each(run_unary<CvtUe8m0Rp>("cvt.rp.satfinite.ue8m0x2.f32", all));
    each(run_unary<CvtUe8m0Rz>("cvt.rz.satfinite.ue8m0x2.f32", all));
  }
  each(run_unary<Ex2F16>("ex2.approx.f16", 1u << 16));
  each(run_unary<Ex2Bf16>("ex2.approx.ftz.bf16", 1u << 16));
  each(run_unary<TanhF16>("tanh.approx.f16", 1u << 16));
  each(run_unary<TanhBf16>("tanh.approx.bf16", 1u << 16));
  each(run_unary<WidenF16>("cvt.f32.f16", 1u << 16));
  each(run_unary<WidenE4m3>("cvt.rn.f16x2.e4m3x2, cvt.f32.f16", 1u << 8));
  each(run_unary<WidenE5m2>("cvt.rn.f16x2.e5m2x2, cvt.f32.f16", 1u << 8));
  each(run_binary<AddBf16, true>("add.bf16, all pairs"));
  each(run_binary<AddF16, true>("add.f16, all pairs"));
  each(run_binary<Add, false>("add.rn.f32, 2^32 pairs"));
  each(run_binary<AddFtz, false>("add.rn.ftz.f32, 2^32 pairs"));
  each(run_binary<MulFtz, false>("mul.rn.ftz.f32, 2^32 pairs"));
  each(run_binary<Fma, false>("fma.rn.f32 x*y+x, 2^32 pairs"));
  each(run_binary<FmaFtz, false>("fma.rn.ftz.f32 x*y+x, 2^32 pairs"));
  each(run_binary<FmaRz, false>("fma.rz.f32 x*y+x, 2^32 pairs"));
  each(run_binary<Max, false>("max.f32, 2^32 pairs"));
  each(run_binary<MaxNan, false>("max.NaN.f32, 2^32 pairs"));
  each(run_binary<Min, false>("min.f32, 2^32 pairs"));
  each(run_binary<DivApproxFtz, false>("div.approx.ftz.f32, 2^32 pairs"));
  each(run_binary<DivApprox, false>("div.approx.f32, 2^32 pairs"));
  each(run_binary<DivFullFtz, false>("div.full.ftz.f32, 2^32 pairs"));
}

}  // namespace assay::probe
