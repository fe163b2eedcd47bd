// Models, routers, and what a routing moves. Decides SPEC VER-20.1 (the perfect router) and
// VER-20.3 (bandwidth by the logical definition and on the busiest rank's links). No GPU is needed
// here.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/core/expected.hpp"
#include "model/moe/buffer_sizes.hpp"

namespace assay::verify::bench {

struct Model {
  std::string name;
  std::int32_t hidden_size = 1, top_k = 1, num_experts = 1;
};
std::span<const Model> models();
Expected<Model> find_model(std::string_view name);

// Flat pick s = token * top_k + k goes to rank s mod ep, there to local expert (s div ep) mod
// experts per rank. Every rank has the same. Errors: num_experts that ep does not divide.
Expected<std::vector<std::int32_t>> perfect_router(const Model& model, std::int32_t ep_size,
                                                   std::int32_t num_tokens);

// Bytes from each rank to each, [source * ep + target], own rank included.
struct Traffic {
  std::int32_t ep_size = 1;
  std::vector<std::int64_t> bytes;

  std::int64_t of(std::int32_t source, std::int32_t target) const {
    return bytes[static_cast<std::size_t>(source * ep_size + target)];
  }
  // What leaves or enters the busiest rank over its links, whichever is more.
  std::int64_t busiest_rank() const;
  std::int64_t remote() const;  // all of it
};

// `row_bytes` for each distinct target rank of each token.
Expected<Traffic> dispatch_traffic(const Model& model, std::int32_t ep_size,
                                   std::span<const std::vector<std::int32_t>> topk_ids,
                                   std::int64_t row_bytes);
// The way back: rows go from target to source.
Traffic returned(const Traffic& dispatch, std::int64_t dispatch_row_bytes,
                 std::int64_t combine_row_bytes);

// batch * min(ep, top_k) * bytes per token / time, in GB/s.
double logical_bandwidth(std::int64_t batch, std::int32_t ep_size, std::int32_t top_k,
                         std::int64_t row_bytes, double microseconds);
double link_bandwidth(const Traffic& traffic, double microseconds);

}  // namespace assay::verify::bench
