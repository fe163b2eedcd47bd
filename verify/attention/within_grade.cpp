// See within_grade.hpp.
#include "verify/attention/within_grade.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/attention/parallel.hpp"
#include "model/numerics/convert.hpp"
#include "verify/attention/ties.hpp"

namespace assay::verify {

using namespace assay::attention;

namespace {

// A tanh.approx of the soft cap is good to 2^-10.9 of the cap.
constexpr double kTanhError = 0x1p-10;

class Weaker {
 public:
  Weaker(const Emulator& emulator, const Given& given, int threads)
      : emulator_(emulator),
        p_(given.problem()),
        given_(given),
        threads_(threads),
        has_mask_(given.outputs().decision != nullptr) {}

  WithinGrade run() {
    const std::size_t units = emulator_.units().size();
    outcomes_.resize(units);
    each_unit([&](std::size_t i) { outcomes_[i].tiles = emulator_.run(unit(i)).tiles; });
    for (const TieOutcome& outcome : outcomes_) count_tiles(outcome.tiles, result_.counters);
    solve();
    find_slack();
    if (has_mask_) {
      each_unit([&](std::size_t i) {
        outcomes_[i] = follow_mask(emulator_, given_, unit(i),
                                   {OutputParts{false, false, true}, slack_[i], false});
      });
      for (TieOutcome& outcome : outcomes_)
        result_.ties.insert(result_.ties.end(), outcome.ties.begin(), outcome.ties.end());
      if (!result_.ties.empty()) solve();
    }
    for (const TieOutcome& outcome : outcomes_) result_.differences.push_back(outcome.difference);
    judge_rows();
    add_notes();
    return std::move(result_);
  }

 private:
  const Unit& unit(std::size_t i) const { return emulator_.units()[i]; }

  template <class Work>
  void each_unit(const Work& work) {
    parallel_for(static_cast<std::int64_t>(outcomes_.size()), threads_,
                 [&](std::int64_t i, int) { work(static_cast<std::size_t>(i)); });
  }

  // Truth over what the outcomes kept.
  void solve() {
    const Resolved& r = emulator_.resolved();
    std::vector<std::vector<const TileTrace*>> by_tile(outcomes_.size());
    for (std::size_t i = 0; i < outcomes_.size(); ++i) {
      for (const TileTrace& tile : outcomes_[i].tiles) {
        const auto at = static_cast<std::size_t>(tile.tile);
        if (by_tile[i].size() <= at) by_tile[i].resize(at + 1, nullptr);
        by_tile[i][at] = &tile;
      }
    }
    const Kept kept = [&](std::size_t request, int q_head, std::int32_t row, std::int32_t key) {
      const auto& tiles = by_tile[emulator_.unit_of(request, q_head, row)];
      const auto at = static_cast<std::size_t>(key / r.tile.kv_tile);
      const TileTrace* const tile = at < tiles.size() ? tiles[at] : nullptr;
      if (tile == nullptr) return false;
      if (tile->decision != Decision::kPartlyZeroed) return tile->decision == Decision::kKept;
      const int in_unit = emulator_.packed_row_of(q_head, row) % r.tile.unit_rows;
      return !tile->zeroed.test(static_cast<std::size_t>(in_unit / r.skip.zeroing_rows));
    };
    auto solved = truth(p_, kept);
    CONTRACT(solved.has_value(), "the emulator has checked the problem");
    truth_ = *std::move(solved);
  }

  // Biases add to what is rounded.
  TruthRow with_biases(const TruthRow& row, const Request& request, int head) const {
    TruthRow all = row;
    if (!p_.alibi_slopes.empty())
      all.score_magnitude +=
          std::abs(static_cast<double>(p_.alibi_slopes[static_cast<std::size_t>(head)])) *
          request.kv_len;
    return all;
  }

  // How far a difference of two maxima may be off, in log2 units, at most among a unit's rows.
  void find_slack() {
    slack_.assign(outcomes_.size(), 0);
    for (std::size_t i = 0; i < truth_.rows.size(); ++i) {
      const Given::Row at = given_.row_at(i);
      const TruthRow row = with_biases(truth_.rows[i], p_.requests[at.request], at.head);
      const double error =
          score_bound(emulator_.resolved(), p_, row) + static_cast<double>(p_.softcap) * kTanhError;
      double& slack = slack_[unit_at(at)];
      slack = std::max(slack, 2 * error * 1.4426950408889634);
    }
  }

  std::size_t unit_at(const Given::Row& at) const {
    return emulator_.unit_of(at.request, at.head, static_cast<std::int32_t>(at.row));
  }

  // Asked once a unit, if at all.
  bool may_differ(std::size_t unit_index) {
    std::optional<bool>& known = may_differ_[unit_index];
    if (known) return *known;
    const UnitResult wide = emulator_.run(unit(unit_index), {{}, slack_[unit_index]});
    known = std::any_of(wide.tiles.begin(), wide.tiles.end(),
                        [](const TileTrace& tile) { return tile.asked && tile.near_tie; });
    return *known;
  }

  void judge_rows() {
    may_differ_.resize(outcomes_.size());
    const auto dim = static_cast<std::size_t>(p_.v_dim);
    for (std::size_t i = 0; i < truth_.rows.size(); ++i) {
      const Given::Row at = given_.row_at(i);
      const std::size_t in = unit_at(at);
      const TieOutcome& outcome = outcomes_[in];
      if (outcome.difference.any() || outcome.cut) continue;
      const TruthRow row = with_biases(truth_.rows[i], p_.requests[at.request], at.head);
      if (!std::isfinite(row.score_magnitude) || !std::isfinite(row.v_max) || !finite_truth(i)) {
        ++not_finite_;
        continue;
      }
      if (!std::isfinite(row.lse_ln)) {
        ++nothing_kept_;
        continue;
      }
      const auto kept = std::count_if(outcome.tiles.begin(), outcome.tiles.end(), [](auto& tile) {
        return tile.decision != Decision::kSkipped;
      });
      const double bound = bound_of(row, static_cast<int>(kept));
      if (says_nothing(row, bound)) {
        note_too_large(row, static_cast<int>(kept));
        continue;
      }
      std::int64_t wrong = 0;
      Mismatch found;
      for (std::size_t d = 0; d < dim; ++d)
        if (beyond(i * dim + d, bound) && wrong++ == 0) found = mismatch(at, i * dim + d, bound);
      if (wrong > 0 && !has_mask_ && may_differ(in)) {
        ++uncertain_;
        continue;
      }
      result_.elements += p_.v_dim;
      if (wrong == 0) continue;
      if (!result_.out) result_.out = std::move(found), result_.out->wrong = 0;
      result_.out->wrong += wrong;
    }
    if (result_.out) result_.out->total = result_.elements;
  }

  // A NaN among the values is in no maximum of them, but in the sums.
  bool finite_truth(std::size_t row) const {
    const auto dim = static_cast<std::ptrdiff_t>(p_.v_dim);
    const auto begin = truth_.out.begin() + static_cast<std::ptrdiff_t>(row) * dim;
    return std::all_of(begin, begin + dim, [](double x) { return std::isfinite(x); });
  }

  double bound_of(const TruthRow& row, int kept) const {
    return arithmetic_bound(emulator_.resolved(), p_, row, kept) +
           2 * std::expm1(2 * static_cast<double>(p_.softcap) * kTanhError) * row.v_max;
  }

  // Outputs are means of values: a bound as wide as those lie apart lets everything pass (SPEC
  // VER-21.13).
  static bool says_nothing(const TruthRow& row, double bound) {
    return row.v_max > 0 && !(bound < 2 * row.v_max);
  }

  // Halves the scale until the row could be judged. From the largest scale to the smallest, 2^126
  // to 2^-126 (SPEC ATT-2.1), it is 252 halvings.
  void note_too_large(TruthRow row, int kept) {
    constexpr int kHalvingsMax = 252;
    ++too_large_rows_;
    ScoresTooLarge found{row.score_magnitude, 0};
    for (int i = 1; i <= kHalvingsMax && found.scale_limit == 0; ++i) {
      row.score_magnitude /= 2;
      if (!says_nothing(row, bound_of(row, kept)))
        found.scale_limit = std::ldexp(static_cast<double>(p_.scale), -i);
    }
    if (!result_.too_large) result_.too_large = found;
    result_.too_large->largest = std::max(result_.too_large->largest, found.largest);
    result_.too_large->scale_limit = std::max(result_.too_large->scale_limit, found.scale_limit);
  }

  double widened(std::uint16_t bits) const {
    const F32 wide =
        p_.out_dtype == Dtype::kF16 ? numerics::widen(F16{bits}) : numerics::widen(Bf16{bits});
    return static_cast<double>(numerics::to_float(wide));
  }

  bool beyond(std::size_t element, double bound) const {
    const double got = widened(given_.outputs().out[element]);
    return !(std::abs(got - truth_.out[element]) <= bound);
  }

  Mismatch mismatch(const Given::Row& at, std::size_t element, double bound) const {
    Mismatch m;
    m.check = "attention.out";
    m.clause = "ATT-3.6";
    m.unit = "elements";
    m.where = {
        {"request", static_cast<std::int64_t>(at.request)},
        {"row", at.row},
        {"head", at.head},
        {"element", static_cast<std::int64_t>(element % static_cast<std::size_t>(p_.v_dim))}};
    const F32 truth = numerics::from_float(static_cast<float>(truth_.out[element]));
    const std::uint16_t expected = p_.out_dtype == Dtype::kF16
                                       ? numerics::cvt_rn_f16_f32(truth).bits
                                       : numerics::cvt_rn_bf16_f32(truth).bits;
    m.values = Values{given_.format(), given_.outputs().out[element], expected};
    m.sentence = fmt::format(
        "out is farther from the fp64 truth over the kept keys ({:.6g}) than {:.3g}, the bound of "
        "the profile's arithmetic",
        truth_.out[element], bound);
    return m;
  }

  void add_notes() {
    std::int64_t cut = 0, wrong = 0;
    for (const TieOutcome& outcome : outcomes_) {
      cut += outcome.cut;
      wrong += outcome.difference.any();
    }
    if (cut > 0)
      result_.notes.push_back(fmt::format(
          "{} units not judged behind a near-tie of groups that write zeros for themselves", cut));
    if (wrong > 0)
      result_.notes.push_back(
          fmt::format("out of {} units with wrong decisions not judged", wrong));
    if (nothing_kept_ > 0)
      result_.notes.push_back(
          fmt::format("{} rows not judged: nothing was kept for them", nothing_kept_));
    if (not_finite_ > 0)
      result_.notes.push_back(
          fmt::format("{} rows not judged: their scores or values are not finite", not_finite_));
    if (too_large_rows_ > 0)
      result_.notes.push_back(fmt::format(
          "{} rows not judged: with scores up to {:.3g}, the bound is as wide as the values",
          too_large_rows_, result_.too_large->largest));
    if (uncertain_ > 0)
      result_.notes.push_back(fmt::format(
          "{} rows not judged: beyond the bound, with a near-tie that may have gone the other way",
          uncertain_));
  }

  const Emulator& emulator_;
  const Problem& p_;
  const Given& given_;
  const int threads_;
  const bool has_mask_;
  std::vector<TieOutcome> outcomes_;             // [units]
  std::vector<double> slack_;                    // [units]
  std::vector<std::optional<bool>> may_differ_;  // [units]
  Truth truth_;
  std::int64_t nothing_kept_ = 0, not_finite_ = 0, too_large_rows_ = 0, uncertain_ = 0;  // rows
  WithinGrade result_;
};

}  // namespace

WithinGrade within_grade(const Emulator& emulator, const Given& given, int threads) {
  return Weaker(emulator, given, threads).run();
}

}  // namespace assay::verify
