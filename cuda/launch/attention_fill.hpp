// What the launchers of attention kernels share: the device, and from a checked call to parameters.
// Decides nothing that a caller sees; see attention_launch.hpp.
#pragma once

#include <cstdint>
#include <string_view>

#include "cuda/kernels/attention/params.cuh"
#include "cuda/launch/attention_launch.hpp"

namespace assay::cuda {

struct AttentionDevice {
  int index = 0;
  int multiprocessors = 0;
  std::int64_t l2_bytes = 0;
};
// The current device, if `kernel` ("prefill") runs on it.
Expected<AttentionDevice> hopper(std::string_view kernel);

// Blocks in clusters of `cluster` share a tile of `tile` keys; a copy is a block's share, or a page
// if that is smaller. fetch_bytes as tensor_map() has it.
Status fill_params(const AttentionCall& call, const AttentionDevice& device, int tile, int cluster,
                   int fetch_bytes, attention_kernels::PrefillParams& params);

}  // namespace assay::cuda
