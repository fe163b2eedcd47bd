// See fitting_rules.hpp.
#include "verify/attention/fitting_rules.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <optional>

#include "model/attention/parallel.hpp"
#include "verify/attention/deviations.hpp"
#include "verify/golden/golden.hpp"

namespace assay::verify {

using namespace assay::attention;

namespace {

struct Candidate {
  AttentionDeviation rule;
  const Profile* other = nullptr;  // another profile, unchanged
  bool first_fits = false;
};

class Search {
 public:
  Search(const Profile& profile, const Emulator& emulator, const Given& given,
         const std::vector<Mismatch>& mismatches, const AttentionJudgeOptions& options)
      : profile_(profile),
        emulator_(emulator),
        given_(given),
        mismatches_(mismatches),
        options_(options) {}

  FittingRules run() const {
    std::vector<Candidate> candidates = all();
    // One unit tells nearly all of them off; the others are emulated as a whole, one by one.
    parallel_for(static_cast<std::int64_t>(candidates.size()), options_.threads,
                 [&](std::int64_t i, int) {
                   Candidate& one = candidates[static_cast<std::size_t>(i)];
                   one.first_fits = reproduces(one, true);
                 });
    FittingRules fitting;
    for (const Candidate& one : candidates) {
      if (!one.first_fits || !reproduces(one, false)) continue;
      if (one.other == nullptr) {
        fitting.sentences.push_back(one.rule.sentence);
      } else if (bits_known(one.rule)) {
        fitting.sentences.push_back(fmt::format("profile {} fits instead", one.other->name));
        fitting.profiles.emplace_back(one.other->name);
      } else {
        fitting.sentences.push_back(fmt::format(
            "decisions are those of profile {}, whose bits are not known", one.other->name));
      }
    }
    return fitting;
  }

 private:
  std::vector<Candidate> all() const {
    std::vector<Candidate> candidates;
    for (const Profile& other : options_.others) {
      if (other.name != profile_.name)
        candidates.push_back({{"", other, given_.problem(), false, {}}, &other, false});
    }
    const auto request = mismatches_.front().coordinate("request").value_or(0);
    for (AttentionDeviation& rule :
         attention_deviations(profile_, given_.problem(), static_cast<std::size_t>(request)))
      candidates.push_back({std::move(rule), nullptr, false});
    return candidates;
  }

  static bool bits_known(const AttentionDeviation& rule) {
    const auto resolved = resolve(rule.profile, rule.problem);
    return resolved && judges_bits(resolved->grade);
  }

  bool wrong(const char* check) const {
    return std::any_of(mismatches_.begin(), mismatches_.end(),
                       [&](const Mismatch& m) { return m.check == check; });
  }

  // What a rule must reproduce; nothing if it cannot explain what is wrong.
  std::optional<OutputParts> parts_of(const Candidate& one, const Emulator& emulator) const {
    const AttentionOutputs& got = given_.outputs();
    const Resolved& own = emulator_.resolved();
    const Resolved& its = emulator.resolved();
    const bool states_lse = its.softmax.lse != LseForm::kNone;
    if (one.rule.lse_only) {
      if (got.lse.empty() || !states_lse) return std::nullopt;
      if (wrong("attention.out") || wrong("attention.decision")) return std::nullopt;
      return OutputParts{false, true, false};
    }
    const bool same_units =
        its.tile.unit_rows == own.tile.unit_rows && its.tile.kv_tile == own.tile.kv_tile &&
        its.skip.packing == own.skip.packing && emulator.units().size() == emulator_.units().size();
    const bool has_mask = got.decision != nullptr;
    if (has_mask && !same_units) return std::nullopt;
    const bool same_lse = states_lse && its.softmax.lse == own.softmax.lse;
    if (judges_bits(one.other != nullptr ? its.grade : own.grade))
      return OutputParts{true, !got.lse.empty() && same_lse, has_mask};
    if (!wrong("attention.decision")) return std::nullopt;
    return OutputParts{false, false, true};
  }

  // All that was given, or only the unit of the first wrong place.
  bool reproduces(const Candidate& one, bool first_only) const {
    const auto emulator = Emulator::make(one.rule.profile, one.rule.problem);
    if (!emulator) return false;
    const auto parts = parts_of(one, *emulator);
    if (!parts) return false;
    const std::vector<Unit>& units = emulator->units();
    if (first_only) {
      const std::size_t at = first_unit(*emulator);
      return at < units.size() && !given_.compare(emulator->run(units[at]), *parts).any();
    }
    if (parts->decision && given_.stray_cells(*emulator).count > 0) return false;
    std::atomic<bool> fits{true};
    parallel_for(static_cast<std::int64_t>(units.size()), options_.threads,
                 [&](std::int64_t i, int) {
                   if (!fits.load()) return;
                   const UnitResult unit = emulator->run(units[static_cast<std::size_t>(i)]);
                   if (given_.compare(unit, *parts).any()) fits.store(false);
                 });
    return fits.load();
  }

  // The unit of another emulation that holds the first wrong place.
  std::size_t first_unit(const Emulator& emulator) const {
    const Mismatch& m = mismatches_.front();
    const auto at = [&](const char* name) { return m.coordinate(name).value_or(0); };
    const auto request = static_cast<std::size_t>(at("request"));
    if (m.check != "attention.decision")
      return emulator.unit_of(request, static_cast<int>(at("head")),
                              static_cast<std::int32_t>(at("row")));
    const std::vector<Unit>& units = emulator.units();
    const auto same = [&](const Unit& unit) {
      return unit.request == request && unit.head == at("head") && unit.index == at("unit");
    };
    return static_cast<std::size_t>(std::find_if(units.begin(), units.end(), same) - units.begin());
  }

  const Profile& profile_;
  const Emulator& emulator_;
  const Given& given_;
  const std::vector<Mismatch>& mismatches_;
  const AttentionJudgeOptions& options_;
};

}  // namespace

FittingRules fitting_rules(const Profile& profile, const Emulator& emulator, const Given& given,
                           const std::vector<Mismatch>& mismatches,
                           const AttentionJudgeOptions& options) {
  return Search(profile, emulator, given, mismatches, options).run();
}

}  // namespace assay::verify
