// Which threshold scale factor gives which sparsity, for one profile: thresholds swept over given
// calls with the profile's own tiles, order, vote and comparison, a curve through what was
// measured, and the curve's factors run again. Decides sweep, fit and what counts as vacuous (SPEC
// ATT-8). Not decided here: decisions (calibration_decisions.hpp), curves (calibration_fit.hpp),
// inputs (calibration_input.hpp).
//
//   ASSAY_TRY(const Samples samples, samples_of_file("layer3.safetensors", {}));
//   ASSAY_TRY(const PhaseCalibration prefill, calibrate(*profile, Phase::kPrefill, samples, {}));
//   prefill.exponential->factor(0.5)
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "model/attention/calibration_decisions.hpp"
#include "model/attention/calibration_fit.hpp"
#include "model/attention/calibration_input.hpp"

namespace assay::attention {

struct CalibrationOptions {
  int threads = 1;  // decides no number
  std::vector<double> targets = {0.5, 0.6, 0.7, 0.8, 0.9};
  double wanted = 0.5;  // the target whose factor will be used; added to them if it is none
  std::function<void()> on_sample;  // after each sample's scores
};

// One threshold on one sample. lambda is that of the sample's longest call.
struct SweepPoint {
  std::size_t sample = 0;
  double lambda = 0;
  double factor = 0;
  TileCounts counts;
  bool fitted = false;  // whether the curves go through it (SPEC ATT-8.5)
};

// A sparsity that somebody wants, the exponential's factor for it, and what that factor does.
struct CalibrationTarget {
  double sparsity = 0;
  double factor = 0;
  TileCounts achieved;             // of all samples together
  double error = 0;                // achieved minus wanted
  double worst_error = 0;          // of the sample that is furthest off
  bool extrapolated = false;       // beyond the sparsities that the curve was fitted to
  std::int64_t kv_len_at_one = 0;  // lambda is 1 or more at this kv_len and below
  bool above_one_here = false;     // it is for a sample
};

struct PhaseCalibration {
  struct SampleSummary {
    std::string name;
    std::int32_t kv_len = 0;
    std::size_t calls = 0;
    std::int64_t rows = 0;  // query rows, one head
    TileCounts dense;       // at lambda 0: visited, asked, hidden
  };
  Phase phase = Phase::kPrefill;
  std::string profile;
  Grade grade = Grade::kDecisions;
  std::vector<SampleSummary> samples;
  std::vector<SweepPoint> points;  // by sample, then by lambda
  std::optional<Fit> exponential, power;
  std::vector<CalibrationTarget> targets;
  std::string above_one;  // what the profile does at lambda >= 1, one sentence
  std::string vacuous;    // why nothing was calibrated; empty if something was
};

// Vacuous is also a calibration whose factor for `wanted`, run again, is not near it (SPEC
// ATT-8.10). Errors: those of DecisionReplay::make with the sample named, and samples without this
// phase.
Expected<PhaseCalibration> calibrate(const Profile& profile, Phase phase, const Samples& samples,
                                     const CalibrationOptions& options);

// What a profile does with lambda >= 1, as a sentence (SPEC ATT-8.6).
std::string above_one_sentence(const SkipRule& rule);

}  // namespace assay::attention
