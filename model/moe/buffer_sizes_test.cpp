// Published sizes, byte by byte, and the limits of the questions.
#include "model/moe/buffer_sizes.hpp"

#include "model/moe/moe_testing.hpp"

namespace assay::moe {
namespace {

BufferSizes sizes(Recipe recipe) {
  return buffer_sizes({.recipe = recipe,
                       .ep_size = 8,
                       .num_experts = 256,
                       .top_k = 6,
                       .hidden_size = 5120,
                       .max_tokens_per_rank = 4096})
      .value();
}

TEST_CASE("hidden 5120, top-6, MXFP8 on 8 ranks are the published bytes", "[MOE-5.1][MOE-5.2]") {
  const BufferSizes s = sizes(Recipe::kMxfp8);
  REQUIRE(s.payloads.size() == 4);
  CHECK(s.payloads[0].bytes_per_token == 5120);
  CHECK(s.payloads[1].bytes_per_token == 160);
  CHECK(s.payloads[2].bytes_per_token == 24);
  CHECK(s.payloads[2].holds_expert_ids);
  CHECK(s.payloads[3].bytes_per_token == 24);
  CHECK(s.dispatch_per_target == 5328);
  CHECK(s.max_targets == 6);
  CHECK(s.dispatch_per_token == 31968);
  CHECK(s.combine_per_row == 10240);
  CHECK(s.combine_per_token == 61440);
  CHECK(s.recv_hidden_per_rank == 160ll << 20);
}

TEST_CASE("the other recipes fix their bytes", "[MOE-5.1]") {
  CHECK(sizes(Recipe::kBf16).dispatch_per_target == 10240 + 48);
  CHECK(sizes(Recipe::kFp8Block128).dispatch_per_target == 5120 + 40 * 4 + 48);
  const BufferSizes nvfp4 = sizes(Recipe::kNvfp4);
  CHECK(nvfp4.dispatch_per_target == 2560 + 320 + 48);
  // 28 % of BF16: 4.5 bits against 16.
  const double share = static_cast<double>(nvfp4.dispatch_per_target) /
                       static_cast<double>(nvfp4.bf16_dispatch_per_target);
  CHECK(share > 0.28);
  CHECK(share < 0.29);
  // Hidden sizes that no block divides: the last block has a scale of its own.
  const auto odd = recipe_payloads(Recipe::kFp8Block128, 2880, 4).value();
  CHECK(odd[1].bytes_per_token == 23 * 4);
  CHECK(recipe_payloads(Recipe::kNvfp4, 33, 4).value()[0].bytes_per_token == 17);
  for (const Recipe recipe : {Recipe::kBf16, Recipe::kFp8Block128, Recipe::kMxfp8, Recipe::kNvfp4})
    CHECK(parse_recipe(recipe_name(recipe)).value() == recipe);
  CHECK(parse_recipe("fp8").error().sentence ==
        "recipe is \"fp8\"; allowed are bf16, fp8_block128, mxfp8 and nvfp4");
}

TEST_CASE("all-gather moves ep rows per token, all-to-all at most top_k", "[MOE-5.3]") {
  const BufferSizes s = sizes(Recipe::kMxfp8);
  CHECK(s.all_gather_hidden == 8ll * 4096 * 5120);
  CHECK(s.top_k_hidden == 6ll * 4096 * 5120);
  CHECK(s.all_to_all_hidden == 6ll * 4096 * 5120);
  const auto few = buffer_sizes(
      {.ep_size = 4, .num_experts = 8, .top_k = 6, .hidden_size = 64, .max_tokens_per_rank = 2});
  CHECK(few->max_targets == 4);
  CHECK(few->all_to_all_hidden == 4 * 2 * 128);
  CHECK(few->top_k_hidden == 6 * 2 * 128);

  // Every alive rank holds every token of alive ranks.
  auto alive = RankMask::all();
  alive.set_alive(RankId{2}, false);
  const auto placement = Placement::contiguous(3, 3);
  const auto routing = Routing::make(1, 4, {{0, 0, 1}, {2}, {0, 1}});
  CHECK(all_gather_rows(plan_dispatch(*placement, *routing, SlotRule::kCanonical).value()) == 18);
  CHECK(all_gather_rows(plan_dispatch(*placement, *routing, SlotRule::kCanonical, alive).value()) ==
        8);
}

TEST_CASE("large sizes do not overflow, wrong ones are refused", "[MOE-5.2]") {
  const auto large = buffer_sizes({.ep_size = 256,
                                   .num_experts = 256,
                                   .top_k = 22,
                                   .hidden_size = 1 << 20,
                                   .max_tokens_per_rank = 1 << 20});
  CHECK(large->combine_region_per_rank == 256ll << 41);
  CHECK(buffer_sizes({.ep_size = 0}).error().sentence == "ep is 0; allowed are 1 to 256");
  CHECK(buffer_sizes({.hidden_size = 0}).error().sentence ==
        "hidden is 0; allowed are 1 to 1048576");
  CHECK(buffer_sizes({.top_k = 23}).error().sentence == "top_k is 23; allowed are 1 to 22");
  CHECK(buffer_sizes({.max_tokens_per_rank = 0}).error().sentence ==
        "max_tokens is 0; it must be at least 1");
}

}  // namespace
}  // namespace assay::moe
