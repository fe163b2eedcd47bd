// Options of a subject over somebody's kernels, and the rounds that they decline. Decides how they
// are spelled and what a declined round's sentence says (SPEC CUD-5.5, CUD-5.6); needs no GPU.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "model/core/expected.hpp"
#include "verify/subject/one_sided_kernels.h"

namespace assay::verify {

// All optional, as "key=value key=value"; what is not among them goes to the library:
//   ranks       "devices": one GPU per rank; "emulated": all ranks on device 0, a stream each;
//               default: devices if there are enough, else emulated
//   timeout_ms  until a rank's part of a round must have ended (default 10000)
//   skew_us     up to so long each rank's host thread sleeps before each phase, at random
//   graph       1: each phase is recorded in a graph, which later rounds update
//   replays     whole rounds replayed from a graph, without a host in between, before every round
//   together    tokens of a round that ranks on one GPU may have in all (default 512)
//   keep_recv   1: receive buffers are not poisoned, for kernels to which their content matters;
//               of rows that hold no token, only expert ids are looked at then
//   valid_ids   1: rounds in which an id names no expert are declined, for kernels whose
//               precondition it is that none does
struct KernelsOptions {
  std::string ranks = "auto";
  std::uint32_t timeout_ms = 10'000;
  std::uint32_t skew_us = 0;
  std::uint32_t replays = 0;
  std::uint32_t together = 512;
  bool graph = false;
  bool keep_recv = false;
  bool valid_ids = false;
  std::string others;  // the library's, in their order
};

Expected<KernelsOptions> parse_kernels_options(std::string_view text);
// Option ranks of the subjects that run on GPUs: auto, devices or emulated.
Expected<std::string> parse_ranks(std::string_view text);

// Unsupported: an id that names no expert where valid_ids asks for that (SPEC CUD-5.6), ranks that
// share a device and are too many, or have too many tokens.
Status check_kernels_rounds(const assay_kernels_config& config, const KernelsOptions& options,
                            bool share_a_device, std::span<const assay_round> rounds);

}  // namespace assay::verify
