// Start here: number formats as hardware treats them, bit for bit.
//
//   formats.hpp    what codes mean: Format<T>, is_nan, canonical_nan, flush_subnormal
//   convert.hpp    widen(x) to f32, narrow<To>(x, Rounding, Overflow) from it, PTX's cvt names
//   add.hpp        add_rn, mul_rn, div_rn, fma_rn, fma_rz of single values
//   max_min.hpp    max_of, min_of with their NaN rules; warp_reduce.hpp: the trees of shuffles
//   bulk.hpp       the same over arrays, with the same bits, at memory speed
//   exact.hpp      the arithmetic in integers, any rounding; what add.hpp falls back on
//   reference_add.hpp  sums once more as a definition, for tests
//   quantize/      blocks with scales: recipes by name
//   tensor_core/   sums of matrix instructions
//   special/       ex2, rcp, rsqrt, lg2, tanh
//
// Values are the bit types of model/core/bits.hpp; nothing here is an operator. Decisions: SPEC
// NUM.
#pragma once

#include "model/numerics/add.hpp"
#include "model/numerics/convert.hpp"
#include "model/numerics/formats.hpp"
