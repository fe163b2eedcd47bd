// Conversions and adds over whole rows, for the host. Every element gets exactly the bits of the
// scalar function named beside it (SPEC NUM-3.9); nothing is decided here. The code behind is
// Highway's, compiled for several instruction sets and chosen at run time, so the library needs no
// -march. Intermediate rows of a tree sum should be a few hundred elements, to stay in the L1
// cache.
//
// All spans of a call have the same length (CONTRACT). `out` may be one of the inputs of the same
// element type, not a shifted part of one.
#pragma once

#include <span>

#include "model/core/bits.hpp"

namespace assay::numerics {

// widen(in[i])
void widen_row(std::span<const Bf16> in, std::span<F32> out);
void widen_row(std::span<const F16> in, std::span<F32> out);
void widen_row(std::span<const E4m3> in, std::span<F32> out);
void widen_row(std::span<const E5m2> in, std::span<F32> out);

// cvt_rn_bf16_f32(in[i]), cvt_rn_f16_f32(in[i])
void narrow_row(std::span<const F32> in, std::span<Bf16> out);
void narrow_row(std::span<const F32> in, std::span<F16> out);
// cvt_rn_satfinite_e4m3(in[i]), cvt_rn_satfinite_e5m2(in[i])
void narrow_row(std::span<const F32> in, std::span<E4m3> out);
void narrow_row(std::span<const F32> in, std::span<E5m2> out);

// add_rn(a[i], b[i], flush)
void add_rows(std::span<const F32> a, std::span<const F32> b, std::span<F32> out, bool flush);
// add_rn(a[i], b[i])
void add_rows(std::span<const Bf16> a, std::span<const Bf16> b, std::span<Bf16> out);
void add_rows(std::span<const F16> a, std::span<const F16> b, std::span<F16> out);

}  // namespace assay::numerics
