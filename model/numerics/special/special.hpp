// Start here: exponentials, logarithms, reciprocals and square roots as GPUs compute them.
//   mufu.hpp          the hardware instructions ex2, rcp, rsqrt, lg2 `.approx.ftz.f32` and
//                     tanh.approx.f32
//   fast_math.hpp     what the compiler makes of exp2f, __expf, x / y, ex2.approx.f32 ...
//   polynomial.hpp    the degree-3 polynomial that some attention kernels use instead of ex2
//   half.hpp          ex2 and tanh on f16 and bf16, single or in pairs
//   special.hpp       the instructions over arrays, vectorised, with the same bits
// Which of them a kernel uses, and for which elements, is that kernel's profile.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "model/core/bits.hpp"
#include "model/core/expected.hpp"
#include "model/numerics/special/mufu.hpp"

namespace assay::numerics {

enum class Mufu : std::uint8_t { kEx2, kRcp, kRsqrt, kLg2, kTanh };

std::string_view mufu_name(Mufu function);  // "ex2"
Expected<Mufu> parse_mufu(std::string_view name);

// y[i] = the function of x[i]; the bits of ex2_approx_ftz() and its sisters (SPEC NUM-5.8). x and y
// have one length (CONTRACT) and may be the same array. tanh is not vectorised.
void mufu(Mufu function, std::span<const F32> x, std::span<F32> y);

// The same for one value.
ASSAY_HD constexpr F32 mufu(Mufu function, F32 x) {
  switch (function) {
    case Mufu::kEx2:
      return ex2_approx_ftz(x);
    case Mufu::kRcp:
      return rcp_approx_ftz(x);
    case Mufu::kRsqrt:
      return rsqrt_approx_ftz(x);
    case Mufu::kLg2:
      return lg2_approx_ftz(x);
    case Mufu::kTanh:
      return tanh_approx(x);
  }
  return canonical_nan<F32>();
}

}  // namespace assay::numerics
