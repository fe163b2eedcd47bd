// What an attention kernel owes whoever calls it, as a table of properties. For each profile a
// property says beforehand, from the profile's fields and not from its name, whether it holds, is
// violated by design, or has no meaning; a run must agree (SPEC VER-23.1). Decides what a property
// is and what a trial of one may do; the properties are in values.cpp, extremes.cpp, layout.cpp,
// heads.cpp, decisions.cpp, pieces.cpp and thresholds.cpp.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/attention/attention.hpp"
#include "verify/attention/cases.hpp"
#include "verify/attention/subject.hpp"
#include "verify/compare/mismatch.hpp"

namespace assay::verify {

// What a property expects of a profile.
struct Prediction {
  enum class Cell : std::uint8_t { kHolds, kViolated, kNotApplicable };
  Cell cell = Cell::kHolds;
  std::string field;   // that decides it: "skip.padding_rows = vote"; empty if it holds everywhere
  std::string clause;  // of that field
  // Of a violated cell: the change of that field with which the property holds.
  std::function<void(attention::Profile&)> repair;
};
Prediction holds();
Prediction not_applicable(std::string why, std::string clause);
Prediction violated(std::string field, std::string clause,
                    std::function<void(attention::Profile&)> repair);

// Tiles over all units, counted from the profile's own emulation and never from the subject.
struct AttentionCoverage {
  std::int64_t runs = 0, kept = 0, skipped = 0;  // skipped: or partly zeroed
  std::int64_t elements = 0;                     // of out, in all runs
};

struct Violation {
  std::string sentence;
  std::vector<Coordinate> where;  // request, row, head, element, or tile
  std::optional<Values> values;
};

// One case of one property on one subject. A check runs problems and says what is wrong, if
// anything; the first finding is kept.
class Trial {
 public:
  struct Options {
    bool judge = true;          // also compare every answer of another subject with the profile
    bool explain = false;       // and try other rules on one that is wrong, which takes a while
    bool by_decisions = false;  // Property's: an answer without decisions declines the case
  };
  // What one run gave, and what the profile computes for the same problem.
  struct Ran {
    AttentionAnswer answer;
    const attention::Problem* problem = nullptr;
    std::optional<attention::Emulator> emulator;
    attention::Emulation expected;
    attention::DecisionMap expected_decision;

    // The answer's decisions if it has any of the profile's units, else the profile's.
    const attention::DecisionMap& decision() const {
      return answer.decision ? *answer.decision : expected_decision;
    }
  };

  Trial(const attention::Profile& profile, const AttentionSubject& subject, AttentionCase c,
        Options options);

  const attention::Profile& profile() const { return profile_; }
  const AttentionCase& c() const { return c_; }

  // Null when the trial is over: the subject declined, failed, or something was found before.
  // `problem` must outlive what is done with the result.
  const Ran* run(const attention::Problem& problem, int threads = 1);
  // How many rows a page has if `rows` would suit the property (SPEC VER-25.2).
  std::int32_t page(std::int32_t rows) const { return subject_.served_page(rows); }
  // Whether the subject refuses a problem that is no legal one.
  bool refuses(const attention::Problem& problem) const;

  void fail(std::string sentence, std::vector<Coordinate> where = {},
            std::optional<Values> values = std::nullopt);
  void decline(std::string reason);

  bool over() const { return violation_.has_value() || declined_.has_value(); }
  const std::optional<Violation>& violation() const { return violation_; }
  const std::optional<std::string>& declined() const { return declined_; }
  // The first answer whose bits or decisions are not the profile's.
  const std::optional<Mismatch>& wrong_bits() const { return wrong_bits_; }
  const AttentionCoverage& coverage() const { return coverage_; }

 private:
  void cover(const Ran& ran);
  void judge(const Ran& ran);
  void judge_counters(const Ran& ran);

  const attention::Profile& profile_;
  const AttentionSubject& subject_;
  AttentionCase c_;
  Options options_;
  std::deque<Ran> runs_;
  std::optional<Violation> violation_;
  std::optional<std::string> declined_;
  std::optional<Mismatch> wrong_bits_;
  AttentionCoverage coverage_;
};

struct Property {
  std::string_view name;    // "ones", as --suite attention.ones takes it
  std::string_view title;   // a sentence
  std::string_view clause;  // of what it exercises
  // A cell counts only if its runs kept and skipped tiles.
  bool about_skipping = false;
  Prediction (*predict)(const attention::Profile&) = nullptr;
  // Aimed at the property: run first and always. A profile that violates it does so on one of them.
  std::vector<AttentionCase> (*cases)(const attention::Profile&) = nullptr;
  bool random = false;  // random cases too, while the budget lasts
  void (*check)(Trial&) = nullptr;
  // Wrong subjects that violate it where it holds: the first one that a profile can have must.
  std::vector<std::string_view> flips;
  // Of a subject that skips nothing, outputs would have it too: one that reports no decisions does
  // not serve it (SPEC VER-23.5).
  bool by_decisions = false;
};

std::span<const Property> properties();
Expected<const Property*> find_property(std::string_view name);  // the error lists the names

// The files that properties() concatenates.
std::vector<Property> value_properties();
std::vector<Property> extreme_properties();
std::vector<Property> layout_properties();
std::vector<Property> head_properties();
std::vector<Property> decision_properties();
std::vector<Property> piece_properties();
std::vector<Property> threshold_properties();

}  // namespace assay::verify
