// Bytes: what a recipe puts on the wire per token, how large receive buffers are, and what the
// alternatives (per-pick copies, AllGather + ReduceScatter) would move. It decides the payload
// lists of recipes; the workspace of our own kernels is decided in cuda/, values of quantised
// payloads in model/numerics.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "model/core/expected.hpp"
#include "model/core/id.hpp"
#include "model/moe/dispatch.hpp"

namespace assay::moe {

enum class Recipe : std::uint8_t { kBf16, kFp8Block128, kMxfp8, kNvfp4 };
std::string_view recipe_name(Recipe recipe);  // "bf16", "fp8_block128", "mxfp8", "nvfp4"
Expected<Recipe> parse_recipe(std::string_view name);

// hidden, [scales], topk_ids, topk_weights, in wire order (SPEC MOE-5.1). Errors: hidden_size < 1
// or above kMaxHiddenSize, top_k outside 1..22.
Expected<std::vector<Payload>> recipe_payloads(Recipe recipe, std::int32_t hidden_size,
                                               std::int32_t top_k);
inline constexpr std::int32_t kMaxHiddenSize = 1 << 20;

struct SizeQuestion {
  Recipe recipe = Recipe::kBf16;
  std::int32_t ep_size = 1;
  std::int32_t num_experts = 1;
  std::int32_t top_k = 1;
  std::int32_t hidden_size = 1;
  std::int32_t max_tokens_per_rank = 1;
  std::int64_t combine_bytes_per_element = 2;  // BF16 rows come back
};

// All in bytes. "per token" is what one token causes; "per rank" is one rank with max tokens.
struct BufferSizes {
  std::vector<Payload> payloads;
  std::int64_t dispatch_per_target;       // all payloads, one token, one target rank
  std::int32_t max_targets;               // min(top_k, ep_size)
  std::int64_t dispatch_per_token;        // dispatch_per_target * max_targets
  std::int64_t combine_per_row;           // one returned row
  std::int64_t combine_per_token;         // combine_per_row * max_targets
  std::int64_t recv_hidden_per_rank;      // [ep, max] rows of the hidden payload alone
  std::int64_t recv_per_rank;             // [ep, max] rows of all payloads
  std::int64_t combine_region_per_rank;   // [ep, max] returned rows
  std::int64_t bf16_dispatch_per_target;  // the same token with the bf16 recipe
  // Rows of hidden_size elements that one rank's tokens cause, own rank included (SPEC MOE-5.3).
  std::int64_t all_gather_hidden;  // ep_size * max * hidden bytes
  std::int64_t all_to_all_hidden;  // max_targets * max * hidden bytes
  std::int64_t top_k_hidden;       // top_k * max * hidden bytes: the bound without deduplication
};
Expected<BufferSizes> buffer_sizes(const SizeQuestion& question);

// AllGather + ReduceScatter as row sets: every alive rank holds every token. Its reduction order is
// specified nowhere, so it has traffic and no combine (SPEC MOE-5.3). Rows moved in one direction,
// a rank's own rows included.
std::int64_t all_gather_rows(const DispatchPlan& plan);

}  // namespace assay::moe
