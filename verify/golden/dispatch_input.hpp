// What golden dispatch reads: routing, placement and payload rows of one round. Decides which files
// are refused, and nothing about what becomes of them.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "model/moe/dispatch.hpp"
#include "verify/golden/op.hpp"

namespace assay::verify {

inline constexpr std::string_view kDispatchPayload = "payload.";  // what their tensors begin with

struct DispatchRows {  // of one payload in the file
  moe::Payload payload;
  TensorView view;                        // [ep, t, ...]
  std::vector<const std::byte*> sources;  // [ep] -> [t, bytes_per_token]
};

// Valid while the file is open.
struct DispatchInput {
  std::int32_t ep = 1, tokens = 0, top_k = 1, max_tokens = 1;
  std::optional<moe::DispatchPlan> plan;  // always there once read
  std::vector<std::int32_t> num_tokens;   // [ep]
  std::vector<DispatchRows> payloads;     // in the order of their names
  std::optional<std::int32_t> invalid_id;

  std::size_t picks() const {  // of one rank, of rows that hold a token or not
    return static_cast<std::size_t>(tokens) * static_cast<std::size_t>(top_k);
  }
};

// `other`: a slot rule in place of the one that the parameters name. Errors: tensors and parameters
// that contradict each other or exceed the model's limits, with the value and what is allowed;
// unsupported, for receive buffers that are too large to build.
Expected<DispatchInput> read_dispatch(const GoldenInput& in,
                                      std::optional<moe::SlotRule> other = {});

}  // namespace assay::verify
