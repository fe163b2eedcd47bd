// Runs the cells of the table. Decides SPEC VER-23.2 and VER-23.4; how they are printed is
// suite_text.cpp's.
#include "verify/attention/suite.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "model/attention/parallel.hpp"
#include "model/core/text.hpp"
#include "verify/attention/mutants.hpp"

namespace assay::verify {
namespace {

using attention::Profile;
using Cell = Prediction::Cell;
using State = AttentionCell::State;
using Clock = std::chrono::steady_clock;

struct Tried {
  std::optional<AttentionFinding> finding;
  std::optional<std::string> declined;
  AttentionCoverage coverage;
};

Tried try_case(const Property& property, const Profile& profile, const AttentionSubject& subject,
               const AttentionCase& c, Trial::Options options) {
  options.by_decisions = property.by_decisions;
  Trial trial(profile, subject, c, options);
  property.check(trial);
  Tried tried;
  tried.declined = trial.declined();
  tried.coverage = trial.coverage();
  if (trial.violation() || trial.wrong_bits())
    tried.finding = AttentionFinding{c, trial.violation(), trial.wrong_bits()};
  return tried;
}

class CellRun {
 public:
  CellRun(const Property& property, const Profile& profile, const AttentionSubject& subject,
          const AttentionSuiteOptions& options)
      : property_(property), profile_(profile), subject_(subject), options_(options) {
    cell_.property = &property;
    cell_.profile = &profile;
    cell_.prediction = property.predict(profile);
  }

  AttentionCell run() {
    switch (cell_.prediction.cell) {
      case Cell::kNotApplicable:
        cell_.state = State::kNotApplicable;
        break;
      case Cell::kViolated:
        if (subject_.is_profile())
          run_violated();
        else
          cell_.state = State::kNotPromised;
        break;
      case Cell::kHolds:
        run_holds();
        break;
    }
    return std::move(cell_);
  }

 private:
  std::vector<AttentionCase> cases() const {
    if (options_.only) return {*options_.only};
    std::vector<AttentionCase> list = property_.cases(profile_);
    for (AttentionCase& c : list) c = subject_.served(c);
    return list;
  }

  // Whether the case was as it should be. Keeps what was found.
  bool holds_on(const AttentionCase& c) {
    Tried tried = try_case(property_, profile_, subject_, c, {});
    ++cell_.cases;
    cell_.declined += tried.declined.has_value();
    if (tried.declined) cell_.reason = *tried.declined;
    cell_.coverage.runs += tried.coverage.runs;
    cell_.coverage.kept += tried.coverage.kept;
    cell_.coverage.skipped += tried.coverage.skipped;
    cell_.coverage.elements += tried.coverage.elements;
    cell_.finding = std::move(tried.finding);
    return !cell_.finding;
  }

  // A property makes its own data of a case, and a case of somebody's choice may be none that it
  // can be asked about: the profile itself, which keeps it, would break it there.
  // Of the profile itself (is_profile()) that is what its own run shows.
  std::optional<AttentionFinding> breach_of_the_profile() const {
    if (!options_.only || subject_.is_profile()) return std::nullopt;
    return try_case(property_, profile_, simulated_attention(), *options_.only, {}).finding;
  }

  void mistrust_case(const AttentionFinding& breach) {
    CONTRACT(breach.violation.has_value(), "the profile has the profile's bits");
    mistrust(
        fmt::format("the profile's own emulation breaks the property on this case: it is none "
                    "that the property can be asked about ({})",
                    breach.violation->sentence));
  }

  void run_holds() {
    cell_.state = State::kHolds;
    if (const auto breach = breach_of_the_profile()) return mistrust_case(*breach);
    // Wrong bits alone do not end the search: what the property has to say tells more.
    std::optional<AttentionFinding> bits;
    for (const AttentionCase& c : cases()) {
      if (holds_on(c)) continue;
      if (cell_.finding->violation) break;
      if (!bits) bits = cell_.finding;
      cell_.finding.reset();
    }
    if (!cell_.finding) cell_.finding = std::move(bits);
    if (!cell_.finding && property_.random && !options_.only) random_cases();
    if (!cell_.finding && cell_.cases == cell_.declined) {
      cell_.state = State::kUnsupported;
      return;
    }
    cell_.reason.clear();  // why one case was declined says nothing about the others
    if (cell_.finding && options_.only && subject_.is_profile())
      return mistrust_case(*std::exchange(cell_.finding, std::nullopt));
    if (cell_.finding) {
      cell_.state = State::kMismatch;
      return;
    }
    trust();
    if (subject_.is_profile() && options_.flips && cell_.state == State::kHolds) turn_by_mutant();
  }

  void random_cases() {
    const auto end = Clock::now() + std::chrono::duration<double>(options_.budget_seconds);
    Dice dice(options_.seed);
    for (std::int64_t i = 0; i < options_.random_cases_max && Clock::now() < end; ++i) {
      if (holds_on(subject_.drawn(random_case(profile_, dice)))) continue;
      if (options_.shrink) shrink();
      return;
    }
  }

  // As long as a smaller case is wrong too; at most 200 tries.
  void shrink() {
    int tries = 0;
    for (bool smaller_found = true; smaller_found && tries < 200;) {
      smaller_found = false;
      for (const AttentionCase& c : smaller(cell_.finding->c)) {
        if (++tries > 200) break;
        const AttentionCase served = subject_.served(c);
        if (served == cell_.finding->c) continue;  // no smaller size is served
        Tried tried = try_case(property_, profile_, subject_, served, {});
        if (!tried.finding ||
            tried.finding->violation.has_value() != cell_.finding->violation.has_value())
          continue;
        cell_.finding = std::move(tried.finding);
        smaller_found = true;
        break;
      }
    }
  }

  std::string_view on_this_case() const { return options_.only ? " on this case" : ""; }

  void mistrust(std::string why) {
    cell_.state = State::kMistrusted;
    cell_.reason = std::move(why);
  }

  // SPEC VER-23.2. A case of a REPRO line is no exception: it may be one that shows nothing.
  void trust() {
    if (cell_.coverage.runs > 0 && cell_.coverage.elements == 0)
      return mistrust("no call has a query row, so nothing was compared");
    if (!property_.about_skipping || profile_.skip.dense_only) return;
    if (cell_.coverage.skipped == 0) mistrust("no tile was skipped");
    if (cell_.coverage.kept == 0) mistrust("no tile was kept");
  }

  void turn_by_mutant() {
    for (const std::string_view name : property_.flips) {
      const auto mutant = find_attention_mutant(name);
      CONTRACT(mutant.has_value(), name);
      const auto wrong = mutant_subject(**mutant);
      for (const AttentionCase& c : cases()) {
        if (!try_case(property_, profile_, *wrong, c, {.judge = false}).finding) continue;
        cell_.turned_by = name;
        return;
      }
    }
    mistrust(
        fmt::format("no mutant violates it{}; tried: {}", on_this_case(), joined(property_.flips)));
  }

  void run_violated() {
    cell_.state = State::kViolated;
    bool seen = false;
    for (const AttentionCase& c : cases())
      if ((seen = !holds_on(c))) break;
    if (!seen && options_.only)  // one case of several need not be the one that shows it
      return mistrust(
          fmt::format("the profile violates it by design ({}), and this case does not show it",
                      cell_.prediction.field));
    if (!seen) {
      cell_.state = State::kMismatch;
      cell_.reason = "no case violates it";
      return;
    }
    if (options_.flips) repair();
  }

  // The profile with the field that decides changed must hold it, in runs that prove something.
  void repair() {
    Profile repaired = profile_;
    cell_.prediction.repair(repaired);
    AttentionCoverage coverage = cell_.coverage;
    for (const AttentionCase& c : cases()) {
      const Tried tried = try_case(property_, repaired, simulated_attention(), c, {.judge = false});
      coverage.kept += tried.coverage.kept;
      coverage.skipped += tried.coverage.skipped;
      if (!tried.finding) continue;
      return mistrust("violated also with its field changed: " +
                      tried.finding->violation->sentence);
    }
    cell_.turned_by = "repair";
    if (property_.about_skipping && !profile_.skip.dense_only &&
        (coverage.kept == 0 || coverage.skipped == 0))
      mistrust("nothing was skipped, or nothing kept");
  }

  const Property& property_;
  const Profile& profile_;
  const AttentionSubject& subject_;
  const AttentionSuiteOptions& options_;
  AttentionCell cell_;
};

}  // namespace

namespace {

int rank(State state) {
  switch (state) {
    case State::kMismatch:
      return 3;
    case State::kMistrusted:
      return 2;
    case State::kUnsupported:
      return 1;
    default:
      return 0;
  }
}

// Only the cell that is told gets explanations: they cost dozens of emulations.
void explain_worst(AttentionTable& table, const AttentionSubject& subject) {
  const auto at = static_cast<std::size_t>(&table.worst() - table.cells.data());
  AttentionCell& cell = table.cells[at];
  if (cell.state != State::kMismatch || !cell.finding || !cell.finding->bits) return;
  Tried tried = try_case(*cell.property, *cell.profile, subject, cell.finding->c, {true, true});
  if (tried.finding && tried.finding->bits) cell.finding->bits = std::move(tried.finding->bits);
}

}  // namespace

AttentionCell run_attention_cell(const Property& property, const Profile& profile,
                                 const AttentionSubject& subject,
                                 const AttentionSuiteOptions& options) {
  return CellRun(property, profile, subject, options).run();
}

AttentionTable run_attention_suite(const AttentionSubject& subject,
                                   std::span<const Profile* const> profiles,
                                   std::span<const Property* const> properties,
                                   const AttentionSuiteOptions& options) {
  AttentionTable table;
  table.subject = subject.name();
  table.properties.assign(properties.begin(), properties.end());
  table.profiles.assign(profiles.begin(), profiles.end());
  table.options = options;
  table.cells.resize(properties.size() * profiles.size());
  // Random cases get the budget in equal parts, on every thread at once.
  std::int64_t random = 0;
  for (const Property* property : properties) random += property->random;
  const int threads = subject.concurrent() ? std::max(1, options.threads) : 1;
  AttentionSuiteOptions each = options;
  each.budget_seconds =
      options.budget_seconds * threads /
      std::max<double>(1, static_cast<double>(random) * static_cast<double>(profiles.size()));
  const auto run = [&](std::int64_t at, int) {
    const auto i = static_cast<std::size_t>(at);
    table.cells[i] = run_attention_cell(*properties[i / profiles.size()],
                                        *profiles[i % profiles.size()], subject, each);
    if (options.progress) options.progress();
  };
  attention::parallel_for(static_cast<std::int64_t>(table.cells.size()), threads, run);
  if (!table.cells.empty()) explain_worst(table, subject);
  return table;
}

const AttentionCell& AttentionTable::worst() const {
  CONTRACT(!cells.empty(), "a table without cells");
  const auto badness = [](const AttentionCell& cell) {
    return 2 * rank(cell.state) + (cell.finding && cell.finding->violation ? 1 : 0);
  };
  const AttentionCell* worst = &cells.front();
  for (const AttentionCell& cell : cells)
    if (badness(cell) > badness(*worst)) worst = &cell;
  return *worst;
}

Verdict AttentionTable::verdict() const {
  bool unsupported = true, mistrusted = false;
  for (const AttentionCell& cell : cells) {
    if (cell.state == State::kMismatch) return Verdict::kMismatch;
    mistrusted |= cell.state == State::kMistrusted;
    unsupported &= cell.state == State::kUnsupported || cell.state == State::kNotApplicable ||
                   cell.state == State::kNotPromised;
  }
  if (unsupported) return Verdict::kUnsupported;
  return mistrusted && !options.allow_vacuous ? Verdict::kMistrusted : Verdict::kConforms;
}

}  // namespace assay::verify
