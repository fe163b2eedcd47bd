// For tests of this folder only: combine computed a second time, in the way that kernels are
// written. Partial sums live in accumulators that are added at growing strides; no text, no stack.
// Decides nothing.
#pragma once

#include <cstring>
#include <optional>
#include <random>
#include <vector>

#include "model/moe/combine.hpp"
#include "model/moe/moe_testing.hpp"
#include "model/moe/profile.hpp"
#include "model/numerics/add.hpp"

namespace assay::moe {

using Arithmetic = CombineArithmetic;
using Bytes = std::vector<std::byte>;

inline const Arithmetic& arithmetic_of(std::string_view profile) {
  return find_combine_profile(profile).value()->arithmetic;
}
inline const Arithmetic& r1() { return arithmetic_of("trtllm-oneside@pre-11844"); }
inline const Arithmetic& r1_ftz() { return arithmetic_of("flashinfer-oneside@0.6.0"); }
inline const Arithmetic& r2() { return arithmetic_of("trtllm-oneside@11844"); }
inline const Arithmetic& r2_ftz() { return arithmetic_of("flashinfer-oneside@0.6.16"); }
inline const Arithmetic& r3() { return arithmetic_of("trtllm-oneside@compact"); }
inline const Arithmetic& r4() { return arithmetic_of("flashinfer-cake"); }

inline F32 naive_add(const Arithmetic& arithmetic, Dtype dtype, F32 a, F32 b) {
  const bool payload = arithmetic.accumulate == Arithmetic::Accumulate::kPayload;
  if (payload && dtype == Dtype::kBf16)
    return numerics::widen(numerics::add_rn(Bf16{static_cast<std::uint16_t>(a.bits >> 16)},
                                            Bf16{static_cast<std::uint16_t>(b.bits >> 16)}));
  if (payload && dtype == Dtype::kF16)
    return numerics::widen(
        numerics::add_rn(numerics::cvt_rn_f16_f32(a), numerics::cvt_rn_f16_f32(b)));
  return numerics::add_rn(a, b, arithmetic.flush_subnormals);
}

// terms: per pick the widened element, nothing for a hole.
inline F32 naive_sum(const Arithmetic& arithmetic, Dtype dtype,
                     const std::vector<std::optional<F32>>& terms) {
  const bool compact = arithmetic.holes == Arithmetic::Holes::kCompact;
  std::vector<F32> acc;
  for (const auto& term : terms)
    if (term)
      acc.push_back(*term);
    else if (!compact)
      acc.push_back(F32{0});
  const auto add = [&](std::size_t to, std::size_t from) {
    acc[to] = naive_add(arithmetic, dtype, acc[to], acc[from]);
  };
  if (compact) {
    const std::size_t n = acc.size();
    acc.resize(n <= 2 ? 2 : n <= 8 ? 8 : n <= 16 ? 16 : 32, F32{0});
  } else if (acc.size() == 12 || acc.size() == 14 || acc.size() == 18) {
    for (std::size_t k = 1; k < acc.size(); ++k) add(0, k);
    return acc[0];
  }
  for (std::size_t stride = 1; stride < acc.size(); stride *= 2)
    for (std::size_t k = 0; k + stride < acc.size(); k += 2 * stride) add(k, k + stride);
  return acc[0];
}

inline std::size_t size_of(Dtype dtype) { return static_cast<std::size_t>(dtype_bytes(dtype)); }

inline std::uint32_t bits_at(const Bytes& row, Dtype dtype, std::size_t element) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, row.data() + element * size_of(dtype), size_of(dtype));
  return bits;
}
inline F32 widened(Dtype dtype, std::uint32_t bits) {
  if (dtype == Dtype::kBf16) return numerics::widen(Bf16{static_cast<std::uint16_t>(bits)});
  if (dtype == Dtype::kF16) return numerics::widen(F16{static_cast<std::uint16_t>(bits)});
  if (dtype == Dtype::kE4m3) return numerics::widen(E4m3{static_cast<std::uint8_t>(bits)});
  return F32{bits};
}
inline std::uint32_t stored(Dtype dtype, F32 x) {
  if (dtype == Dtype::kBf16) return numerics::cvt_rn_bf16_f32(x).bits;
  if (dtype == Dtype::kF16) return numerics::cvt_rn_f16_f32(x).bits;
  return x.bits;
}

// The whole of one element, copies included.
inline std::uint32_t naive_out(const Combine& combine, const std::vector<const Bytes*>& rows,
                               std::size_t element) {
  const Dtype dtype = combine.shape().dtype;
  const Arithmetic& arithmetic = combine.arithmetic();
  const bool in_type = arithmetic.accumulate == Arithmetic::Accumulate::kPayload;
  if (rows.size() == 1 && arithmetic.holes == Arithmetic::Holes::kAddZero && in_type)
    return rows[0] != nullptr ? bits_at(*rows[0], dtype, element) : 0;  // a copy
  std::vector<std::optional<F32>> terms;
  for (const Bytes* row : rows) {
    terms.emplace_back();
    if (row == nullptr) continue;
    F32 x = widened(dtype, bits_at(*row, dtype, element));
    if (combine.shape().low_precision && dtype != Dtype::kE4m3)
      x = numerics::widen(numerics::cvt_rn_satfinite_e4m3(x));
    terms.back() = x;
  }
  return stored(combine.out_dtype(), naive_sum(arithmetic, dtype, terms));
}

// Bit patterns that expose something, and any others.
inline Bytes odd_row(std::mt19937& random, Dtype dtype, std::size_t hidden) {
  static const std::vector<std::uint32_t> bf16 = {0x0000, 0x8000, 0x0001, 0x807F, 0x0080, 0x8080,
                                                  0x3F80, 0xBF80, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80,
                                                  0x7FC1, 0xFF81, 0x4380, 0xC380, 0x3480, 0x3C00};
  Bytes row(hidden * size_of(dtype));
  for (std::size_t i = 0; i < hidden; ++i) {
    std::uint32_t bits = random();
    // Element 0 is -0 in every row: only a sum of nothing but -0 shows which +0 leaves are added.
    if (i == 0) bits = 1u << (8 * size_of(dtype) - 1);
    const bool special = i > 0 && random() % 4 != 0;
    if (special) bits = bf16[random() % bf16.size()];
    if (special && dtype == Dtype::kF32)
      bits = bits << 16 | (random() % 3 == 0 ? random() >> 20 : 0);
    std::memcpy(row.data() + i * size_of(dtype), &bits, size_of(dtype));
  }
  return row;
}

inline std::vector<const std::byte*> pointers(const std::vector<const Bytes*>& rows) {
  std::vector<const std::byte*> list;
  for (const Bytes* row : rows) list.push_back(row != nullptr ? row->data() : nullptr);
  return list;
}

}  // namespace assay::moe
