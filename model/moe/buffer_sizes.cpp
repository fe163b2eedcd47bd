// The byte arithmetic of buffer_sizes.hpp, and the one table of recipes.
#include "model/moe/buffer_sizes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace assay::moe {

namespace {

// Hidden bytes are elements / elements_per_byte, scales one per block (SPEC MOE-5.1).
struct RecipeRow {
  Recipe recipe;
  std::string_view name;
  std::int64_t bits_per_element;
  std::int64_t block;        // elements per scale; 0: no scales
  std::int64_t scale_bytes;  // of one scale
};
constexpr std::array<RecipeRow, 4> kRecipes = {{
    {Recipe::kBf16, "bf16", 16, 0, 0},
    {Recipe::kFp8Block128, "fp8_block128", 8, 128, 4},  // e4m3, f32 scales
    {Recipe::kMxfp8, "mxfp8", 8, 32, 1},                // e4m3, ue8m0 scales
    {Recipe::kNvfp4, "nvfp4", 4, 16, 1},                // e2m1, e4m3 scales
}};

const RecipeRow& row_of(Recipe recipe) { return kRecipes[static_cast<std::size_t>(recipe)]; }

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::int64_t hidden_bytes(Recipe recipe, std::int64_t hidden_size) {
  return divide_up(hidden_size * row_of(recipe).bits_per_element, 8);
}

}  // namespace

std::string_view recipe_name(Recipe recipe) { return row_of(recipe).name; }

Expected<Recipe> parse_recipe(std::string_view name) {
  for (const RecipeRow& row : kRecipes)
    if (row.name == name) return row.recipe;
  return bad_input(
      fmt::format("recipe is \"{}\"; allowed are bf16, fp8_block128, mxfp8 and nvfp4", name));
}

Expected<std::vector<Payload>> recipe_payloads(Recipe recipe, std::int32_t hidden_size,
                                               std::int32_t top_k) {
  if (hidden_size < 1 || hidden_size > kMaxHiddenSize)
    return bad_input(fmt::format("hidden is {}; allowed are 1 to {}", hidden_size, kMaxHiddenSize));
  if (top_k < 1 || top_k > kMaxTopK)
    return bad_input(fmt::format("top_k is {}; allowed are 1 to {}", top_k, kMaxTopK));
  const RecipeRow& row = row_of(recipe);
  std::vector<Payload> payloads;
  payloads.push_back({"hidden", hidden_bytes(recipe, hidden_size), false});
  if (row.block > 0)  // the last block may be partial; it has a scale of its own
    payloads.push_back({"scales", divide_up(hidden_size, row.block) * row.scale_bytes, false});
  payloads.push_back({"topk_ids", std::int64_t{4} * top_k, true});
  payloads.push_back({"topk_weights", std::int64_t{4} * top_k, false});
  return payloads;
}

Expected<BufferSizes> buffer_sizes(const SizeQuestion& q) {
  ASSAY_TRY(const Placement placement, Placement::contiguous(q.ep_size, q.num_experts));
  if (q.max_tokens_per_rank < 1)
    return bad_input(fmt::format("max_tokens is {}; it must be at least 1", q.max_tokens_per_rank));
  BufferSizes sizes{};
  ASSAY_TRY(sizes.payloads, recipe_payloads(q.recipe, q.hidden_size, q.top_k));
  const auto per_target = [](const std::vector<Payload>& payloads) {
    std::int64_t bytes = 0;
    for (const Payload& payload : payloads) bytes += payload.bytes_per_token;
    return bytes;
  };
  const std::int64_t rows = std::int64_t{q.ep_size} * q.max_tokens_per_rank;
  const std::int64_t hidden = hidden_bytes(q.recipe, q.hidden_size);
  sizes.dispatch_per_target = per_target(sizes.payloads);  // (SPEC MOE-5.2)
  sizes.max_targets = std::min(q.top_k, placement.ep_size());
  sizes.dispatch_per_token = sizes.dispatch_per_target * sizes.max_targets;
  sizes.combine_per_row = q.hidden_size * q.combine_bytes_per_element;
  sizes.combine_per_token = sizes.combine_per_row * sizes.max_targets;
  sizes.recv_hidden_per_rank = rows * hidden;
  sizes.recv_per_rank = rows * sizes.dispatch_per_target;
  sizes.combine_region_per_rank = rows * sizes.combine_per_row;
  ASSAY_TRY(const auto bf16, recipe_payloads(Recipe::kBf16, q.hidden_size, q.top_k));
  sizes.bf16_dispatch_per_target = per_target(bf16);
  // (SPEC MOE-5.3)
  sizes.all_gather_hidden = rows * hidden;
  sizes.all_to_all_hidden = std::int64_t{sizes.max_targets} * q.max_tokens_per_rank * hidden;
  sizes.top_k_hidden = std::int64_t{q.top_k} * q.max_tokens_per_rank * hidden;
  return sizes;
}

std::int64_t all_gather_rows(const DispatchPlan& plan) {
  std::int64_t tokens = 0;
  std::int64_t ranks = 0;
  for (RankId rank{0}; rank.value() < plan.ep_size(); rank = rank.next())
    if (plan.alive(rank)) {
      tokens += plan.num_tokens(rank);
      ++ranks;
    }
  return tokens * ranks;
}

}  // namespace assay::moe
