// Combine: the sum of a token's rows, bit for bit. The arithmetic of a library is data
// (CombineArithmetic); this file decides how such data is executed: where rounding happens, what a
// hole is, what -0, NaN and subnormals become. Which library has which is decided in profile.cpp.
//
//   auto combine = Combine::make(profile.arithmetic, {.top_k = 8, .dtype = Dtype::kBf16});
//   combine->row(rows, hidden_size, out);                     // rows[k], nullptr is a hole
//   combine->rank(plan, RankId{src}, expert_out, hidden_size, out);
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "model/core/bits.hpp"
#include "model/core/expected.hpp"
#include "model/core/id.hpp"
#include "model/moe/dispatch.hpp"
#include "model/moe/reduction_tree.hpp"

namespace assay::moe {

// kE4m3 occurs only as the wire form of low-precision rows.
enum class Dtype : std::uint8_t { kBf16, kF16, kF32, kE4m3 };
std::string_view dtype_name(Dtype dtype);  // "bf16", "f16", "f32", "e4m3"
std::int64_t dtype_bytes(Dtype dtype);

// What one implementation computes (SPEC MOE-3.1). All fields reach bits.
struct CombineArithmetic {
  enum class Accumulate : std::uint8_t {
    kPayload,  // every addition rounds to the payload's type
    kF32,      // additions in f32, one rounding to the payload's type at the end
  };
  enum class Holes : std::uint8_t {
    kAddZero,  // a hole is +0 and is added
    kCompact,  // holes are removed, the valid terms move together
  };
  // Where a term is rounded to e4m3. For the sum it makes no difference: both round each element
  // once by the same rule, so equal rows give equal terms (SPEC MOE-3.8). The wire differs.
  enum class LowPrecision : std::uint8_t {
    kNone,        // the implementation has no such mode: refused
    kSenderE4m3,  // before the wire, which carries one byte per element
    kReaderE4m3,  // after the wire, which carries dtype
  };
  enum class LowPrecisionOut : std::uint8_t { kBf16, kPayload };  // dtype of out in that mode
  Accumulate accumulate = Accumulate::kF32;
  bool flush_subnormals = false;  // f32 additions are add.ftz.f32; 16-bit additions never flush
  Holes holes = Holes::kAddZero;
  TreeTable trees = TreeTable::kPosition;
  LowPrecision low_precision = LowPrecision::kNone;
  LowPrecisionOut low_precision_out = LowPrecisionOut::kBf16;
  // Whether out is BF16 whatever the dtype of the rows that are given is.
  bool out_is_bf16(bool low_precision_combine) const {
    return low_precision_combine && low_precision_out == LowPrecisionOut::kBf16;
  }
  friend bool operator==(const CombineArithmetic&, const CombineArithmetic&) = default;
};

struct CombineShape {
  std::int32_t top_k = 1;
  Dtype dtype = Dtype::kBf16;  // of the rows; of out too, but see out_dtype()
  bool low_precision = false;  // with dtype kE4m3: the rows are already in their wire form
};

// One step of the sum of one element, for a report. `value` is widened, which is exact.
struct SumStep {
  enum class What : std::uint8_t { kTerm, kZero, kSum };
  What what;
  std::optional<TopKIndex> k;  // of kTerm: the pick whose row it is; a hole that is added is kZero
  F32 value;                   // the term, +0, or the partial sum after its rounding
};

// An arithmetic made ready for one shape. A value; thread-safe.
class Combine {
 public:
  // Errors, each with the allowed values: a top_k without a tree (3, 5, 7 ...), low precision of an
  // arithmetic that has none or of f32 rows, e4m3 rows without low precision.
  static Expected<Combine> make(const CombineArithmetic& arithmetic, const CombineShape& shape);

  const CombineShape& shape() const { return shape_; }
  const CombineArithmetic& arithmetic() const { return arithmetic_; }
  // Of out: shape().dtype, but see LowPrecisionOut; e4m3 rows always give BF16.
  Dtype out_dtype() const { return out_dtype_; }

  // One token. rows [k] -> [h] of dtype, nullptr where pick k has no row; out [h] of out_dtype. No
  // alignment needed; out may not overlap a row.
  void row(std::span<const std::byte* const> rows, std::int64_t hidden_size, std::byte* out) const;

  // All tokens of one source: expert_out [dst] -> [src, slot, h] of dtype (only the rows of this
  // source are read; null allowed for a destination that got nothing from it); out [t, h]. Near
  // memory speed.
  void rank(const DispatchPlan& plan, RankId src, std::span<const std::byte* const> expert_out,
            std::int64_t hidden_size, std::byte* out) const;

  // How element `element` of a token came about: a stack program in order of execution, rows as
  // for row(). Its last value is the sum before the final conversion.
  std::vector<SumStep> explain(std::span<const std::byte* const> rows, std::int64_t element) const;

 private:
  Combine() = default;
  CombineArithmetic arithmetic_;
  CombineShape shape_;
  Dtype out_dtype_ = Dtype::kBf16;
};

}  // namespace assay::moe
