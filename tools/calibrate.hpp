// What assay calibrate says and writes, out of calibrations that are done: the document,
// TensorRT-LLM's configuration, the plot. Decides their fields (SPEC ATT-8.11); numbers are
// model/attention's.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "model/attention/calibration.hpp"
#include "tools/cli/document.hpp"

namespace assay::tools {

// One of prefill and decode, in this order; phases that nobody measured are not there.
struct CalibratedPhase {
  attention::PhaseCalibration result;
  double wanted = 0.5;  // the sparsity whose factor goes into the configuration
};
using CalibratedPhases = std::vector<CalibratedPhase>;

// "prefill" or "decode" as a group of fields. With `points` also every measured threshold.
void describe_phase(Document& document, const CalibratedPhase& phase, bool points);

// Which lengths were asked for and not cut, of requests that have no call of them.
Table left_out_of(const attention::Samples& samples);

// Of the sparsities that go into the configuration: thresholds of 1 and more, factors beyond what
// was measured (all targets have the same facts as numbers), and phases that were asked for and
// are missing, which the configuration makes dense.
Table warnings_of(const CalibratedPhases& phases, const std::vector<attention::Phase>& missing);

// {"sparse_attention_config": {"algorithm": "skip_softmax", "threshold_scale_factor": {"prefill":
// F, "decode": F}}}, which trtllm-serve takes as --config. A phase that was not calibrated has 0,
// which selects the dense kernel.
nlohmann::ordered_json serving_config(const CalibratedPhases& phases);
// What Model Optimizer leaves in a checkpoint's config.json, with the curve instead of its value.
nlohmann::ordered_json checkpoint_config(const CalibratedPhases& phases);

std::string calibration_plot(const CalibratedPhases& phases);

}  // namespace assay::tools
