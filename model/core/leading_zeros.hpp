// Leading zeros and bit width for code that host and device share. <bit>'s own must not be used
// there: nvcc 13.0 compiles libstdc++'s std::countl_zero (and with it std::bit_width) to the
// constant 64 in device code, without a warning. std::bit_cast is fine.
#pragma once

#include <cstdint>

#include "model/core/platform.hpp"

namespace assay {

// 64 for 0.
ASSAY_HD constexpr int leading_zeros(std::uint64_t x) { return x == 0 ? 64 : __builtin_clzll(x); }

// How many bits x needs; 0 for 0.
ASSAY_HD constexpr int bit_width(std::uint64_t x) { return 64 - leading_zeros(x); }

}  // namespace assay
