// Runs of a trial, what they are compared with whoever asked, and the list of properties. Decides
// SPEC VER-23.1 and VER-23.2.
#include <fmt/format.h>

#include "model/core/text.hpp"
#include "verify/attention/judge.hpp"
#include "verify/attention/property.hpp"

namespace assay::verify {

using attention::Profile;

Prediction holds() { return {}; }
Prediction not_applicable(std::string why, std::string clause) {
  return {Prediction::Cell::kNotApplicable, std::move(why), std::move(clause), nullptr};
}
Prediction violated(std::string field, std::string clause, std::function<void(Profile&)> repair) {
  return {Prediction::Cell::kViolated, std::move(field), std::move(clause), std::move(repair)};
}

Trial::Trial(const Profile& profile, const AttentionSubject& subject, AttentionCase c,
             Options options)
    : profile_(profile), subject_(subject), c_(std::move(c)), options_(options) {}

const Trial::Ran* Trial::run(const attention::Problem& problem, int threads) {
  if (over()) return nullptr;
  auto emulator = attention::Emulator::make(profile_, problem);
  if (!emulator) {
    decline(emulator.error().sentence);
    return nullptr;
  }
  auto expected = attention::emulate(profile_, problem, {threads});
  CONTRACT(expected.has_value(), expected ? "" : expected.error().sentence);
  Ran& ran = runs_.emplace_back();
  ran.problem = &problem;
  ran.emulator = *std::move(emulator);
  ran.expected = *std::move(expected);
  ran.expected_decision = attention::decision_map(*ran.emulator, ran.expected);
  const attention::Counters& counters = ran.expected.counters;
  if (subject_.is_profile()) {
    ran.answer.out = ran.expected.out;
    if (ran.expected.lse_form != attention::LseForm::kNone) ran.answer.lse = ran.expected.lse;
    ran.answer.decision = ran.expected_decision;
    ran.answer.visited = counters.visited;
    ran.answer.skipped = counters.skipped;
    cover(ran);
    return &ran;
  }
  AttentionRun got = subject_.run(profile_, problem, threads);
  if (got.state == AttentionRun::State::kUnsupported) {
    decline(got.message);
    return nullptr;
  }
  if (got.state == AttentionRun::State::kFailed) {
    fail("the subject failed: " + got.message);
    return nullptr;
  }
  cover(ran);
  ran.answer = std::move(got.answer);
  if (ran.answer.out.size() != ran.expected.out.size()) {
    fail(fmt::format("out has {} elements; the problem has {}", ran.answer.out.size(),
                     ran.expected.out.size()));
    return nullptr;
  }
  if (ran.expected.lse_form == attention::LseForm::kNone) ran.answer.lse.clear();
  if (options_.judge) judge(ran);
  if (options_.by_decisions && !ran.answer.decision && !ran.answer.out.empty()) {
    decline("the subject reports no decisions");
    return nullptr;
  }
  // Decisions of other units say nothing about the profile's.
  if (ran.answer.decision && ran.answer.decision->extents != ran.expected_decision.extents)
    ran.answer.decision.reset();
  return &ran;
}

// Of calls that were answered: one that is declined compares nothing.
void Trial::cover(const Ran& ran) {
  const attention::Counters& counters = ran.expected.counters;
  ++coverage_.runs;
  coverage_.elements += static_cast<std::int64_t>(ran.expected.out.size());
  coverage_.skipped += counters.skipped + counters.partly_zeroed;
  coverage_.kept += counters.visited - counters.skipped;
}

// Equal answers need no judge; it emulates once more to say what differs (SPEC VER-21).
void Trial::judge(const Ran& ran) {
  if (wrong_bits_) return;
  const bool decision_differs =
      ran.answer.decision && (ran.answer.decision->extents != ran.expected_decision.extents ||
                              ran.answer.decision->cells != ran.expected_decision.cells);
  bool lse_differs = false;
  for (std::size_t i = 0; i < ran.answer.lse.size(); ++i)
    lse_differs |= ran.answer.lse[i].bits != ran.expected.lse[i].bits;
  if (!decision_differs && !lse_differs && ran.answer.out == ran.expected.out)
    return judge_counters(ran);
  if (ran.answer.decision && ran.answer.decision->extents != ran.expected_decision.extents) {
    wrong_bits_ = Mismatch{};
    wrong_bits_->check = "attention.decision";
    wrong_bits_->clause = "ATT-5.5";
    wrong_bits_->sentence = "the decisions are those of other units than the profile's";
    wrong_bits_->unit = "answers";
    return;
  }
  const AttentionOutputs outputs{ran.answer.out, ran.answer.lse,
                                 ran.answer.decision ? &*ran.answer.decision : nullptr};
  const auto judged =
      judge_attention(profile_, *ran.problem, outputs, {.explain = options_.explain});
  CONTRACT(judged.has_value(), judged ? "" : judged.error().sentence);
  if (judged->verdict != AttentionVerdict::kWrong &&
      judged->verdict != AttentionVerdict::kOtherProfile)
    return;
  CONTRACT(!judged->mismatches.empty(), "a wrong answer without a mismatch");
  wrong_bits_ = judged->mismatches.front();
}

// Of an answer whose decisions are right (SPEC VER-25.4).
void Trial::judge_counters(const Ran& ran) {
  const attention::Counters& expected = ran.expected.counters;
  const bool visited = ran.answer.visited.value_or(expected.visited) == expected.visited;
  const bool skipped = ran.answer.skipped.value_or(expected.skipped) == expected.skipped;
  if (visited && skipped) return;
  wrong_bits_ = Mismatch{};
  wrong_bits_->check = "attention.counters";
  wrong_bits_->clause = "ATT-5.5";
  wrong_bits_->sentence = fmt::format(
      "the counters say {} tiles visited and {} skipped; the profile visits {} and skips {}",
      ran.answer.visited.value_or(expected.visited), ran.answer.skipped.value_or(expected.skipped),
      expected.visited, expected.skipped);
  wrong_bits_->unit = "answers";
}

bool Trial::refuses(const attention::Problem& problem) const {
  return subject_.run(profile_, problem, 1).state != AttentionRun::State::kOk;
}

void Trial::fail(std::string sentence, std::vector<Coordinate> where,
                 std::optional<Values> values) {
  if (!over()) violation_ = Violation{std::move(sentence), std::move(where), values};
}

void Trial::decline(std::string reason) {
  if (!over()) declined_ = std::move(reason);
}

std::span<const Property> properties() {
  static const std::vector<Property> list = [] {
    std::vector<Property> all = value_properties();
    for (auto more : {extreme_properties(), layout_properties(), head_properties(),
                      decision_properties(), piece_properties(), threshold_properties()})
      all.insert(all.end(), more.begin(), more.end());
    return all;
  }();
  return list;
}

Expected<const Property*> find_property(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Property& property : properties()) {
    if (property.name == name) return &property;
    names.push_back(property.name);
  }
  return bad_input(fmt::format("property is {}; attention has {}", in_quotes(name), joined(names)));
}

}  // namespace assay::verify
