// See calibrate.hpp.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "model/attention/work.hpp"
#include "tools/calibrate.hpp"
#include "tools/cli/svg.hpp"

namespace assay::tools {
namespace {

using attention::CalibrationTarget;
using attention::Fit;
using attention::PhaseCalibration;
using attention::SweepPoint;

Table samples_of(const PhaseCalibration& c) {
  Table table{{"sample", "kv_len", "calls", "rows", "tiles", "asked", "hidden", "sparsity_max"},
              {}};
  for (std::size_t i = 0; i < c.samples.size(); ++i) {
    const auto& s = c.samples[i];
    double most = 0;
    for (const SweepPoint& p : c.points)
      if (p.sample == i) most = std::max(most, p.counts.of_visited());
    table.rows.push_back({s.name, std::int64_t{s.kv_len}, static_cast<std::int64_t>(s.calls),
                          s.rows, s.dense.visited, s.dense.asked, s.dense.hidden, most});
  }
  return table;
}

Table fits_of(const PhaseCalibration& c) {
  Table table{{"factor", "a", "b", "r2_of_ln", "max_relative_error", "points"}, {}};
  for (const auto* fit : {&c.exponential, &c.power}) {
    if (!*fit) continue;
    const Fit& f = **fit;
    table.rows.push_back({std::string(fit_form_name(f.form)), f.a, f.b, f.r2, f.max_relative_error,
                          static_cast<std::int64_t>(f.points)});
  }
  return table;
}

Table targets_of(const PhaseCalibration& c) {
  Table table{{"sparsity", "factor", "achieved", "of_asked", "error", "worst_error",
               "lambda_one_at_kv_len", "speedup_bound", "extrapolated"},
              {}};
  for (const CalibrationTarget& t : c.targets)
    table.rows.push_back({t.sparsity, t.factor, t.achieved.of_visited(), t.achieved.of_asked(),
                          t.error, t.worst_error, t.kv_len_at_one,
                          attention::speedup_bound(t.achieved.of_visited()), t.extrapolated});
  return table;
}

Table points_of(const PhaseCalibration& c) {
  Table table{{"kv_len", "lambda", "factor", "visited", "asked", "skipped", "partly_zeroed",
               "of_visited", "of_asked", "fitted"},
              {}};
  for (const SweepPoint& p : c.points)
    table.rows.push_back({std::int64_t{c.samples[p.sample].kv_len}, p.lambda, p.factor,
                          p.counts.visited, p.counts.asked, p.counts.skipped,
                          p.counts.partly_zeroed, p.counts.of_visited(), p.counts.of_asked(),
                          p.fitted});
  return table;
}

const CalibratedPhase* phase_of(const CalibratedPhases& phases, attention::Phase phase) {
  for (const CalibratedPhase& p : phases)
    if (p.result.phase == phase && p.result.vacuous.empty()) return &p;
  return nullptr;
}

// Four digits are more than a calibration is good for, and short in a file that people edit.
double shortened(double x) { return std::stod(fmt::format("{:.6g}", x)); }

std::vector<std::pair<double, double>> curve(const Fit& fit) {
  std::vector<std::pair<double, double>> xy;
  for (int i = 0; i <= 96; ++i) xy.emplace_back(fit.factor(i / 100.0), i / 100.0);
  return xy;
}

PlotPanel panel_of(const PhaseCalibration& c) {
  PlotPanel panel;
  panel.title = fmt::format("{}: {}", phase_name(c.phase), c.profile);
  panel.x_label = "threshold scale factor = lambda x kv_len";
  panel.y_label = "tiles skipped, of those visited";
  // One series a length; the curve first, so that it keeps its colour whatever was measured.
  std::vector<std::int32_t> lengths;
  for (const auto& s : c.samples) lengths.push_back(s.kv_len);
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  const auto add_curve = [&](const std::optional<Fit>& fit, PlotSeries::Style style) {
    if (!fit) return;
    const bool power = fit->form == attention::FitForm::kPower;
    const std::string name = power ? fmt::format("{:.4g} / (1 - S)^{:.4g}", fit->a, fit->b)
                                   : fmt::format("{:.4g} * exp({:.4g} S)", fit->a, fit->b);
    panel.series.push_back({name, style, curve(*fit)});
  };
  add_curve(c.exponential, PlotSeries::Style::kLine);
  add_curve(c.power, PlotSeries::Style::kDashed);
  // More lengths than this would only repeat colours: the rest is drawn without a name.
  constexpr std::size_t kNamed = 4;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    PlotSeries series;
    if (i < kNamed) series.name = fmt::format("measured, kv_len {}", lengths[i]);
    for (const SweepPoint& p : c.points)
      if (c.samples[p.sample].kv_len == lengths[i])
        series.xy.emplace_back(p.factor, p.counts.of_visited());
    panel.series.push_back(std::move(series));
  }
  return panel;
}

}  // namespace

void describe_phase(Document& document, const CalibratedPhase& phase, bool points) {
  const PhaseCalibration& c = phase.result;
  Document& group = document.group(std::string(phase_name(c.phase)));
  group.field("profile", c.profile);
  group.field("grade", std::string(grade_name(c.grade)));
  group.field("at_lambda_one", c.above_one);
  if (!c.vacuous.empty()) group.field("vacuous", c.vacuous);
  group.table("samples", samples_of(c));
  group.table("fits", fits_of(c));
  group.table("targets", targets_of(c));
  if (points) group.table("points", points_of(c));
}

Table left_out_of(const attention::Samples& samples) {
  Table table{{"sample", "length", "kv_len", "first_query_row"}, {}};
  for (const attention::Samples::LeftOut& one : samples.left_out)
    table.rows.push_back({one.name, std::int64_t{one.length}, std::int64_t{one.kv_len},
                          std::int64_t{one.first_row}});
  return table;
}

Table warnings_of(const CalibratedPhases& phases, const std::vector<attention::Phase>& missing) {
  Table table{{"phase", "sparsity", "warning"}, {}};
  for (const attention::Phase phase : missing)
    table.rows.push_back({std::string(phase_name(phase)), 0.0,
                          "the input holds no such call: the factor is 0, the dense kernel"});
  for (const CalibratedPhase& p : phases) {
    const std::string phase(phase_name(p.result.phase));
    for (const CalibrationTarget& t : p.result.targets) {
      if (t.sparsity != p.wanted) continue;
      double most = t.achieved.of_visited();
      for (const attention::SweepPoint& point : p.result.points)
        most = std::max(most, point.counts.of_visited());
      if (t.sparsity > most)
        table.rows.push_back(
            {phase, t.sparsity,
             fmt::format(
                 "out of reach: no threshold here skips more than {:.4g} of a sample's tiles",
                 most)});
      if (t.extrapolated)
        table.rows.push_back(
            {phase, t.sparsity,
             "the factor lies beyond the sparsities that the curve was fitted to"});
      if (t.kv_len_at_one >= 1)
        table.rows.push_back(
            {phase, t.sparsity,
             fmt::format("lambda is 1 or more up to a kv_len of {}{}: {}", t.kv_len_at_one,
                         t.above_one_here ? ", also of samples here" : "", p.result.above_one)});
    }
  }
  return table;
}

nlohmann::ordered_json serving_config(const CalibratedPhases& phases) {
  nlohmann::ordered_json factors;
  for (const attention::Phase phase : {attention::Phase::kPrefill, attention::Phase::kDecode}) {
    const CalibratedPhase* p = phase_of(phases, phase);
    factors[std::string(phase_name(phase))] =
        p == nullptr ? 0.0 : shortened(p->result.exponential->factor(p->wanted));
  }
  return {{"sparse_attention_config",
           {{"algorithm", "skip_softmax"}, {"threshold_scale_factor", factors}}}};
}

nlohmann::ordered_json checkpoint_config(const CalibratedPhases& phases) {
  nlohmann::ordered_json factor = {{"formula", "a * exp(b * target_sparsity)"}};
  nlohmann::ordered_json wanted = nlohmann::ordered_json::object();
  for (const CalibratedPhase& p : phases) {
    if (!p.result.vacuous.empty()) continue;
    const std::string name(phase_name(p.result.phase));
    factor[name] = {{"a", shortened(p.result.exponential->a)},
                    {"b", shortened(p.result.exponential->b)}};
    wanted[name] = p.wanted;
  }
  nlohmann::ordered_json group = {{"algorithm", "skip_softmax"},
                                  {"threshold_scale_factor", factor},
                                  {"target_sparsity", wanted}};
  return {{"sparse_attention_config", {{"config_groups", {{"group_0", group}}}}}};
}

std::string calibration_plot(const CalibratedPhases& phases) {
  std::vector<PlotPanel> panels;
  for (const CalibratedPhase& p : phases) panels.push_back(panel_of(p.result));
  return svg_plot("Skip-softmax calibration: sparsity against threshold scale factor", panels);
}

}  // namespace assay::tools
