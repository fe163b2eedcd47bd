// How a CombineArithmetic is executed over whole rows, and once more for a single element.
// Decides the pass structure; what the additions give is decided in model/numerics.
#include "model/moe/combine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "model/numerics/add.hpp"
#include "model/numerics/bulk.hpp"
#include "model/numerics/convert.hpp"

namespace assay::moe {

namespace {

constexpr std::array<std::string_view, 4> kDtypeNames = {"bf16", "f16", "f32", "e4m3"};
constexpr std::array<std::int64_t, 4> kDtypeBytes = {2, 2, 4, 1};

using Arithmetic = CombineArithmetic;
using Op = ReductionTree::Step::Op;
constexpr auto kMaxK = static_cast<std::size_t>(kMaxTopK);

std::string list_allowed_top_k() {
  std::string list;
  for (const std::int32_t k : allowed_top_k()) {
    if (!list.empty()) list += k == allowed_top_k().back() ? " and " : ", ";
    list += std::to_string(k);
  }
  return list;
}

}  // namespace

std::string_view dtype_name(Dtype dtype) { return kDtypeNames[static_cast<std::size_t>(dtype)]; }
std::int64_t dtype_bytes(Dtype dtype) { return kDtypeBytes[static_cast<std::size_t>(dtype)]; }

Expected<Combine> Combine::make(const CombineArithmetic& arithmetic, const CombineShape& shape) {
  // Both tables are asked by top_k: a compact tree of n terms exists for every n, but no kernel is
  // instantiated for the other top_k (SPEC MOE-3.2).
  if (find_tree(TreeTable::kPosition, shape.top_k) == nullptr)
    return bad_input(fmt::format("top_k is {}; combine has an order of addition for {}",
                                 shape.top_k, list_allowed_top_k()));
  if (shape.low_precision) {
    if (arithmetic.low_precision == Arithmetic::LowPrecision::kNone)
      return bad_input("this arithmetic has no low-precision combine; allowed is low_precision=0");
    if (shape.dtype == Dtype::kF32)
      return bad_input(
          "low-precision combine takes bf16 or f16 rows, or e4m3 rows as on the wire; "
          "got f32");
    if (shape.dtype == Dtype::kE4m3 &&
        arithmetic.low_precision == Arithmetic::LowPrecision::kReaderE4m3)
      return bad_input(
          "this arithmetic rounds to e4m3 at the reader, so its wire carries bf16 or "
          "f16 rows; got e4m3");
    CONTRACT(arithmetic.accumulate == Arithmetic::Accumulate::kF32, "low precision adds in f32");
  } else if (shape.dtype == Dtype::kE4m3) {
    return bad_input(
        "e4m3 rows are the wire form of a low-precision combine; set low_precision=1 "
        "or give bf16, f16 or f32 rows");
  }
  CONTRACT((arithmetic.holes == Arithmetic::Holes::kCompact) ==
               (arithmetic.trees == TreeTable::kCompact),
           "compacted terms need trees by number of terms, and only they");
  Combine combine;
  combine.arithmetic_ = arithmetic;
  combine.shape_ = shape;
  const bool wire_form = shape.low_precision && shape.dtype == Dtype::kE4m3;
  combine.out_dtype_ =
      wire_form || arithmetic.out_is_bf16(shape.low_precision) ? Dtype::kBf16 : shape.dtype;
  return combine;
}

// --- whole rows ---------------------------------------------------------------------------------

namespace {

// Elements per pass: 6 partial sums of 512 f32 are 12 KiB and stay in any L1 cache.
constexpr std::int64_t kChunk = 512;
// Stack entries of the deepest tree: 32 leaves in halves need log2(32) + 1.
constexpr std::size_t kMaxDepth = 6;

template <class T>
using Buffer = std::array<T, static_cast<std::size_t>(kChunk)>;

// Elements [first, first + n) of a packed row: in place where it is aligned, else copied.
template <class T>
std::span<const T> elements(const std::byte* row, std::int64_t first, std::int64_t n,
                            Buffer<T>& copy) {
  const std::byte* const from = row + first * static_cast<std::int64_t>(sizeof(T));
  const auto count = static_cast<std::size_t>(n);
  if (reinterpret_cast<std::uintptr_t>(from) % alignof(T) == 0)
    return {reinterpret_cast<const T*>(from), count};
  std::memcpy(copy.data(), from, count * sizeof(T));
  return {copy.data(), count};
}

// One pass over a chunk of a token: Row is the type of the rows, Acc that of partial sums. It runs
// the tree's program on a stack of spans; a term that needs no conversion is used where it lies.
template <class Row, class Acc>
class ChunkSum {
 public:
  ChunkSum(const Arithmetic& arithmetic, bool low_precision)
      : flush_(arithmetic.flush_subnormals), low_precision_(low_precision) {
    zero_.fill(Acc{0});
  }

  // terms: null is +0. The result lies in this object or in a row.
  std::span<const Acc> run(const ReductionTree& tree, std::span<const std::byte* const> terms,
                           std::int64_t first, std::int64_t n) {
    CONTRACT(tree.max_depth() <= static_cast<std::int32_t>(kMaxDepth), tree.max_depth());
    std::size_t top = 0;
    for (const auto& step : tree.steps()) {
      if (step.op == Op::kAdd) {
        --top;
        add(stack_[top - 1], stack_[top], sums_[top - 1]);
        stack_[top - 1] = {sums_[top - 1].data(), static_cast<std::size_t>(n)};
        continue;
      }
      const std::byte* const row =
          step.op == Op::kPush ? terms[static_cast<std::size_t>(step.position)] : nullptr;
      stack_[top] = row != nullptr
                        ? term(row, first, n, sums_[top])
                        : std::span<const Acc>{zero_.data(), static_cast<std::size_t>(n)};
      ++top;
    }
    return stack_[0];
  }

 private:
  // Only f32 additions flush, and every addition makes NaN canonical (SPEC MOE-3.6, MOE-3.7).
  void add(std::span<const Acc> a, std::span<const Acc> b, Buffer<Acc>& sum) {
    const std::span<Acc> out{sum.data(), a.size()};
    if constexpr (std::is_same_v<Acc, F32>)
      numerics::add_rows(a, b, out, flush_);
    else
      numerics::add_rows(a, b, out);
  }

  std::span<const Acc> term(const std::byte* row, std::int64_t first, std::int64_t n,
                            Buffer<Acc>& to) {
    if constexpr (std::is_same_v<Row, Acc>) {
      return elements<Acc>(row, first, n, to);
    } else {
      const std::span<Acc> out{to.data(), static_cast<std::size_t>(n)};
      numerics::widen_row(elements<Row>(row, first, n, copy_), out);
      if (!std::is_same_v<Row, E4m3> && low_precision_) {  // (SPEC MOE-3.8)
        const std::span<E4m3> wire{wire_.data(), out.size()};
        numerics::narrow_row(out, wire);
        numerics::widen_row(wire, out);
      }
      return out;
    }
  }

  bool flush_;
  bool low_precision_;
  std::array<std::span<const Acc>, kMaxDepth> stack_;
  alignas(64) std::array<Buffer<Acc>, kMaxDepth> sums_;
  alignas(64) Buffer<Acc> zero_;
  alignas(64) Buffer<Row> copy_;
  alignas(64) Buffer<E4m3> wire_;
};

template <class Acc, class Out>
void store(std::span<const Acc> sum, std::byte* out) {
  if constexpr (std::is_same_v<Acc, Out>) {
    std::memcpy(out, sum.data(), sum.size_bytes());
  } else {
    alignas(64) Buffer<Out> rounded;
    const std::span<Out> to{rounded.data(), sum.size()};
    numerics::narrow_row(sum, to);
    std::memcpy(out, rounded.data(), to.size_bytes());
  }
}

// The rows of a token as the tree wants them, and the tree: all of them with holes as null, or the
// valid ones moved together (SPEC MOE-3.4).
struct Terms {
  std::array<const std::byte*, kMaxK> rows{};
  std::array<TopKIndex, kMaxK> picks{};
  std::size_t count = 0;
  const ReductionTree* tree = nullptr;

  Terms(const Arithmetic& arithmetic, std::span<const std::byte* const> all) {
    const bool compact = arithmetic.holes == Arithmetic::Holes::kCompact;
    for (std::size_t k = 0; k < all.size(); ++k) {
      if (compact && all[k] == nullptr) continue;
      rows[count] = all[k];
      picks[count++] = TopKIndex{static_cast<std::int32_t>(k)};
    }
    tree = find_tree(arithmetic.trees, static_cast<std::int32_t>(count));
  }
  std::span<const std::byte* const> span() const { return std::span(rows).first(count); }
};

template <class Row, class Acc, class Out>
void sum_row(const Arithmetic& arithmetic, bool low_precision,
             std::span<const std::byte* const> rows, std::int64_t hidden_size, std::byte* out) {
  const Terms terms(arithmetic, rows);
  ChunkSum<Row, Acc> chunk(arithmetic, low_precision);
  for (std::int64_t first = 0; first < hidden_size; first += kChunk) {
    const std::int64_t n = std::min(kChunk, hidden_size - first);
    store<Acc, Out>(chunk.run(*terms.tree, terms.span(), first, n),
                    out + first * static_cast<std::int64_t>(sizeof(Out)));
  }
}

using SumRow = void (*)(const Arithmetic&, bool, std::span<const std::byte* const>, std::int64_t,
                        std::byte*);

// What is added in which type and stored as what (SPEC MOE-3.5).
SumRow select(const Arithmetic& arithmetic, const CombineShape& shape, Dtype out) {
  const bool in_payload = arithmetic.accumulate == Arithmetic::Accumulate::kPayload;
  switch (shape.dtype) {
    case Dtype::kBf16:
      return in_payload ? sum_row<Bf16, Bf16, Bf16> : sum_row<Bf16, F32, Bf16>;
    case Dtype::kF16:
      if (out == Dtype::kBf16) return sum_row<F16, F32, Bf16>;
      return in_payload ? sum_row<F16, F16, F16> : sum_row<F16, F32, F16>;
    case Dtype::kF32:
      return sum_row<F32, F32, F32>;
    case Dtype::kE4m3:
      return sum_row<E4m3, F32, Bf16>;
  }
  CONTRACT(false, "unknown dtype");
  return nullptr;
}

}  // namespace

void Combine::row(std::span<const std::byte* const> rows, std::int64_t hidden_size,
                  std::byte* out) const {
  CONTRACT(rows.size() == static_cast<std::size_t>(shape_.top_k), rows.size(), shape_.top_k);
  select(arithmetic_, shape_, out_dtype_)(arithmetic_, shape_.low_precision, rows, hidden_size,
                                          out);
}

void Combine::rank(const DispatchPlan& plan, RankId src,
                   std::span<const std::byte* const> expert_out, std::int64_t hidden_size,
                   std::byte* out) const {
  CONTRACT(plan.top_k() == shape_.top_k, plan.top_k(), shape_.top_k);
  CONTRACT(expert_out.size() == static_cast<std::size_t>(plan.ep_size()), expert_out.size());
  const Payload rows_of_experts{"expert_out", hidden_size * dtype_bytes(shape_.dtype), false};
  const std::int64_t out_bytes = hidden_size * dtype_bytes(out_dtype_);
  const auto k = static_cast<std::size_t>(shape_.top_k);
  const SumRow sum = select(arithmetic_, shape_, out_dtype_);
  const auto ranks = plan.target_rank(src);
  const auto slots = plan.target_slot(src);
  std::array<const std::byte*, kMaxK> rows{};
  for (std::size_t first = 0; first < ranks.size(); first += k, out += out_bytes) {
    for (std::size_t i = 0; i < k; ++i) {
      rows[i] = nullptr;
      const std::int32_t rank = ranks[first + i];
      if (rank < 0) continue;
      const std::byte* const from = expert_out[static_cast<std::size_t>(rank)];
      CONTRACT(from != nullptr, rank, "a rank that got rows has no expert_out");
      rows[i] = from + recv_row_offset(plan, rows_of_experts, src, SlotId{slots[first + i]});
    }
    sum(arithmetic_, shape_.low_precision, std::span(rows).first(k), hidden_size, out);
  }
}

// --- one element, step by step ------------------------------------------------------------------

namespace {

template <class T>
F32 widened_element(const std::byte* row, std::int64_t element) {
  T x;
  std::memcpy(&x, row + element * static_cast<std::int64_t>(sizeof x), sizeof x);
  return numerics::widen(x);
}

F32 term_value(const CombineShape& shape, const std::byte* row, std::int64_t element) {
  F32 x{};
  switch (shape.dtype) {
    case Dtype::kBf16:
      x = widened_element<Bf16>(row, element);
      break;
    case Dtype::kF16:
      x = widened_element<F16>(row, element);
      break;
    case Dtype::kF32:
      x = widened_element<F32>(row, element);
      break;
    case Dtype::kE4m3:
      return widened_element<E4m3>(row, element);
  }
  return shape.low_precision ? numerics::widen(numerics::cvt_rn_satfinite_e4m3(x)) : x;
}

F32 sum_value(const Arithmetic& arithmetic, Dtype dtype, F32 a, F32 b) {
  if (arithmetic.accumulate == Arithmetic::Accumulate::kPayload && dtype != Dtype::kF32) {
    const F32 exact_enough = numerics::add_rn(a, b, false);  // (SPEC NUM-3.4)
    if (dtype == Dtype::kBf16) return numerics::widen(numerics::cvt_rn_bf16_f32(exact_enough));
    return numerics::widen(numerics::cvt_rn_f16_f32(exact_enough));
  }
  return numerics::add_rn(a, b, arithmetic.flush_subnormals);
}

}  // namespace

std::vector<SumStep> Combine::explain(std::span<const std::byte* const> rows,
                                      std::int64_t element) const {
  CONTRACT(rows.size() == static_cast<std::size_t>(shape_.top_k), rows.size(), shape_.top_k);
  const Terms terms(arithmetic_, rows);
  std::vector<SumStep> steps;
  std::vector<F32> stack;
  for (const auto& step : terms.tree->steps()) {
    if (step.op == Op::kAdd) {
      const F32 right = stack.back();
      stack.pop_back();
      stack.back() = sum_value(arithmetic_, shape_.dtype, stack.back(), right);
      steps.push_back({SumStep::What::kSum, std::nullopt, stack.back()});
      continue;
    }
    const auto position = static_cast<std::size_t>(step.position);
    const bool hole = step.op == Op::kPushZero || terms.rows[position] == nullptr;
    stack.push_back(hole ? F32{0} : term_value(shape_, terms.rows[position], element));
    if (hole)
      steps.push_back({SumStep::What::kZero, std::nullopt, stack.back()});
    else
      steps.push_back({SumStep::What::kTerm, terms.picks[position], stack.back()});
  }
  return steps;
}

}  // namespace assay::moe
