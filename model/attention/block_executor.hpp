// A unit's steps as one block of threads: rows and pieces of rows dealt to threads, a barrier after
// each step, matrix products in 32-bit integers out of memory that the block shares. The text is a
// GPU's and, with threads of the host in the place of a block's, what tests run (SPEC ATT-5.10).
// Decides nothing: products are those of block_dot.hpp, the rest the scalar functions.
//
// Block has index(), size() (threads) and sync() (a barrier that orders memory within the block).
#pragma once

#include "model/attention/unit_run.hpp"
#include "model/numerics/tensor_core/block_dot.hpp"

namespace assay::attention {

// Functions that stay calls: rare ones, which would cost the others registers, and the largest, of
// which one copy is enough.
#ifdef __CUDACC__
#define ASSAY_CALLED __noinline__
#else
#define ASSAY_CALLED __attribute__((noinline))
#endif

// How a block of threads covers a product of m rows: a task is kRows rows by kColumns columns, and
// the operands of so many rows and columns are staged together. Wide blocks of products (fp8) leave
// no registers for a second row.
struct ProductTasks {
  static constexpr int kColumns = 8;
  static constexpr int kGroupsMost = 8;  // of kColumns columns: bounds the memory
  int rows_per_task = 1;
  int row_tasks = 1;  // side by side
  int groups = 1;     // side by side, of kColumns columns each

  ASSAY_HD ProductTasks(const numerics::Arithmetic& arithmetic, int m, int threads) {
    rows_per_task = arithmetic.rule.products > 16 ? 1 : 2;
    const int all = (m + rows_per_task - 1) / rows_per_task;
    row_tasks = all < threads ? all : threads;
    if (row_tasks < 1) row_tasks = 1;
    groups = threads / row_tasks;
    if (groups > kGroupsMost) groups = kGroupsMost;
  }
  ASSAY_HD int rows() const { return row_tasks * rows_per_task; }
  ASSAY_HD int columns() const { return groups * kColumns; }
  // One operand more than a row has keeps threads that read rows below each other off one bank.
  ASSAY_HD static int row_pitch(const numerics::Arithmetic& arithmetic) {
    return arithmetic.rule.products + 1;
  }
  ASSAY_HD std::size_t stage_operands(const numerics::Arithmetic& arithmetic) const {
    return static_cast<std::size_t>((rows() + columns()) * row_pitch(arithmetic));
  }
};

// One result by the scalar path alone: for rules without blocks in integers, and single blocks of
// others.
template <class T>
ASSAY_HD ASSAY_CALLED F32 exact_chain(const numerics::Arithmetic& arithmetic, const T* a,
                                      const T* b, int k, F32 c) {
  for (int at = 0; at < k; at += arithmetic.k)
    c = numerics::instruction_dot(arithmetic, a + at, b + at, c);
  return c;
}
template <class T>
ASSAY_HD ASSAY_CALLED F32 exact_single_block(const numerics::Rule& rule, const T* a, const T* b,
                                             F32 c) {
  return numerics::exact_block(rule, a, b, c);
}

// The operands of one row's block: copies, which are registers, so that each is read once for both
// loops of block_dot() and b's for every row; or, where registers do not suffice, where they lie.
template <int kProducts, bool kCopies>
struct Operands {
  numerics::BlockOperand at[kProducts];
  ASSAY_HD explicit Operands(const numerics::BlockOperand* from) {
    ASSAY_UNROLL
    for (int l = 0; l < kProducts; ++l) at[l] = from[l];
  }
};
template <int kProducts>
struct Operands<kProducts, false> {
  const numerics::BlockOperand* at;
  ASSAY_HD explicit Operands(const numerics::BlockOperand* from) : at(from) {}
};

template <class Block>
class BlockExecutor {
 public:
  static constexpr bool kSettlesSkips = false;  // every tile is computed

  // `stage` holds ProductTasks::stage_operands() for every product of the unit.
  ASSAY_HD BlockExecutor(const Block& block, numerics::BlockOperand* stage)
      : block_(block), stage_(stage) {}

  template <class F>
  ASSAY_HD void rows(int count, const F& f) const {
    for (int i = block_.index(); i < count; i += block_.size()) f(i);
    block_.sync();
  }
  template <class F>
  ASSAY_HD void pieces(int count, int columns, const F& f) const {
    constexpr int kWidth = 8;
    const int in_row = (columns + kWidth - 1) / kWidth;
    for (int i = block_.index(); i < count * in_row; i += block_.size()) {
      const int begin = i % in_row * kWidth;
      f(i / in_row, begin, begin + kWidth < columns ? begin + kWidth : columns);
    }
    block_.sync();
  }
  template <class F>
  ASSAY_HD void once(const F& f) const {
    if (block_.index() == 0) f();
    block_.sync();
  }

  template <class T>
  ASSAY_HD void multiply(const UnitView& view, const numerics::MmaProblem<T>& mma) const {
    // The blocks of the architectures that profiles name; any other rule is slower, not refused.
    constexpr int kProducts = sizeof(T) == 1 ? 32 : 16;
    const numerics::Arithmetic& arithmetic = view.arithmetic;
    if (numerics::has_block_dot(arithmetic) && arithmetic.rule.products == kProducts)
      multiply_blocks<kProducts, sizeof(T) == 1 ? 1 : 2>(arithmetic, mma);
    else
      multiply_exactly(arithmetic, mma);
  }

  ASSAY_HD F32 maximum(const F32* row, int count, numerics::NanRule rule) const {
    if (count == 0) return kMinusInfinity;
    F32 best = numerics::max_of(row[0], row[0], rule);
    for (int j = 1; j < count; ++j) best = numerics::max_of(best, row[j], rule);
    return best;
  }
  ASSAY_HD void exponentials(const Argument& argument, bool flush, F32* scores, int count) const {
    for (int j = 0; j < count; ++j) scores[j] = exponential(argument, flush, scores[j]);
  }
  ASSAY_HD void narrow(Dtype, const F32* from, std::uint8_t* to, int count) const {
    for (int j = 0; j < count; ++j) to[j] = numerics::cvt_rn_satfinite_e4m3(from[j]).bits;
  }
  ASSAY_HD void narrow(Dtype dtype, const F32* from, std::uint16_t* to, int count) const {
    for (int j = 0; j < count; ++j)
      to[j] = dtype == Dtype::kF16 ? numerics::cvt_rn_f16_f32(from[j]).bits
                                   : numerics::cvt_rn_bf16_f32(from[j]).bits;
  }

 private:
  template <class T>
  ASSAY_HD void multiply_exactly(const numerics::Arithmetic& arithmetic,
                                 const numerics::MmaProblem<T>& p) const {
    for (int i = block_.index(); i < p.m * p.n; i += block_.size()) {
      const T* const a = p.a + std::int64_t{i / p.n} * p.k;
      const T* const b = p.b + std::int64_t{i % p.n} * p.k;
      p.d[i] = exact_chain(arithmetic, a, b, p.k, p.c == nullptr ? F32{0} : p.c[i]);
    }
    block_.sync();
  }

  // Tasks side by side, one a thread; all of them walk along k together, so that operands are
  // decoded once and shared. Sums stay in registers: the loops over a task are unrolled.
  template <int kProducts, int kRows, class T>
  ASSAY_HD ASSAY_CALLED void multiply_blocks(const numerics::Arithmetic& arithmetic,
                                             const numerics::MmaProblem<T>& p) const {
    constexpr int kColumns = ProductTasks::kColumns;
    constexpr int kPitch = kProducts + 1;
    const numerics::Rule& rule = arithmetic.rule;
    const ProductTasks tasks(arithmetic, p.m, block_.size());
    numerics::BlockOperand* const stage_a = stage_;
    numerics::BlockOperand* const stage_b = stage_ + tasks.rows() * kPitch;
    const int my_row = block_.index() % tasks.row_tasks * kRows;
    const int my_column = block_.index() / tasks.row_tasks * kColumns;
    for (int row0 = 0; row0 < p.m; row0 += tasks.rows()) {
      for (int column0 = 0; column0 < p.n; column0 += tasks.columns()) {
        const int row = row0 + my_row, column = column0 + my_column;
        const bool busy = my_column < tasks.columns() && row < p.m && column < p.n;
        F32 sums[kRows][kColumns];
        load<kRows>(p, busy, row, column, sums);
        for (int at = 0; at < p.k; at += kProducts) {
          stage_rows<kProducts>(rule, true, p.a, p.k, at, row0, p.m, tasks.rows(), stage_a);
          stage_rows<kProducts>(rule, false, p.b, p.k, at, column0, p.n, tasks.columns(), stage_b);
          block_.sync();
          if (busy)
            step<kProducts, kRows>(rule, p, row, column, at, stage_a + my_row * kPitch,
                                   stage_b + my_column * kPitch, sums);
          block_.sync();
        }
        store<kRows>(p, busy, row, column, sums);
      }
    }
    block_.sync();
  }

  // Operands [at, at + kProducts) of `count` rows from `first` on; rows that do not exist are
  // zeros.
  template <int kProducts, class T>
  ASSAY_HD void stage_rows(const numerics::Rule& rule, bool is_a, const T* matrix, int k, int at,
                           int first, int rows, int count, numerics::BlockOperand* to) const {
    for (int i = block_.index(); i < count * kProducts; i += block_.size()) {
      const int r = i / kProducts, l = i % kProducts;
      const std::uint32_t bits =
          first + r < rows ? matrix[std::int64_t{first + r} * k + at + l] : 0u;
      to[r * (kProducts + 1) + l] = numerics::block_operand(rule, is_a, bits);
    }
  }

  template <int kProducts, int kRows, class T>
  ASSAY_HD static void step(const numerics::Rule& rule, const numerics::MmaProblem<T>& p, int row,
                            int column, int at, const numerics::BlockOperand* a,
                            const numerics::BlockOperand* b,
                            F32 (&sums)[kRows][ProductTasks::kColumns]) {
    ASSAY_UNROLL
    for (int j = 0; j < ProductTasks::kColumns; ++j) {
      const Operands<kProducts, (kRows > 1)> of_b(b + j * (kProducts + 1));
      ASSAY_UNROLL
      for (int i = 0; i < kRows; ++i) {
        const Operands<kProducts, (kRows > 1)> of_a(a + i * (kProducts + 1));
        F32& sum = sums[i][j];
        const numerics::BlockResult result =
            numerics::block_dot<kProducts>(rule, of_a.at, of_b.at, sum);
        if (result.known) {
          sum = result.value;
        } else if (row + i < p.m && column + j < p.n) {
          sum = exact_single_block(rule, p.a + std::int64_t{row + i} * p.k + at,
                                   p.b + std::int64_t{column + j} * p.k + at, sum);
        }
      }
    }
  }

  template <int kRows, class T>
  ASSAY_HD static void load(const numerics::MmaProblem<T>& p, bool busy, int row, int column,
                            F32 (&sums)[kRows][ProductTasks::kColumns]) {
    ASSAY_UNROLL
    for (int i = 0; i < kRows; ++i) {
      ASSAY_UNROLL
      for (int j = 0; j < ProductTasks::kColumns; ++j) {
        const bool there = busy && p.c != nullptr && row + i < p.m && column + j < p.n;
        sums[i][j] = there ? p.c[std::int64_t{row + i} * p.n + column + j] : F32{0};
      }
    }
  }

  template <int kRows, class T>
  ASSAY_HD static void store(const numerics::MmaProblem<T>& p, bool busy, int row, int column,
                             const F32 (&sums)[kRows][ProductTasks::kColumns]) {
    ASSAY_UNROLL
    for (int i = 0; i < kRows; ++i) {
      ASSAY_UNROLL
      for (int j = 0; j < ProductTasks::kColumns; ++j)
        if (busy && row + i < p.m && column + j < p.n)
          p.d[std::int64_t{row + i} * p.n + column + j] = sums[i][j];
    }
  }

  const Block& block_;
  numerics::BlockOperand* stage_;
};

}  // namespace assay::attention
