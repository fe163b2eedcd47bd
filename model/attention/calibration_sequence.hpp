// One request's queries and keys, and the calls that are cut out of it. Internal to
// calibration_input.cpp and calibration_synthetic.cpp. Decides SPEC ATT-8.8.
#pragma once

#include <string>
#include <vector>

#include "model/attention/calibration_input.hpp"

namespace assay::attention {

struct Sequence {
  Problem shape;  // everything but requests
  std::string name;
  Rows q;  // its query rows are the last q_len of kv_len positions
  Rows k;
  std::int32_t q_len = 0;
  std::int32_t kv_len = 0;
  std::vector<std::int32_t> step;  // of every query row, or empty
};

// Lengths that the request cannot be cut to go into left_out.
void add_calls(const Sequence& sequence, const SamplePlan& plan, Samples& out);

}  // namespace assay::attention
