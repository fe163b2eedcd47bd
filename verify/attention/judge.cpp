// See judge.hpp: the two ways to judge, by bits and by what a weaker grade leaves, and how what
// differs is told.
#include "verify/attention/judge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/attention/parallel.hpp"
#include "model/core/text.hpp"
#include "verify/attention/fitting_rules.hpp"
#include "verify/attention/given.hpp"
#include "verify/attention/ties.hpp"
#include "verify/attention/within_grade.hpp"
#include "verify/golden/golden.hpp"

namespace assay::verify {

using namespace assay::attention;

std::string_view attention_verdict_name(AttentionVerdict verdict) {
  switch (verdict) {
    case AttentionVerdict::kBitEqual:
      return "bit-equal";
    case AttentionVerdict::kEqualUpToTies:
      return "equal up to near-tie decisions";
    case AttentionVerdict::kWithinGrade:
      return "decisions equal, outputs within the bound";
    case AttentionVerdict::kWrong:
      return "wrong";
    case AttentionVerdict::kOtherProfile:
      return "another profile fits";
    case AttentionVerdict::kNotJudged:
      return "not judged";
  }
  CONTRACT(false, static_cast<int>(verdict));
}

namespace {

std::string vacuous_reason(const Problem& problem, const Counters& counters) {
  const bool on =
      std::any_of(problem.requests.begin(), problem.requests.end(),
                  [](const Request& r) { return r.threshold.kind != Threshold::Kind::kOff; });
  if (!on) return "";
  if (counters.asked == 0)
    return fmt::format("a threshold is on, and none of {} visited tiles was asked whether to skip",
                       counters.visited);
  const bool some =
      std::any_of(problem.requests.begin(), problem.requests.end(), [](const Request& r) {
        return r.threshold.kind != Threshold::Kind::kOff && r.threshold.value > 0;
      });
  if (counters.skipped + counters.partly_zeroed == 0 && !some)
    return fmt::format(
        "the threshold is 0, at which none of {} tiles that were asked was skipped; "
        "to compare the dense result, leave it out",
        counters.asked);
  if (counters.skipped + counters.partly_zeroed == 0)
    return fmt::format("a threshold is on, and none of {} tiles that were asked was skipped",
                       counters.asked);
  if (counters.skipped == counters.asked)
    return fmt::format("all {} tiles that were asked were skipped", counters.asked);
  return "";
}

class Judge {
 public:
  Judge(const Profile& profile, const Emulator& emulator, const Given& given,
        const AttentionJudgeOptions& options)
      : profile_(profile), emulator_(emulator), given_(given), options_(options) {
    parts_.lse = !given.outputs().lse.empty() && emulator.resolved().softmax.lse != LseForm::kNone;
    parts_.decision = given.outputs().decision != nullptr;
  }

  AttentionJudgement run() {
    result_.grade = emulator_.resolved().grade;
    if (!given_.outputs().lse.empty() && !parts_.lse)
      result_.notes.push_back("lse not judged: the profile does not state one");
    if (judges_bits(result_.grade))
      judge_bits();
    else
      judge_within_grade();
    result_.vacuous = vacuous_reason(given_.problem(), result_.counters);
    return std::move(result_);
  }

 private:
  const std::vector<Unit>& units() const { return emulator_.units(); }

  void judge_bits() {
    note_compared("out", given_.outputs().out.size());
    if (parts_.lse) note_compared("lse", given_.outputs().lse.size());
    if (parts_.decision) note_compared("decision", given_.outputs().decision->cells.size());
    differences_.resize(units().size());
    std::vector<Counters> counters(units().size());
    parallel_for(static_cast<std::int64_t>(units().size()), options_.threads,
                 [&](std::int64_t i, int) {
                   const auto at = static_cast<std::size_t>(i);
                   const UnitResult unit = emulator_.run(units()[at]);
                   differences_[at] = given_.compare(unit, parts_);
                   count_tiles(unit.tiles, counters[at]);
                 });
    for (const Counters& one : counters) add(one);
    if (result_.grade != Grade::kBits) turn_ties();
    collect();
    if (result_.mismatches.empty())
      result_.verdict =
          result_.ties.empty() ? AttentionVerdict::kBitEqual : AttentionVerdict::kEqualUpToTies;
    else
      explain();
  }

  // Wrong units in order, until one stays wrong: what follows cannot change the verdict then.
  void turn_ties() {
    for (std::size_t i = 0; i < differences_.size(); ++i) {
      if (!differences_[i].any()) continue;
      const TieSettings settings{parts_, 0, true};
      const TieOutcome outcome = parts_.decision
                                     ? follow_mask(emulator_, given_, units()[i], settings)
                                     : search_ties(emulator_, given_, units()[i], settings);
      if (outcome.bound_hit)
        result_.notes.push_back(fmt::format(
            "request {} head {} unit {}: {} of the combinations of its near-ties were tried",
            units()[i].request, units()[i].head, units()[i].index, outcome.runs));
      differences_[i] = outcome.difference;
      result_.ties.insert(result_.ties.end(), outcome.ties.begin(), outcome.ties.end());
      if (differences_[i].any() || outcome.cut) return;
    }
  }

  void judge_within_grade() {
    WithinGrade judged = within_grade(emulator_, given_, options_.threads);
    result_.counters = judged.counters;
    result_.ties = std::move(judged.ties);
    result_.notes.insert(result_.notes.end(), judged.notes.begin(), judged.notes.end());
    if (parts_.lse) result_.notes.push_back("lse not judged: its bits are not known");
    if (parts_.decision) note_compared("decision", given_.outputs().decision->cells.size());
    note_compared("out", static_cast<std::uint64_t>(judged.elements));
    parts_.out = parts_.lse = false;
    differences_ = std::move(judged.differences);
    differences_.resize(units().size());
    collect();
    if (judged.out) result_.mismatches.push_back(*std::move(judged.out));
    if (!result_.mismatches.empty()) return explain();
    if (parts_.decision && judged.elements == 0 && !given_.outputs().out.empty()) {
      result_.reason = "no element of out could be judged: " + joined(judged.notes);
      result_.too_large = judged.too_large;
      return;
    }
    if (parts_.decision) {
      result_.verdict = AttentionVerdict::kWithinGrade;
      return;
    }
    result_.reason = fmt::format(
        "profile {} is of grade {}: its bits are not known, and no decision is given; {} elements "
        "of out lie within the bound of ATT-3.6",
        profile_.name, grade_name(result_.grade), judged.elements);
  }

  // --- from differences to mismatches

  void note_compared(const char* name, std::uint64_t count) {
    result_.compared.emplace_back(name, static_cast<std::int64_t>(count));
  }

  void add(const Counters& one) {
    result_.counters.visited += one.visited;
    result_.counters.asked += one.asked;
    result_.counters.skipped += one.skipped;
    result_.counters.partly_zeroed += one.partly_zeroed;
    result_.counters.near_ties += one.near_ties;
  }

  void collect() {
    if (parts_.decision) collect_decisions();
    if (parts_.out) collect_elements();
    if (parts_.lse) collect_lse();
  }

  void collect_decisions() {
    Mismatch m;
    m.check = "attention.decision";
    m.clause = "ATT-4.4";
    m.unit = "tiles";
    m.total = static_cast<std::int64_t>(given_.outputs().decision->cells.size());
    m.wrong = 0;
    const Unit* first = nullptr;
    const UnitDifference* what = nullptr;
    for (std::size_t i = 0; i < differences_.size(); ++i) {
      if (differences_[i].cells == 0) continue;
      m.wrong += differences_[i].cells;
      if (first == nullptr) first = &units()[i], what = &differences_[i];
    }
    const Given::Stray stray = given_.stray_cells(emulator_);
    m.wrong += stray.count;
    UnitDifference stray_difference;
    stray_difference.first_tile = stray.tile;
    stray_difference.got_cell = stray.cell;
    const bool is_stray = first == nullptr && stray.count > 0;
    if (is_stray) first = &stray.unit, what = &stray_difference;
    if (first == nullptr) return;
    m.where = {{"request", static_cast<std::int64_t>(first->request)},
               {"head", first->head},
               {"unit", first->index},
               {"tile", what->first_tile}};
    m.values = Values{ElementFormat::kBytes, what->got_cell, what->expected_cell};
    m.sentence = decision_sentence(*what, is_stray);
    result_.mismatches.push_back(std::move(m));
  }

  std::string decision_sentence(const UnitDifference& what, bool is_stray) const {
    if (is_stray) return "the request has no such unit, and its cells are not all 0";
    if (!what.trace) return "the unit does not visit this tile";
    const TileTrace& tile = *what.trace;
    const std::string_view expected = decision_word(tile.decision);
    if (!tile.asked) return fmt::format("the tile is {} without being asked", expected);
    return fmt::format(
        "the vote says {}: {:.4g} log2 units {} the threshold in row {} of the unit (maximum "
        "{:.9g}, "
        "before it {:.9g})",
        expected, std::abs(tile.margin_log2), tile.margin_log2 < 0 ? "below" : "above", tile.row,
        numerics::to_float(tile.local_max), numerics::to_float(tile.running_max));
  }

  void collect_elements() {
    Mismatch m;
    m.check = "attention.out";
    m.clause = "ATT-5.1";
    m.unit = "elements";
    m.total = static_cast<std::int64_t>(given_.outputs().out.size());
    m.wrong = 0;
    UlpHistogram ulp;
    const UnitDifference* what = nullptr;
    for (const UnitDifference& difference : differences_) {
      ulp += difference.ulp;
      if (difference.out == 0) continue;
      m.wrong += difference.out;
      if (what == nullptr || difference.first_out < what->first_out) what = &difference;
    }
    if (what == nullptr) return;
    const auto dim = static_cast<std::uint64_t>(given_.problem().v_dim);
    m.where = row_place(what->first_out / dim);
    m.where.push_back({"element", static_cast<std::int64_t>(what->first_out % dim)});
    m.values = what->out_values;
    m.ulp = ulp;
    m.sentence = fmt::format("out has other bits than profile {} gives", profile_.name);
    if (parts_.decision && result_.mismatches.empty()) m.sentence += ", and decisions agree";
    result_.mismatches.push_back(std::move(m));
  }

  void collect_lse() {
    Mismatch m;
    m.check = "attention.lse";
    m.clause = "ATT-5.5";
    m.total = static_cast<std::int64_t>(given_.outputs().lse.size());
    m.wrong = 0;
    const UnitDifference* what = nullptr;
    for (const UnitDifference& difference : differences_) {
      if (difference.lse == 0) continue;
      m.wrong += difference.lse;
      if (what == nullptr || difference.first_lse < what->first_lse) what = &difference;
    }
    if (what == nullptr) return;
    m.where = row_place(what->first_lse);
    m.values = what->lse_values;
    m.sentence = fmt::format("lse has other bits than profile {} gives", profile_.name);
    if (result_.mismatches.empty()) m.sentence += ", and out agrees";
    result_.mismatches.push_back(std::move(m));
  }

  std::vector<Coordinate> row_place(std::uint64_t index) const {
    const Given::Row row = given_.row_at(index);
    return {
        {"request", static_cast<std::int64_t>(row.request)}, {"row", row.row}, {"head", row.head}};
  }

  void explain() {
    result_.verdict = AttentionVerdict::kWrong;
    if (!options_.explain) return;
    FittingRules fitting = fitting_rules(profile_, emulator_, given_, result_.mismatches, options_);
    result_.mismatches.front().diagnoses = std::move(fitting.sentences);
    result_.fitting = std::move(fitting.profiles);
    if (!result_.fitting.empty()) result_.verdict = AttentionVerdict::kOtherProfile;
  }

  const Profile& profile_;
  const Emulator& emulator_;
  const Given& given_;
  const AttentionJudgeOptions& options_;
  OutputParts parts_;
  std::vector<UnitDifference> differences_;  // of each unit
  AttentionJudgement result_;
};

}  // namespace

Expected<AttentionJudgement> judge_attention(const Profile& profile, const Problem& problem,
                                             const AttentionOutputs& outputs,
                                             const AttentionJudgeOptions& options) {
  ASSAY_TRY(const Emulator emulator, Emulator::make(profile, problem));
  const Given given(problem, outputs);
  ASSAY_CHECK(given.check_sizes(emulator));
  return Judge(profile, emulator, given, options).run();
}

}  // namespace assay::verify
