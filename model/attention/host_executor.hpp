// A unit's steps on one thread of the host: rows in loops, whole rows on the machine's vectors. The
// bits are those of the scalar functions (SPEC ATT-5.8). Decides nothing. Serves one unit.
#pragma once

#include "model/attention/rows_simd.hpp"
#include "model/attention/score_bounds.hpp"
#include "model/attention/unit_run.hpp"
#include "model/core/contract.hpp"
#include "model/numerics/bulk.hpp"
#include "model/numerics/special/special.hpp"

namespace assay::attention {

class HostExecutor {
 public:
  static constexpr bool kSettlesSkips = true;

  template <class F>
  void rows(int count, const F& f) const {
    for (int i = 0; i < count; ++i) f(i);
  }
  template <class F>
  void pieces(int count, int columns, const F& f) const {
    for (int i = 0; i < count; ++i) f(i, 0, columns);
  }
  template <class F>
  void once(const F& f) const {
    f();
  }
  template <class T>
  void multiply(const UnitView& view, const numerics::MmaProblem<T>& mma) const {
    if (mma.m == 0) return;
    const Status done = numerics::mma(*view.instruction, mma);
    CONTRACT(done.has_value(), done ? "" : done.error().sentence);
  }
  F32 maximum(const F32* row, int count, numerics::NanRule rule) const {
    return row_maximum({row, static_cast<std::size_t>(count)}, rule);
  }
  void exponentials(const Argument& argument, bool flush, F32* scores, int count) const {
    const std::span<F32> s(scores, static_cast<std::size_t>(count));
    exponent_arguments(argument.form, s, argument.factor, argument.addend, flush, s);
    numerics::mufu(numerics::Mufu::kEx2, s, s);
  }
  void narrow(Dtype, const F32* from, std::uint8_t* to, int count) const {
    const auto n = static_cast<std::size_t>(count);
    numerics::narrow_row({from, n}, std::span<E4m3>(reinterpret_cast<E4m3*>(to), n));
  }
  void narrow(Dtype dtype, const F32* from, std::uint16_t* to, int count) const {
    const auto n = static_cast<std::size_t>(count);
    if (dtype == Dtype::kF16)
      numerics::narrow_row({from, n}, std::span<F16>(reinterpret_cast<F16*>(to), n));
    else
      numerics::narrow_row({from, n}, std::span<Bf16>(reinterpret_cast<Bf16*>(to), n));
  }

  // The record of a skipped tile by bounds on its scores (SPEC ATT-5.11); false: compute it.
  template <class Vote>
  bool settles_skip(const UnitView& view, const UnitScratch<std::uint16_t>& scratch, int rows,
                    const RowState* states, F32 factor, const Vote& vote,
                    TileRecord& record) const {
    if (!ScoreBounds::apply(view)) return false;
    if (!bounds_.worth_a_look()) {
      bounds_.wait();
      return false;
    }
    const ScoreBounds::Settled settled = bounds_.settle(view, scratch, rows, states, factor);
    if (settled.row < 0) return false;
    const RowVote least = vote(settled.local, states[settled.row].max);
    if (!least.may_skip) return false;
    record.row = settled.row;
    record.local_max = settled.local;
    record.running_max = least.reference;
    record.margin_log2 = static_cast<float>(least.margin);
    record.near_tie = least.near_tie;
    return true;
  }
  template <class Vote>
  bool settles_skip(const UnitView&, const UnitScratch<std::uint8_t>&, int, const RowState*, F32,
                    const Vote&, TileRecord&) const {
    return false;  // fp8 sums keep too few bits to be bounded well
  }
  std::int64_t settled() const { return bounds_.settled(); }

 private:
  mutable ScoreBounds bounds_;
};

}  // namespace assay::attention
