// One unit, tile by tile: gather, scores, vote, P, products, merge of its pieces. Internal to the
// emulator. Decides the order of steps (SPEC ATT-5.1, ATT-5.4); nothing here depends on another
// unit. How a step is spread over threads is the executor's business, so that one text runs on a
// host thread (host_executor.hpp) and as a block of a GPU (block_executor.hpp) (SPEC ATT-5.10).
//
// An executor has
//   rows(count, f)             f(row) for every row, then a barrier
//   pieces(rows, columns, f)   f(row, begin, end) for pieces that cover every row, then a barrier
//   once(f)                    f() by one thread, then a barrier
//   multiply(view, mma)        d = c + a . b by the chain of matrix instructions, then a barrier
//   maximum, exponentials, narrow   loops over a part of a row, within one thread
//   kSettlesSkips, settles_skip     whether and how bounds on scores spare a skipped tile's product
// Between barriers a thread sees only what it wrote itself. Locals of run() and its callees outside
// the functions given to an executor are the same in all threads.
#pragma once

#include <cstring>

#include "model/attention/count_votes.hpp"
#include "model/attention/finish.hpp"
#include "model/numerics/tensor_core/tensor_core.hpp"

namespace assay::attention {

template <class T, class Executor>
class UnitRun {
 public:
  // All references must outlive this. The scratch is placed for layout.rows() and segments().
  ASSAY_HD UnitRun(const UnitView& view, const UnitLayout& layout, const UnitScratch<T>& scratch,
                   const UnitOutput& output, const Executor& executor)
      : v_(view),
        skip_(view.skip),
        soft_(view.soft),
        layout_(layout),
        s_(scratch),
        out_(output),
        exec_(executor),
        rows_(layout.rows()),
        tile_(view.tile.kv_tile) {}

  ASSAY_HD void run() {
    gather_queries();
    const int pieces = layout_.segments();
    int visits = 0;
    for (int i = 0; i < pieces; ++i) {
      run_segment(layout_.segment(i), i, visits);
      visits += layout_.segment(i).count();
    }
    const Finish<T> finish(v_, s_, rows_, pieces);
    const auto& out = out_;
    exec_.rows(layout_.valid_rows(),
               [&](int i) { out.lse[i] = finish.row(i, layout_.row(i).q_head); });
    exec_.pieces(layout_.valid_rows(), v_.v_dim, [&](int i, int begin, int end) {
      for (int d = begin; d < end; ++d)
        out.out[std::int64_t{i} * v_.v_dim + d] = finish.element(i, d);
    });
  }

 private:
  // Elements [begin, end) of the row wanted, of which the tensor's columns are [first, first +
  // dim), to places `stride` apart; zeros where there is no row (SPEC ATT-2.3).
  ASSAY_HD void copy_part(const Rows& rows, int head, std::int64_t i, bool exists, int first,
                          int dim, int begin, int end, T* to, int stride = 1) const {
    const int from = begin < first ? first : begin;
    const int until = end < first + dim ? end : first + dim;
    if (from >= until) return;
    const std::byte* const row = exists ? rows.row(head, i, static_cast<int>(sizeof(T))) : nullptr;
    T* place = to + std::int64_t{from - begin} * stride;
    for (int d = from; d < until; ++d, place += stride) {
      if (row == nullptr) {
        *place = T{0};
        continue;
      }
#ifdef __CUDA_ARCH__
      *place = reinterpret_cast<const T*>(row)[d - first];
#else
      // A mapped file need not be aligned.
      std::memcpy(place, row + static_cast<std::size_t>(d - first) * sizeof(T), sizeof(T));
#endif
    }
  }

  ASSAY_HD void gather_queries() {
    exec_.pieces(rows_, v_.head_dim, [&](int i, int begin, int end) {
      const UnitLayout::Row row = layout_.row(i);
      const bool exists = row.valid || skip_.padding_fill != PaddingFill::kZero;
      copy_part(v_.q, row.q_head, row.token, exists, 0, v_.head_dim, begin, end,
                s_.q + std::int64_t{i} * v_.head_dim + begin);
    });
  }

  ASSAY_HD bool key_exists(std::int32_t key) const {
    return key < v_.kv_len || skip_.padding_fill != PaddingFill::kZero;
  }

  // The row that is loaded for a key: beyond the last used page, that page's again (SPEC ATT-2.3).
  ASSAY_HD std::int64_t row_of_key(const Rows& rows, std::int32_t key) const {
    if (skip_.padding_fill != PaddingFill::kLastPage || rows.block_table == nullptr ||
        key < v_.kv_len)
      return key;
    const std::int64_t page = key / rows.page_rows;
    const std::int64_t last = v_.kv_len == 0 ? 0 : (v_.kv_len - 1) / rows.page_rows;
    return (page < last ? page : last) * rows.page_rows + key % rows.page_rows;
  }

  ASSAY_HD void copy_key_part(const Rows& rows, std::int32_t key, int first, int dim, int begin,
                              int end, T* to, int stride = 1) const {
    copy_part(rows, layout_.kv_head(), row_of_key(rows, key), key_exists(key), first, dim, begin,
              end, to, stride);
  }

  ASSAY_HD void gather_keys(std::int32_t tile_index) {
    exec_.pieces(tile_, v_.head_dim, [&](int j, int begin, int end) {
      const std::int32_t key = tile_index * tile_ + j;
      const int main_dim = v_.head_dim - v_.rope_dim;
      T* const to = s_.k + std::int64_t{j} * v_.head_dim + begin;
      copy_key_part(v_.k, key, 0, main_dim, begin, end, to);
      copy_key_part(v_.k_rope, key, main_dim, v_.rope_dim, begin, end, to);
    });
  }

  // S = Q K^T by the chain of matrix instructions over head_dim.
  ASSAY_HD void compute_scores(std::int32_t tile_index) {
    numerics::MmaProblem<T> mma;
    mma.m = rows_;
    mma.n = tile_;
    mma.k = v_.head_dim;
    mma.a = s_.q;
    mma.b = s_.k;
    mma.d = s_.scores;
    exec_.multiply(v_, mma);
    exec_.pieces(rows_, tile_, [&](int i, int begin, int end) {
      scale_and_mask(i, tile_index * tile_, begin, end);
    });
  }

  ASSAY_HD F32* score_row(int i) const { return s_.scores + std::int64_t{i} * tile_; }

  // Scale, cap, bias, then the mask (SPEC ATT-5.1).
  ASSAY_HD void scale_and_mask(int i, std::int32_t first_key, int begin, int end) {
    const UnitLayout::Row row = layout_.row(i);
    const Fp fp{soft_.flush};
    F32* const s = score_row(i);
    if (soft_.unit != ScoreUnit::kRaw) {
      const F32 factor = soft_.unit == ScoreUnit::kNatural ? v_.scale.natural : v_.scale.log2;
      for (int j = begin; j < end; ++j) s[j] = fp.mul(s[j], factor);
    }
    if (v_.softcap > 0) {
      const F32 cap = numerics::from_float(v_.softcap);
      for (int j = begin; j < end; ++j) s[j] = fp.mul(cap, numerics::tanh_approx(s[j]));
    }
    if (v_.alibi_slopes != nullptr) {
      const F32 slope = numerics::from_float(v_.alibi_slopes[row.q_head]);
      for (int j = begin; j < end; ++j)
        s[j] = fp.fma(numerics::from_float(static_cast<float>(first_key + j)), slope, s[j]);
    }
    // Seen are columns [low, high) of the tile.
    const int low = row.keys.empty() ? end : clamped(row.keys.begin - first_key, begin, end);
    const int high = row.keys.empty() ? end : clamped(row.keys.end - first_key, low, end);
    for (int j = begin; j < low; ++j) s[j] = skip_.fill;
    for (int j = high; j < end; ++j) s[j] = skip_.fill;
    if (v_.custom_mask == nullptr) return;
    for (int j = low; j < high; ++j)
      if (!row.valid || !custom_sees(row.token, first_key + j)) s[j] = skip_.fill;
  }
  ASSAY_HD static int clamped(int x, int low, int high) {
    return x < low ? low : x > high ? high : x;
  }
  ASSAY_HD bool custom_sees(std::int32_t token, std::int32_t key) const {
    if (!visible_keys(v_.mask, token, v_.kv_len).contains(key)) return false;
    return v_.custom_mask[std::int64_t{token} * v_.kv_len + key] != 0;
  }

  ASSAY_HD bool guards_empty_rows() const {
    return soft_.empty == EmptyGuard::kAlways ||
           (soft_.empty == EmptyGuard::kWindowed &&
            (v_.mask.kind == MaskKind::kWindow || v_.mask.kind == MaskKind::kChunked ||
             v_.custom_mask != nullptr));
  }

  // Every voting row by itself, then all together.
  ASSAY_HD void vote(std::int32_t tile_index, const RowState* states, bool asked,
                     TileRecord& record) {
    exec_.rows(rows_, [&](int i) {
      s_.local[i] = exec_.maximum(score_row(i), tile_, soft_.max_nan);
      if (asked) s_.votes[i] = vote_of(s_.local[i], states[i].running_max);
    });
    exec_.once([&] {
      TileRecord trace;
      trace.tile = tile_index;
      trace.asked = asked;
      trace.decision = Decision::kKept;
      if (asked) {
        count_votes(skip_, s_.votes, s_.local, rows_, trace);
        force(trace);
      }
      record = trace;
    });
  }
  // True, and the record written, if bounds make certain that the tile is skipped (SPEC ATT-5.11).
  // That is so only where a skipped tile leaves nothing but its record.
  ASSAY_HD bool settles_skip(std::int32_t tile_index, const RowState* states,
                             TileRecord& record) const {
    if constexpr (Executor::kSettlesSkips) {
      if (skip_.max_on_skip != MaxOnSkip::kKeep || skip_.zeroing_rows != 0) return false;
      if (v_.softcap > 0 || v_.alibi_slopes != nullptr || v_.custom_mask != nullptr) return false;
      if (v_.forced_count != 0 || !all_see(tile_index)) return false;
      const F32 factor = soft_.unit == ScoreUnit::kRaw       ? kOne
                         : soft_.unit == ScoreUnit::kNatural ? v_.scale.natural
                                                             : v_.scale.log2;
      TileRecord trace;
      trace.tile = tile_index;
      trace.asked = true;
      trace.decision = Decision::kSkipped;
      const auto vote = [&](F32 l, F32 g) { return vote_of(l, g); };
      if (!exec_.settles_skip(v_, s_, rows_, states, factor, vote, trace)) return false;
      record = trace;
      return true;
    }
    return false;
  }
  ASSAY_HD bool all_see(std::int32_t tile_index) const {
    for (int i = 0; i < rows_; ++i) {
      const Range keys = layout_.row(i).keys;
      if (keys.begin > tile_index * tile_ || keys.end < (tile_index + 1) * tile_) return false;
    }
    return rows_ > 0;
  }

  ASSAY_HD RowVote vote_of(F32 l, F32 g) const {
    if (skip_.reference == Reference::kInclusive) g = numerics::max_of(l, g, soft_.max_nan);
    RowVote vote;
    vote.reference = g;
    vote.may_skip = row_may_skip(skip_, v_.lambda, v_.scale, l, g, soft_.flush);
    vote.margin = row_margin(v_.lambda, v_.scale, l, g);
    // Within this a margin is a near-tie (SPEC ATT-5.6).
    vote.near_tie = absolute(vote.margin) <= tie_width(v_.lambda, v_.scale, l, g) + v_.slack_log2;
    return vote;
  }
  ASSAY_HD void force(TileRecord& trace) const {
    for (int i = 0; i < v_.forced_count; ++i) {  // SPEC ATT-5.9
      if (v_.forced[i].tile != trace.tile) continue;
      trace.decision = v_.forced[i].skip ? Decision::kSkipped : Decision::kKept;
      trace.zeroed[0] = trace.zeroed[1] = 0;
    }
  }

  ASSAY_HD F32 new_maximum(F32 local, F32 old) const {
    return attention::new_maximum(skip_, soft_, v_.scale, local, old);
  }

  // The new maximum of a row and what follows from it (SPEC ATT-4.7, ATT-5.2).
  ASSAY_HD RowStep step_of(F32 local, const RowState& state, bool zeroed, bool first) const {
    RowStep step;
    step.zeroed = zeroed;
    step.max = state.max;
    step.correction = kOne;
    if (zeroed) return step;
    const F32 c = v_.scale.exponent;
    const bool saw_nothing = first && state.running_max.bits == kMinusInfinity.bits;
    step.max = saw_nothing ? local : new_maximum(local, state.running_max);
    const bool guarded = guards_empty_rows();
    const bool empty = guarded && step.max.bits == skip_.fill.bits;
    const F32 scaled = scaled_maximum(soft_, step.max, c, skip_.fill, guarded);
    step.argument = argument_of(soft_, empty ? F32{0} : step.max, scaled, c);
    step.correction = correction_of(soft_, state.max, step.max, c, skip_.fill, guarded);
    return step;
  }

  // P of all rows, their sums, and P in the inputs' type.
  ASSAY_HD void soften(const TileRecord& record, bool first, RowState* states) {
    const bool partly = record.decision == Decision::kPartlyZeroed;
    exec_.rows(rows_, [&](int i) {
      const bool zeroed = partly && record.zeroes(i / skip_.zeroing_rows);
      s_.steps[i] = step_of(s_.local[i], states[i], zeroed, first);
    });
    exec_.pieces(rows_, tile_, [&](int i, int begin, int end) {
      const RowStep& step = s_.steps[i];
      F32* const s = score_row(i);
      if (!step.zeroed)
        exec_.exponentials(step.argument, soft_.flush, s + begin, end - begin);
      else
        for (int j = begin; j < end; ++j) s[j] = F32{0};
    });
    exec_.rows(rows_, [&](int i) {
      add_to_sums(soft_, score_row(i), tile_, s_.steps[i].correction, first, states[i]);
      if (s_.steps[i].zeroed) return;
      states[i].max = s_.steps[i].max;
      states[i].running_max = s_.steps[i].max;
    });
    const bool multiplied = soft_.p_multiplier.bits != kOne.bits;
    exec_.pieces(rows_, tile_, [&](int i, int begin, int end) {
      const Fp fp{soft_.flush};
      F32* const s = score_row(i);
      if (multiplied && !s_.steps[i].zeroed)
        for (int j = begin; j < end; ++j) s[j] = fp.mul(s[j], soft_.p_multiplier);
      exec_.narrow(v_.dtype, s + begin, s_.p + std::int64_t{i} * tile_ + begin, end - begin);
    });
  }

  ASSAY_HD void gather_values(std::int32_t tile_index) {
    exec_.pieces(tile_, v_.v_dim, [&](int j, int begin, int end) {
      const std::int32_t key = tile_index * tile_ + j;
      copy_key_part(v_.v, key, 0, v_.v_dim, begin, end, s_.v_t + std::int64_t{begin} * tile_ + j,
                    tile_);
    });
  }

  // O = O * correction + P V, by the chain over the tile's keys, or with the product apart.
  ASSAY_HD void accumulate(bool started, F32* o) {
    numerics::MmaProblem<T> mma;
    mma.m = rows_;
    mma.n = v_.v_dim;
    mma.k = tile_;
    mma.a = s_.p;
    mma.b = s_.v_t;
    const bool apart = soft_.promote && started;
    mma.d = apart ? s_.product : o;
    if (started && !apart) {
      correct(o);
      mma.c = o;
    }
    exec_.multiply(v_, mma);
    if (!apart) return;
    exec_.pieces(rows_, v_.v_dim, [&](int i, int begin, int end) {
      const Fp fp{soft_.flush};
      const std::int64_t row = std::int64_t{i} * v_.v_dim;
      for (int d = begin; d < end; ++d)
        o[row + d] = fp.fma(o[row + d], s_.steps[i].correction, s_.product[row + d]);
    });
  }

  ASSAY_HD void correct(F32* o) {
    exec_.pieces(rows_, v_.v_dim, [&](int i, int begin, int end) {
      // A product with 1 changes nothing but what flushing would; the instruction's NaN is
      // canonical.
      const F32 correction = s_.steps[i].correction;
      if (correction.bits == kOne.bits && !soft_.correction_flushes) return;
      for (int d = begin; d < end; ++d) {
        F32& x = o[std::int64_t{i} * v_.v_dim + d];
        x = numerics::mul_rn(x, correction, soft_.correction_flushes);
      }
    });
  }

  ASSAY_HD void run_segment(const Segment& segment, int piece, int first_visit) {
    RowState* const states = s_.states + std::int64_t{piece} * rows_;
    F32* const o = s_.o + std::int64_t{piece} * rows_ * v_.v_dim;
    exec_.rows(rows_, [&](int i) {
      states[i] = RowState{};
      states[i].max = skip_.initial_max;
      states[i].running_max = skip_.initial_max;
    });
    exec_.pieces(rows_, v_.v_dim, [&](int i, int begin, int end) {
      for (int d = begin; d < end; ++d) o[std::int64_t{i} * v_.v_dim + d] = F32{0};
    });
    bool started = false;
    const int count = segment.count();
    for (int n = 0; n < count; ++n) {
      const int at = skip_.backward ? count - 1 - n : n;
      const std::int32_t tile_index = segment.begin + at * segment.step;
      const bool asked = v_.lambda.enabled && n >= skip_.kept_first;
      TileRecord& record = out_.tiles[first_visit + n];
      gather_keys(tile_index);
      if (asked && settles_skip(tile_index, states, record)) continue;
      compute_scores(tile_index);
      vote(tile_index, states, asked, record);
      if (record.decision == Decision::kSkipped) {
        if (skip_.max_on_skip == MaxOnSkip::kRaise)
          exec_.rows(rows_, [&](int i) {
            states[i].running_max = new_maximum(s_.local[i], states[i].running_max);
          });
        continue;
      }
      soften(record, !started, states);
      gather_values(tile_index);
      accumulate(started, o);
      started = true;
    }
    exec_.once([&] { s_.started[piece] = started ? 1 : 0; });
  }

  const UnitView& v_;
  const SkipRule& skip_;
  const Softmax& soft_;
  const UnitLayout& layout_;
  const UnitScratch<T>& s_;
  const UnitOutput& out_;
  const Executor& exec_;
  int rows_, tile_;
};

}  // namespace assay::attention
