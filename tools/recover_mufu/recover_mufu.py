#!/usr/bin/python3
"""Recovers the coefficient tables of the special-function unit from recorded results.

The unit evaluates, per segment of the significand, (A * 2^p + B * x + q * C * sq(x) + constant)
>> shift in integers (SPEC NUM-5.1). Every recorded result bounds that sum from both sides, so a
segment is a system of linear inequalities in three small integers. A least-squares fit lands next
to the solution, a search over the neighbourhood finds the triples that satisfy every inequality,
and the script fails unless there is at least one; it says where there are several. It writes the
header that the model and the device share.

    recover_mufu.py VECTORS_DIRECTORY > model/numerics/special/mufu_tables.hpp

Needs numpy.
"""
import lzma
import os
import sys

import numpy as np


class Function:
    """One function: where its results are recorded and how its sum is put together."""

    def __init__(self, name, files, index_bits, a_shift, c_factor, constant, shift, doubled_square):
        self.name = name
        self.files = files
        self.index_bits = index_bits
        self.a_shift = a_shift
        self.c_factor = c_factor
        self.constant = constant
        self.shift = shift
        self.doubled_square = doubled_square  # rcp squares 2x: its x has 16 bits, the squarer 17


# lg2 over [2, 4) is 1 + fraction, and 13 of the fraction's 36 bits are cut off: shift 2 + 13.
FUNCTIONS = [
    Function("ex2", ["ex2_1to2"], 6, 13, 1, 0x77E2, 15, False),
    Function("rcp", ["rcp_1to2"], 7, 13, 1, 0x47E7, 15, True),
    Function("rsqrt", ["rsqrt_1to2", "rsqrt_2to4"], 6, 14, 4, 0x7FFF, 16, False),
    Function("lg2", ["lg2_2to4"], 6, 12, 2, 0x3345, 15, False),
]


def recorded(directory, name):
    """The results' bit patterns, from first value and differences."""
    path = os.path.join(directory, f"mufu_{name}.i32delta.xz")
    with lzma.open(path) as f:
        deltas = np.frombuffer(f.read(), dtype="<i4").astype(np.int64)
    return np.cumsum(deltas) & 0xFFFFFFFF


def significands(name, bits):
    """What the interpolator's sum, shifted, must have been."""
    mantissa = bits & 0x7FFFFF
    if name == "lg2":  # 1 + fraction: the fraction alone
        return mantissa
    if name == "ex2":
        return mantissa | 0x800000
    # In units of 2^-24: results lie in (1/2, 1], and 1 itself is 2^24.
    return np.where(bits == 0x3F800000, 1 << 24, mantissa | 0x800000)


def truncated_square(x):
    """The unit's squarer: shifted copies of the operand, each losing its low bits, then halved."""
    total = np.zeros_like(x)
    for i in range(17):
        total += np.where((x >> i) & 1, x >> (18 - i), 0)
    return total >> 1


def solve(f, y, x, square, exact):
    """All (A, B, C) near the least-squares fit that give y everywhere but where `exact` is set."""
    low = (y << f.shift) - f.constant
    high = low + (1 << f.shift)  # exclusive
    middle = (low + high).astype(np.float64) / 2
    use = ~exact
    low, high, middle, x, square = low[use], high[use], middle[use], x[use], square[use]
    columns = np.stack([np.full(len(x), float(1 << f.a_shift)), x.astype(np.float64),
                        f.c_factor * square.astype(np.float64)], axis=1)
    fit, *_ = np.linalg.lstsq(columns, middle, rcond=None)
    solutions = []
    for c in range(round(fit[2]) - 1, round(fit[2]) + 2):
        rest = middle - c * f.c_factor * square
        slope = np.polyfit(x.astype(np.float64), rest, 1)[0]
        for b in range(round(slope) - 2, round(slope) + 3):
            known = c * f.c_factor * square + b * x
            a_low = -(-int((low - known).max()) >> f.a_shift)  # ceiling
            a_high = (int((high - known).min()) - 1) >> f.a_shift
            solutions += [(a, b, c) for a in range(a_low, a_high + 1)]
    return solutions


def recover(f, directory):
    table = []
    for name in f.files:
        bits = recorded(directory, name)
        y = significands(f.name, bits)
        per_segment = len(bits) >> f.index_bits
        x = np.arange(per_segment, dtype=np.int64)
        square = truncated_square(2 * x if f.doubled_square else x)
        for segment in range(1 << f.index_bits):
            part = slice(segment * per_segment, (segment + 1) * per_segment)
            # rsqrt of an exact even power of two is not taken from the table (SPEC NUM-5.4).
            exact = np.zeros(per_segment, dtype=bool)
            if name == "rsqrt_1to2" and segment == 0:
                exact[0] = True
            found = solve(f, y[part], x, square, exact)
            if not found:
                sys.exit(f"{name} segment {segment}: no triple reproduces every recorded result")
            if len(found) > 1:
                print(f"{name} segment {segment}: {len(found)} triples: {found}", file=sys.stderr)
            table.append(found[0])
    return table


# tanh: how many segments each binade of the argument has (log2), found where the recorded results
# stop being one quadratic. Below 2^-8 the result is the argument, from 8 on it is 1.
TANH_SEGMENTS_LOG2 = {-8: 0, -7: 0, -6: 0, -5: 1, -4: 1, -3: 2, -2: 2, -1: 2, 0: 3, 1: 4, 2: 3}
TANH_UNIT = 41  # sums are in units of 2^-41; A is in units of 2^-26


def solve_tanh(y, exponent, segments_log2):
    """The (A, B, C) with the fewest bits such that (A << 15) + B * x + C * sq(x), cut to 24
    significant bits, is y for every 17-bit x."""
    significand = (y & 0x7FFFFF) | 0x800000
    shift = (y >> 23) - 127 - 23 + TANH_UNIT
    low, high = significand << shift, (significand + 1) << shift  # high is exclusive
    x = np.arange(1 << 17, dtype=np.int64)
    square = truncated_square(x)
    weight = 1.0 / (high - low)
    columns = np.stack([np.ones(len(x)), x.astype(np.float64), square.astype(np.float64)], axis=1)
    fit, *_ = np.linalg.lstsq(columns * weight[:, None], (low + high) / 2 * weight, rcond=None)
    x_unit = exponent - 17 - segments_log2
    for b_bits in range(16, 20):  # B has b_bits fraction bits relative to the unit of x
        b_shift = TANH_UNIT + x_unit - b_bits
        for c_bits in range(34, TANH_UNIT + 1):
            c_shift = TANH_UNIT - c_bits
            b_near, c_near = round(fit[1] / 2**b_shift), round(fit[2] / 2**c_shift)
            for b in range(b_near - 1, b_near + 2):
                for c in range(c_near - 1, c_near + 2):
                    known = (b << b_shift) * x + (c << c_shift) * square
                    a = -(-int((low - known).max()) >> 15)
                    if (a << 15) < int((high - known).min()):
                        return a, b << b_shift, c << c_shift
    return None


def recover_tanh(directory):
    table = []
    for exponent, segments_log2 in TANH_SEGMENTS_LOG2.items():
        y = recorded(directory, f"tanh_e{exponent}")
        ignored = 6 - segments_log2  # argument bits below the 17 that count
        if not np.all(y.reshape(-1, 1 << ignored) == y.reshape(-1, 1 << ignored)[:, :1]):
            sys.exit(f"tanh binade {exponent}: the low {ignored} bits of the argument matter")
        per_segment = y[:: 1 << ignored].reshape(1 << segments_log2, 1 << 17)
        for segment in range(1 << segments_log2):
            row = solve_tanh(per_segment[segment], exponent, segments_log2)
            if row is None:
                sys.exit(f"tanh binade {exponent} segment {segment}: no triple found")
            table.append(row)
    return table


HEADER = """\
// Generated by tools/recover_mufu/recover_mufu.py from model/numerics/special/vectors, which an
// NVIDIA H200 computed (sm_90, driver 580.159.04, CUDA 13.0.88). Do not edit.
// Coefficients (A, B, C) of the special-function unit's interpolator, one row per segment (SPEC
// NUM-5.1). Every recorded result of every segment follows from its row; for ex2, rcp, rsqrt and
// lg2 from no other.
// clang-format off
#pragma once

#include <cstdint>

namespace assay::numerics {

struct MufuRow {
  std::int32_t a;
  std::int32_t b;
  std::int32_t c;
};

// Device code cannot index a host array, so nvcc gets a second copy in the device's memory.
#ifdef __CUDACC__
#define ASSAY_MUFU_TABLE(name, size, ...)                \\
  inline constexpr MufuRow name[size] = {__VA_ARGS__};   \\
  static __device__ const MufuRow name##OnDevice[size] = {__VA_ARGS__};
#else
#define ASSAY_MUFU_TABLE(name, size, ...) inline constexpr MufuRow name[size] = {__VA_ARGS__};
#endif
"""


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(HEADER)
    for f in FUNCTIONS:
        table = recover(f, sys.argv[1])
        for column, name in enumerate("ABC"):
            values = [row[column] for row in table]
            print(f"{f.name} {name}: {min(values)} to {max(values)}", file=sys.stderr)
        lines = []
        for i in range(0, len(table), 3):
            lines.append("  " + ", ".join(f"{{{a}, {b}, {c}}}" for a, b, c in table[i:i + 3]))
        print(f"ASSAY_MUFU_TABLE(kMufu{f.name.capitalize()}, {len(table)},")
        print(",\n".join(lines) + ")\n")
    table = recover_tanh(sys.argv[1])
    lines = []
    for i in range(0, len(table), 3):
        lines.append("  " + ", ".join(f"{{{a}, {b}, {c}}}" for a, b, c in table[i:i + 3]))
    print("// Binades 2^-8 to 2^2, with 1, 1, 1, 2, 2, 4, 4, 4, 8, 16 and 8 segments (NUM-5.9).")
    print(f"ASSAY_MUFU_TABLE(kMufuTanh, {len(table)},")
    print(",\n".join(lines) + ")\n")
    print("#undef ASSAY_MUFU_TABLE\n")
    print("}  // namespace assay::numerics")


if __name__ == "__main__":
    main()
