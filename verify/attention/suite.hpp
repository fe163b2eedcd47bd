// The suite of attention: every property on every profile, as a table whose cells were all run; and
// on a subject under test, the properties that its profile promises. Decides when a cell counts
// (SPEC VER-23.2, VER-23.4) and what a verdict over a subject means (VER-23.5).
//
//   ASSAY_TRY(const AttentionTable table, run_attention_suite(subject, profiles, properties, {}));
//   std::cout << to_text(table);
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "verify/attention/property.hpp"
#include "verify/compare/report.hpp"

namespace assay::verify {

struct AttentionSuiteOptions {
  double budget_seconds = 5;  // for random cases, of all cells together; aimed ones always run
  std::uint64_t seed = 1;     // of random cases
  std::optional<AttentionCase> only;       // this case and nothing else: a REPRO line
  std::int64_t random_cases_max = 100000;  // per cell
  bool flips = true;   // of simulated profiles: also run what must turn each cell
  bool shrink = true;  // a failing random case is made smaller first
  bool allow_vacuous = false;
  int threads = 2;  // decides nothing but how long it takes; 1 where a subject takes one call
  std::function<void()> progress;  // after every cell, from any thread
};

// A wrong case: what the property found, or which bits are not the profile's.
struct AttentionFinding {
  AttentionCase c;
  std::optional<Violation> violation;
  std::optional<Mismatch> bits;
};

struct AttentionCell {
  enum class State : std::uint8_t {
    kHolds,          // as predicted
    kViolated,       // as predicted, and seen
    kNotApplicable,  // as predicted, and not run
    kNotPromised,    // the profile violates it by design, so a subject need not hold it; not run
    kUnsupported,    // the subject declined every case
    kMistrusted,     // as predicted, but the runs prove too little: `reason`
    kMismatch,       // not as predicted, or a subject's bits are wrong
  };
  const Property* property = nullptr;
  const attention::Profile* profile = nullptr;
  Prediction prediction;
  State state = State::kNotApplicable;
  std::int64_t cases = 0, declined = 0;
  AttentionCoverage coverage;
  std::optional<AttentionFinding> finding;  // of kViolated and kMismatch
  std::string turned_by;  // the mutant that violates it, or "repair" of the field that decides
  std::string reason;
};
std::string_view cell_name(AttentionCell::State state);  // "holds", "violated", ...

struct AttentionTable {
  std::string subject;                              // "sim", "plugin:libmine.so"
  std::vector<const Property*> properties;          // rows
  std::vector<const attention::Profile*> profiles;  // columns
  std::vector<AttentionCell> cells;                 // [property, profile]
  AttentionSuiteOptions options;

  const AttentionCell& at(std::size_t property, std::size_t profile) const {
    return cells[property * profiles.size() + profile];
  }
  Verdict verdict() const;
  // The cell that decides the verdict; one whose property found something before one of which only
  // bits are wrong. The first among equals.
  const AttentionCell& worst() const;
};

AttentionCell run_attention_cell(const Property& property, const attention::Profile& profile,
                                 const AttentionSubject& subject,
                                 const AttentionSuiteOptions& options);
AttentionTable run_attention_suite(const AttentionSubject& subject,
                                   std::span<const attention::Profile* const> profiles,
                                   std::span<const Property* const> properties,
                                   const AttentionSuiteOptions& options);

// The table: a row for each property, a column for each profile; below it what is violated by
// design and why. At most 100 columns.
std::string to_text(const AttentionTable& table);
nlohmann::ordered_json to_json(const AttentionTable& table);
// The worst cell spelled out, with the command that repeats it.
Report worst_report(const AttentionTable& table, std::string_view mutant);

}  // namespace assay::verify
