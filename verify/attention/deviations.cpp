// Rules about decisions and arithmetic, one function a group; the order is that of a report. See
// deviations.hpp.
#include "verify/attention/deviations.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "verify/attention/deviation_rules.hpp"

namespace assay::verify {
namespace deviation {
namespace {

// --- who is asked, and how -----------------------------------------------------------------------

void lambda_rules(Rules& rules) {
  const SkipRule& own = rules.skip();
  constexpr std::array<std::pair<LambdaLength, const char*>, 3> kLengths = {{
      {LambdaLength::kRequest, "lambda by each request's own kv_len"},
      {LambdaLength::kBatchMax, "lambda by the longest kv_len of the batch"},
      {LambdaLength::kNone, "lambda is the factor itself, not divided by a length"},
  }};
  for (const auto& [length, sentence] : kLengths) {
    if (length != own.lambda_length)
      rules.skip_rule(sentence, [l = length](SkipRule& s) { s.lambda_length = l; });
  }
  constexpr std::array<std::pair<LambdaAboveOne, const char*>, 3> kAbove = {{
      {LambdaAboveOne::kAllow, "lambda above 1 is used as it is"},
      {LambdaAboveOne::kDense, "lambda above 1 turns skipping off"},
      {LambdaAboveOne::kClamp, "lambda above 1 counts as 1"},
  }};
  for (const auto& [above, sentence] : kAbove) {
    if (above != own.above_one)
      rules.skip_rule(sentence, [a = above](SkipRule& s) { s.above_one = a; });
  }
  rules.skip_rule(own.quotient == Quotient::kIeee ? "lambda by rcp.approx and a product"
                                                  : "lambda by a correctly rounded division",
                  [](SkipRule& s) {
                    s.quotient =
                        s.quotient == Quotient::kIeee ? Quotient::kApprox : Quotient::kIeee;
                  });
  rules.skip_rule(
      own.logarithm == Logarithm::kRounded ? "the logarithm of lambda by lg2.approx"
                                           : "the logarithm of lambda correctly rounded",
      [](SkipRule& s) {
        s.logarithm = s.logarithm == Logarithm::kRounded ? Logarithm::kApprox : Logarithm::kRounded;
      });
}

void compare_rules(Rules& rules) {
  const SkipRule& own = rules.skip();
  rules.skip_rule(own.strict ? "tiles are skipped with <= rather than <"
                             : "tiles are skipped with < rather than <=",
                  [](SkipRule& s) { s.strict = !s.strict; });
  rules.skip_rule(own.reference == Reference::kExclusive
                      ? "the tile's own maximum is in the running maximum that it is compared with"
                      : "the running maximum of a comparison does not know the tile yet",
                  [](SkipRule& s) {
                    s.reference = s.reference == Reference::kExclusive ? Reference::kInclusive
                                                                       : Reference::kExclusive;
                  });
  // Forms of the same unit of scores; of another they would not be comparisons.
  struct Form {
    ScoreUnit unit;
    Compare compare;
    const char* text;
  };
  constexpr std::array<Form, 7> kForms = {{
      {ScoreUnit::kRaw, Compare::kExp2, "ex2((l - g) * scale) against lambda"},
      {ScoreUnit::kRaw, Compare::kScaledLog2, "l * scale - g * scale against log2(lambda)"},
      {ScoreUnit::kRaw, Compare::kAddedRaw, "l against g + log2(lambda) / scale"},
      {ScoreUnit::kNatural, Compare::kExp, "exp(l - g) against lambda"},
      {ScoreUnit::kNatural, Compare::kDifference, "l - g against ln(lambda)"},
      {ScoreUnit::kLog2, Compare::kDifference, "l - g against log2(lambda)"},
      {ScoreUnit::kLog2, Compare::kAddedLog2, "l against g + log2(lambda)"},
  }};
  for (const Form& form : kForms) {
    if (form.unit == rules.softmax().unit && form.compare != own.compare)
      rules.skip_rule(fmt::format("the comparison is {}", form.text),
                      [&](SkipRule& s) { s.compare = form.compare; });
  }
}

void vote_rules(Rules& rules) {
  const SkipRule& own = rules.skip();
  rules.skip_rule(
      own.max_on_skip == MaxOnSkip::kKeep ? "a skipped tile raises the running maximum all the same"
                                          : "a skipped tile leaves the running maximum alone",
      [](SkipRule& s) {
        s.max_on_skip = s.max_on_skip == MaxOnSkip::kKeep ? MaxOnSkip::kRaise : MaxOnSkip::kKeep;
      });
  for (const int kept : {0, 1, 2}) {
    if (kept == own.kept_first) continue;
    rules.skip_rule(kept == 0 ? "the first visited tile is skippable"
                              : fmt::format("the first {} visited {} kept unasked", kept,
                                            kept == 1 ? "tile is" : "tiles are"),
                    [kept](SkipRule& s) { s.kept_first = kept; });
  }
  // Where -inf stands for nothing yet, only a tile that is compared with itself can be skipped
  // first.
  rules.skip_rule("the first visited tile is skippable, compared with its own maximum",
                  [](SkipRule& s) {
                    s.kept_first = 0;
                    s.reference = Reference::kInclusive;
                    s.max_on_skip = MaxOnSkip::kRaise;
                  });
  struct Padding {
    PaddingRows rows;
    PaddingFill fill;
    const char* text;
  };
  constexpr std::array<Padding, 5> kPaddings = {{
      {PaddingRows::kVote, PaddingFill::kZero, "rows beyond q_len vote, as rows of zeros"},
      {PaddingRows::kVote, PaddingFill::kNeighbour,
       "rows beyond q_len vote, with what lies behind them in memory"},
      {PaddingRows::kVote, PaddingFill::kLastPage,
       "rows beyond q_len vote, with what lies behind them in memory or is the last page again"},
      {PaddingRows::kAbstain, PaddingFill::kZero, "rows beyond q_len abstain"},
      {PaddingRows::kAbstain, PaddingFill::kNeighbour,
       "rows beyond q_len abstain; keys beyond kv_len are what lies behind them in memory"},
  }};
  for (const Padding& padding : kPaddings) {
    if (padding.rows == own.padding_rows && padding.fill == own.padding_fill) continue;
    rules.skip_rule(padding.text, [&](SkipRule& s) {
      s.padding_rows = padding.rows;
      s.padding_fill = padding.fill;
    });
  }
  rules.skip_rule(
      own.backward ? "the first tile is visited first" : "the last tile is visited first",
      [](SkipRule& s) { s.backward = !s.backward; });
  rules.skip_rule(own.lazy_log2 > 0 ? "the running maximum follows every rise"
                                    : "the running maximum moves only if it rises by more than 8",
                  [](SkipRule& s) { s.lazy_log2 = s.lazy_log2 > 0 ? 0.0f : 8.0f; });
  if (own.split == Split::kStrided) {
    for (const int splits : {1, 2, 3, 4, 5, 6, 7, 8}) {
      if (splits != rules.problem().splits)
        rules.add(fmt::format("keys split in {}", splits)).problem.splits = splits;
    }
  }
}

// Units and tiles of other sizes.
void tile_rules(Rules& rules) {
  const auto resolved = resolve(rules.profile(), rules.problem());
  if (!resolved) return;
  const auto with_tile = [&](std::string sentence, TileShape tile) {
    AttentionDeviation& deviation = rules.add(std::move(sentence));
    const auto tiles = std::make_shared<const std::vector<TileShape>>(1, tile);
    deviation.profile.tiles = *tiles;
    deviation.storage.push_back(tiles);
  };
  for (const int rows : {16, 32, 64, 128}) {
    TileShape tile = resolved->tile;
    tile.kv_tile_masked = 0;
    const int shared = tile.schedule_units * tile.unit_rows;
    if (rows == tile.unit_rows || rows < rules.skip().zeroing_rows) continue;
    tile.unit_rows = rows;
    tile.schedule_units = std::max(1, shared / rows);
    with_tile(fmt::format("{} rows decide together, not {}", rows, resolved->tile.unit_rows), tile);
  }
  for (const int keys : {64, 128, 256}) {
    TileShape tile = resolved->tile;
    tile.kv_tile_masked = 0;
    if (keys == tile.kv_tile) continue;
    tile.kv_tile = keys;
    with_tile(fmt::format("tiles of {} keys, not {}", keys, resolved->tile.kv_tile), tile);
  }
}

// --- arithmetic ----------------------------------------------------------------------------------

void exponent_rules(Rules& rules) {
  const Softmax& own = rules.softmax();
  constexpr std::array<std::pair<ExpForm, const char*>, 3> kForms = {{
      {ExpForm::kFmaRz, "the exponent's fma rounds toward zero (RZ)"},
      {ExpForm::kFmaRn, "the exponent's fma rounds to nearest (RN)"},
      {ExpForm::kSubtractMultiply, "the exponent is (s - m) * scale"},
  }};
  for (const auto& [form, sentence] : kForms) {
    if (form != own.exp) rules.softmax_rule(sentence, [f = form](Softmax& s) { s.exp = f; });
  }
  constexpr std::array<std::pair<CorrectionForm, const char*>, 3> kCorrections = {{
      {CorrectionForm::kNone, "output and sum are not corrected when the maximum rises"},
      {CorrectionForm::kDifferenceTimesScale, "the correction is ex2((m_old - m_new) * scale)"},
      {CorrectionForm::kScaledDifference,
       "the correction is ex2 of the difference of rounded products"},
  }};
  for (const auto& [form, sentence] : kCorrections) {
    if (form != own.correction)
      rules.softmax_rule(sentence, [f = form](Softmax& s) { s.correction = f; });
  }
  rules.softmax_rule(own.flush ? "f32 subnormals are kept" : "f32 subnormals are flushed",
                     [](Softmax& s) { s.flush = !s.flush; });
  rules.softmax_rule(
      own.max_nan == numerics::NanRule::kDrop ? "maxima propagate NaN" : "maxima drop NaN",
      [](Softmax& s) {
        s.max_nan = s.max_nan == numerics::NanRule::kDrop ? numerics::NanRule::kPropagate
                                                          : numerics::NanRule::kDrop;
      });
  for (const EmptyGuard guard : {EmptyGuard::kNever, EmptyGuard::kAlways}) {
    if (guard != own.empty)
      rules.softmax_rule(guard == EmptyGuard::kNever ? "rows that have seen nothing are not guarded"
                                                     : "rows that have seen nothing are guarded",
                         [guard](Softmax& s) { s.empty = guard; });
  }
}

void sum_rules(Rules& rules) {
  const Softmax& own = rules.softmax();
  constexpr std::array<std::pair<SumTree, const char*>, 6> kTrees = {{
      {SumTree::kQuadSequential, "per thread in order, quad every tile"},
      {SumTree::kQuadFourWay, "per thread in four, quad every tile"},
      {SumTree::kThreadRunning, "per thread onto its running sum, quad at the end"},
      {SumTree::kThreadEvenOdd, "per thread even and odd apart, quad at the end"},
      {SumTree::kTokensWarps, "keys as rows, warps in order every tile"},
      {SumTree::kTokensRunning, "keys as rows, warps at the end"},
  }};
  const auto resolved = resolve(rules.profile(), rules.problem());
  const bool whole = resolved && resolved->tile.kv_tile % 64 == 0;
  for (const auto& [tree, sentence] : kTrees) {
    const bool tokens = tree == SumTree::kTokensWarps || tree == SumTree::kTokensRunning;
    if (tree != own.tree && (whole || !tokens))
      rules.softmax_rule(fmt::format("row sums {}", sentence),
                         [t = tree](Softmax& s) { s.tree = t; });
  }
  rules.softmax_rule(
      own.join == SumJoin::kFma ? "the running sum by product and sum, not fma"
                                : "the running sum by fma",
      [](Softmax& s) { s.join = s.join == SumJoin::kFma ? SumJoin::kMultiplyAdd : SumJoin::kFma; });
  rules.softmax_rule(
      own.reciprocal == Reciprocal::kIeee ? "1 / sum by rcp.approx" : "1 / sum correctly rounded",
      [](Softmax& s) {
        s.reciprocal = s.reciprocal == Reciprocal::kIeee ? Reciprocal::kApprox : Reciprocal::kIeee;
      });
  rules.softmax_rule("v_scale meets the output the other way round",
                     [](Softmax& s) { s.v_scale_in_reciprocal = !s.v_scale_in_reciprocal; });
  if (rules.problem().dtype != Dtype::kF8E4m3) return;
  rules.softmax_rule(own.p_log2 == 0 ? "P is 256 times larger" : "P is not made larger",
                     [](Softmax& s) { s.p_log2 = s.p_log2 == 0 ? 8 : 0; });
  rules.softmax_rule(own.promote ? "P V accumulates in the instruction, tile after tile"
                                 : "each tile's P V starts from zero and is added",
                     [](Softmax& s) { s.promote = !s.promote; });
}

}  // namespace
}  // namespace deviation

std::vector<AttentionDeviation> attention_deviations(const attention::Profile& profile,
                                                     const attention::Problem& problem,
                                                     std::size_t request) {
  using namespace deviation;
  Rules rules(profile, problem);
  if (any_threshold(problem)) {
    rules.each_request("the dense result: nothing is skipped",
                       [](attention::Request& r) { r.threshold = {}; });
    lambda_rules(rules);
    compare_rules(rules);
    vote_rules(rules);
  }
  tile_rules(rules);
  exponent_rules(rules);
  sum_rules(rules);
  input_rules(rules);
  row_rules(rules, request);
  lse_rules(rules);
  return std::move(rules.list);
}

}  // namespace assay::verify
