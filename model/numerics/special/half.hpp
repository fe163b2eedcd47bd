// The 16-bit forms of the special-function unit: ex2.approx.f16[x2], ex2.approx.ftz.bf16[x2],
// tanh.approx.f16[x2] and tanh.approx.bf16[x2]. Each half of a pair is computed alone. Decides SPEC
// NUM-5.10: they are the f32 results of the widened argument, cut or rounded.
#pragma once

#include "model/numerics/convert.hpp"
#include "model/numerics/special/mufu.hpp"

namespace assay::numerics {

// 2^x; f16 subnormals are kept on both sides, bf16 ones flush. Cut toward zero, but overflow is
// Inf.
ASSAY_HD constexpr F16 ex2_approx(F16 x) {
  const F32 wide = ex2_approx_ftz(widen(x));
  if (magnitude(wide) >= 0x47800000u && !is_nan(wide)) return F16{0x7C00};  // 2^16 and more
  return cvt_rz_f16_f32(wide);
}
ASSAY_HD constexpr Bf16 ex2_approx_ftz(Bf16 x) { return cvt_rz_bf16_f32(ex2_approx_ftz(widen(x))); }

// tanh(x), cut toward zero.
ASSAY_HD constexpr F16 tanh_approx(F16 x) { return cvt_rz_f16_f32(tanh_approx(widen(x))); }
ASSAY_HD constexpr Bf16 tanh_approx(Bf16 x) { return cvt_rz_bf16_f32(tanh_approx(widen(x))); }

}  // namespace assay::numerics
