// What thresholds are calibrated on: calls of a kernel, cut out of a file with captured queries and
// keys or out of generated ones. Decides which rows make a prefill and which a decode call (SPEC
// ATT-8.8) and how heads are generated (SPEC ATT-8.9); what is measured on them is calibration.hpp.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/attention/problem.hpp"

namespace assay::attention {

enum class Phase : std::uint8_t { kPrefill, kDecode };
std::string_view phase_name(Phase phase);  // "prefill", "decode"

// One prefill call, or the decode calls of one request, each a request of the problem. Thresholds
// are off; values decide nothing, so the keys stand in for them.
struct Sample {
  Phase phase = Phase::kPrefill;
  std::string name;         // "request 3", "synthetic"
  std::int32_t kv_len = 0;  // of its longest call
  Problem problem;
};

struct Samples {
  // A request that has no call of a length that the plan asks for: it has fewer keys, or no query
  // row among them (its first is the token first_row).
  struct LeftOut {
    std::string name;
    std::int32_t length = 0, kv_len = 0, first_row = 0;
  };
  std::vector<Sample> list;
  std::vector<LeftOut> left_out;
  std::vector<std::shared_ptr<const void>> memory;  // what the problems point into
};

struct SamplePlan {
  // Lengths of which the first keys of every request are taken, each a sample of its own. Empty:
  // the request as it is.
  std::vector<std::int32_t> lengths;
  int decode_rows = 16;        // last query rows that become decode calls where no step says so
  std::optional<int> splits;   // of decode calls; else the file's, else 1
  std::optional<float> scale;  // of q . k; else the file's, else 1 / sqrt(head_dim)
};

// Queries and keys of a capture or of golden attention's input, in any layout that file_input.hpp
// reads but MLA's; values may be missing. Query rows are the last ones of their request. `step` I32
// [total_q], if there, says which rows were one call. A schema in the metadata must be
// assay.capture or assay.golden, version 1. Of assay.params scale, softcap and splits count, and a
// mask must be causal; a profile, a threshold and out_dtype decide nothing here. Errors: everything
// else, tensors that would change scores, and rows that are not finite.
Expected<Samples> samples_of_file(const std::string& path, const SamplePlan& plan);

// Error if a length of the plan is that of no sample: such a length is never left out silently.
Status check_lengths(const SamplePlan& plan, const Samples& samples);

// A generated request whose scores have a known shape. In nats: content, normal with standard
// deviation `spread`; `sink_gain` more for the first `sinks` keys; and for keys at a distance of n
// about local_gain * (1 - 1 / local_width)^n more.
struct SyntheticHeads {
  std::int32_t heads = 8;
  std::int32_t kv_heads = 8;        // divides heads
  std::int32_t kv = 4096;           // keys, and query rows
  std::int32_t dim = 128;           // multiple of 32
  std::vector<float> spread = {2};  // of head h: spread[h modulo its size]
  std::int32_t sinks = 0;
  float sink_gain = 8;
  float local_gain = 0;
  std::int32_t local_width = 256;
  std::uint64_t seed = 1;
};
// "heads=8 kv_heads=8 kv=4096 dim=128 spread=2 sinks=0 sink_gain=8 local_gain=0 local_width=256
// seed=1"; missing keys have these defaults, kv_heads that of heads. print() writes all of them.
Expected<SyntheticHeads> parse_synthetic(std::string_view text);
std::string print(const SyntheticHeads& heads);

// With a plan without lengths: a quarter, a half and all of the keys (whole numbers of them).
Expected<Samples> samples_of_synthetic(const SyntheticHeads& heads, const SamplePlan& plan);

}  // namespace assay::attention
