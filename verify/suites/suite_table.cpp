// The suites, as data: one row per axis. Decides SPEC VER-4.3.
#include <fmt/format.h>

#include <algorithm>

#include "model/core/text.hpp"
#include "model/moe/reduction_tree.hpp"
#include "verify/suites/suites.hpp"

namespace assay::verify {

namespace {

// Every top_k that combine has a tree for, at an ep that allows a token without holes, with enough
// tokens for every class of holes: all masks up to 6 picks, 2 * top_k + 6 classes beyond.
std::vector<std::string> every_top_k() {
  std::vector<std::string> cases;
  for (const std::int32_t top_k : moe::allowed_top_k()) {
    const std::int32_t ep = std::max(2, top_k);
    const std::int32_t patterns = top_k <= 6 ? 1 << top_k : 2 * top_k + 6;
    const std::int32_t tokens = (patterns + ep - 1) / ep;
    cases.push_back(
        fmt::format("ep={} experts={} top_k={} hidden=44 max_tokens={} tokens={} "
                    "rounds=1 seed={}",
                    ep, 2 * ep, top_k, tokens, tokens, top_k));
  }
  return cases;
}

// K on both sides of ep, one rank, an ep that is no power of two, a hidden that no vector fits.
std::vector<std::string> shapes() {
  return {"ep=1 experts=4 top_k=2 hidden=16 max_tokens=3 tokens=3 rounds=2 seed=1",
          "ep=2 experts=8 top_k=4 hidden=24 max_tokens=4 tokens=4,2 rounds=2 seed=2",
          "ep=4 experts=32 top_k=8 hidden=64 max_tokens=5 tokens=5,1,3,2 rounds=2 seed=3",
          "ep=8 experts=64 top_k=4 hidden=33 max_tokens=3 tokens=3 rounds=2 seed=4",
          "ep=5 experts=20 top_k=2 hidden=7 max_tokens=6 tokens=6,0,1,2,3 rounds=2 seed=5",
          "ep=16 experts=32 top_k=6 hidden=32 max_tokens=2 tokens=2 rounds=1 seed=6"};
}

std::vector<std::string> uneven_experts() {
  return {"ep=4 experts=6 top_k=4 hidden=16 max_tokens=4 tokens=4 rounds=1 seed=1",
          "ep=5 experts=64 top_k=8 hidden=16 max_tokens=4 tokens=4 rounds=1 seed=2",
          "ep=3 experts=16 top_k=10 hidden=16 max_tokens=4 tokens=4,1,2 rounds=1 seed=3",
          "ep=6 experts=6 top_k=2 hidden=16 max_tokens=4 tokens=4 rounds=1 seed=4",
          "ep=7 experts=13 top_k=4 hidden=16 max_tokens=3 tokens=3 rounds=1 seed=5"};
}

std::vector<std::string> rounds(std::int32_t count) {
  return {fmt::format("ep=4 experts=16 top_k=4 hidden=24 max_tokens=5 tokens=5,1,0,3 rounds={} "
                      "seed=1",
                      count),
          fmt::format("ep=3 experts=9 top_k=2 hidden=9 max_tokens=3 tokens=2,3,1 rounds={} seed=2",
                      count)};
}

Suite combine_suite(std::string_view name, std::string_view title, moe::Dtype dtype,
                    bool low_precision, bool nan_and_inf) {
  Suite suite{.name = name, .title = title, .clause = "MOE-3.1"};
  suite.axes.routing = Axes::Routing::kHolePatterns;
  suite.axes.dtype = dtype;
  suite.axes.low_precision = low_precision;
  suite.axes.nan_and_inf = nan_and_inf;
  suite.cases = every_top_k();
  suite.random_cases = false;
  suite.all_profiles = true;
  suite.needs = {{&Coverage::combine_elements},
                 {&Coverage::tokens_with_holes},
                 {&Coverage::tokens_without_rows}};
  return suite;
}

// The other protocol of our kernels: what it does in its own way, and taking turns with Fence. A
// subject that does not know the options declines.
void add_sentinel_suites(std::vector<Suite>& list) {
  const auto add = [&](std::string_view name, std::string_view title, std::string_view clause,
                       Axes axes, std::vector<std::string> cases, std::vector<Need> needs) {
    if (axes.options.empty()) axes.options = "protocol=sentinel";
    needs.push_back({&Coverage::rows});
    list.push_back({.name = name,
                    .title = title,
                    .clause = clause,
                    .axes = axes,
                    .cases = std::move(cases),
                    .needs = std::move(needs)});
  };
  const Need padding{&Coverage::padding_rows};
  add("sentinel", "Sentinel: slots are token indices, rows lie apart", "KER-6.2", {}, shapes(),
      {{&Coverage::remote_rows}, padding});
  add("sentinel_ones", "Sentinel: rows full of the word that means not yet", "KER-6.3",
      {.payloads = Axes::Payloads::kChanging, .all_ones = true}, rounds(6), {padding});
  add("sentinel_invalid", "Sentinel: ids -1 and INT_MIN arrive as they are", "KER-6.3",
      {.routing = Axes::Routing::kDuplicates, .invalid_percent = 40}, shapes(),
      {{&Coverage::invalid_picks}, {&Coverage::duplicate_picks}});
  add("sentinel_sizes", "Sentinel: other sizes and payloads in every round, empty ranks", "KER-6.4",
      {.payloads = Axes::Payloads::kChanging, .zero_token_ranks = true, .changing_max = true},
      rounds(40), {{&Coverage::zero_token_ranks}, {&Coverage::max_changes, 40}});
  add("sentinel_dying_ranks", "Sentinel: ranks die from round to round", "KER-6.4",
      {.masks = Axes::Masks::kShrinking}, rounds(4),
      {{&Coverage::masked_picks}, {&Coverage::mask_changes}});
  add("sentinel_wrap", "Sentinel: the phase counter passes 2^32", "KER-6.4",
      {.options = "protocol=sentinel first_epoch=4294967290"}, rounds(8),
      {{&Coverage::rounds, 16}});
  add("sentinel_one_resident", "Sentinel: one group waits, the others send and leave", "KER-6.5",
      {.zero_token_ranks = true, .options = "protocol=sentinel resident_ctas=1"}, shapes(),
      {{&Coverage::zero_token_ranks}});
  add("protocol_switch", "Fence and Sentinel by turns on one group", "KER-6.8",
      {.payloads = Axes::Payloads::kChanging,
       .zero_token_ranks = true,
       .changing_max = true,
       .options = "protocol=auto sentinel_max_tokens=4"},
      {"ep=4 experts=16 top_k=4 hidden=24 max_tokens=8 tokens=8,1,0,3 rounds=30 seed=1",
       "ep=3 experts=9 top_k=2 hidden=9 max_tokens=7 tokens=2,7,1 rounds=30 seed=2"},
      {{&Coverage::max_changes, 20}, {&Coverage::zero_token_ranks}});
  for (const bool low_precision : {false, true}) {
    list.push_back(combine_suite(low_precision ? "sentinel_combine_fp8" : "sentinel_combine",
                                 low_precision ? "Sentinel: rows come back as e4m3"
                                               : "Sentinel: every top_k, hole class and profile",
                                 moe::Dtype::kBf16, low_precision, false));
    list.back().axes.options = "protocol=sentinel";
  }
}

// The rows that change an axis; everything else is the default.
std::vector<Suite> make_suites() {
  const Need rows{&Coverage::rows};
  const Need remote{&Coverage::remote_rows};
  std::vector<Suite> list;
  const auto add = [&](std::string_view name, std::string_view title, std::string_view clause,
                       const Axes& axes, std::vector<std::string> cases, std::vector<Need> needs) {
    needs.push_back(rows);
    list.push_back({.name = name,
                    .title = title,
                    .clause = clause,
                    .axes = axes,
                    .cases = std::move(cases),
                    .needs = std::move(needs)});
  };
  add("dispatch", "Tokens reach the ranks of their experts, at many shapes", "MOE-2.1", {},
      shapes(), {remote, {&Coverage::padding_rows}});
  add("duplicates", "Several picks of one token at one rank send one row", "MOE-2.1",
      {.routing = Axes::Routing::kOneRank}, shapes(), {{&Coverage::duplicate_picks}});
  add("repeated_ids", "A token that names one expert twice sends one row", "MOE-2.1",
      {.routing = Axes::Routing::kDuplicates}, shapes(), {{&Coverage::duplicate_picks}});
  add("uneven", "num_experts that ep does not divide, and one expert per rank", "MOE-1.2", {},
      uneven_experts(), {remote});
  add("skewed", "A few experts get most tokens, some ranks none", "MOE-2.4",
      {.routing = Axes::Routing::kSkewed}, shapes(), {{&Coverage::empty_pairs}});
  add("invalid", "Ids that name no expert send nothing", "MOE-1.4", {.invalid_percent = 40},
      shapes(), {{&Coverage::invalid_picks}, {&Coverage::tokens_with_holes}});
  add("invalid_marker", "Absence is marked with num_experts instead of -1", "MOE-1.4",
      {.invalid_percent = 40, .invalid_is_num_experts = true}, shapes(),
      {{&Coverage::invalid_picks}, {&Coverage::padding_rows}});
  add("zero_tokens", "Ranks without tokens take part all the same", "MOE-2.9",
      {.zero_token_ranks = true}, shapes(), {{&Coverage::zero_token_ranks}});
  add("masks", "Some ranks are dead", "MOE-2.2", {.masks = Axes::Masks::kFixed}, shapes(),
      {{&Coverage::masked_picks}});
  add("dying_ranks", "Ranks die from round to round", "MOE-2.2", {.masks = Axes::Masks::kShrinking},
      rounds(4), {{&Coverage::masked_picks}, {&Coverage::mask_changes}});
  add("payload_bytes", "Rows of 1, 2, 3, 6, 12, 20 and 5,328 bytes", "MOE-2.6",
      {.payloads = Axes::Payloads::kOdd}, shapes(), {remote});
  add("payload_changes", "Another payload set in every round", "MOE-2.6",
      {.payloads = Axes::Payloads::kChanging}, rounds(6), {{&Coverage::payload_changes, 5}});
  add("sizes", "max_tokens_per_rank goes up and down", "MOE-2.6",
      {.zero_token_ranks = true, .changing_max = true}, rounds(6),
      {{&Coverage::max_changes, 5}, {&Coverage::zero_token_ranks}});
  add("rounds", "Many rounds on one group", "VER-2.5",
      {.payloads = Axes::Payloads::kChanging, .zero_token_ranks = true, .changing_max = true},
      rounds(40), {{&Coverage::rounds, 80}, {&Coverage::max_changes, 40}});
  // Two flags per round: the third round wraps. Only a simulated subject can start there.
  add("epoch_wrap", "The phase counter passes 2^32", "VER-2.5",
      {.options = "first_epoch=4294967290"}, rounds(8), {{&Coverage::rounds, 16}});
  // One group in flight per rank is what the protocol declares as its minimum.
  add("one_resident", "Only one group of a rank is in flight at a time", "VER-2.3",
      {.zero_token_ranks = true, .options = "resident_ctas=1"}, shapes(),
      {{&Coverage::zero_token_ranks}});
  // Every rule is legal by counter; only a subject that knows the option promises the order.
  auto cases = shapes();
  for (std::string& line : rounds(6)) cases.push_back(std::move(line));
  add("ordered_slots", "Slots are numbered in the order of tokens", "KER-1.7",
      {.payloads = Axes::Payloads::kChanging,
       .zero_token_ranks = true,
       .changing_max = true,
       .options = "slots=ordered"},
      cases, {remote, {&Coverage::padding_rows}, {&Coverage::max_changes}});
  add("ordered_masks", "Ordered slots, and ranks die from round to round", "KER-1.7",
      {.routing = Axes::Routing::kDuplicates,
       .masks = Axes::Masks::kShrinking,
       .invalid_percent = 20,
       .options = "slots=ordered"},
      rounds(4), {{&Coverage::masked_picks}, {&Coverage::duplicate_picks}});
  add("statistics", "Every rank tells every rank its experts' loads in dispatch", "MOE-2.10",
      {.masks = Axes::Masks::kShrinking, .zero_token_ranks = true, .statistics = true}, cases,
      {{&Coverage::statistics_words}, {&Coverage::mask_changes}, {&Coverage::zero_token_ranks}});
  for (const bool sentinel : {false, true}) {
    add(sentinel ? "sentinel_lists" : "slot_lists",
        sentinel ? "Sentinel: the slots of each local expert, apart from each other"
                 : "The slots of each local expert, as a gathering GEMM wants them",
        "MOE-2.8",
        {.routing = Axes::Routing::kDuplicates,
         .masks = Axes::Masks::kFixed,
         .invalid_percent = 20,
         .zero_token_ranks = true,
         .changing_max = true,
         .expert_lists = true,
         .options = sentinel ? "protocol=sentinel" : ""},
        cases, {{&Coverage::list_entries}, {&Coverage::duplicate_picks}});
  }
  add("fp8_recipe", "fp8 rows with scales travel as bytes", "MOE-5.1",
      {.recipe = moe::Recipe::kMxfp8},
      {"ep=4 experts=16 top_k=4 hidden=64 max_tokens=5 tokens=5 "
       "rounds=2 seed=1"},
      {remote});
  list.back().random_cases = false;  // block sizes divide few hidden sizes
  // 2 ranks * 900,000 tokens * 5,328 bytes: the rows of source 1 begin beyond 2^32.
  add("large_offsets", "Receive buffers of more than 4 GiB", "MOE-2.6",
      {.payloads = Axes::Payloads::kLarge},
      {"ep=2 experts=2 top_k=1 hidden=1 max_tokens=900000 tokens=3 rounds=1 seed=1"}, {remote});
  list.back().random_cases = false;
  add_sentinel_suites(list);
  list.push_back(combine_suite("combine_bf16", "bf16 rows, every top_k, hole class and profile",
                               moe::Dtype::kBf16, false, false));
  list.push_back(combine_suite("combine_f16", "f16 rows, every top_k, hole class and profile",
                               moe::Dtype::kF16, false, false));
  list.push_back(combine_suite("combine_f32", "f32 rows, every top_k, hole class and profile",
                               moe::Dtype::kF32, false, false));
  list.push_back(
      combine_suite("combine_nan", "NaN and Inf among bf16 rows", moe::Dtype::kBf16, false, true));
  list.back().needs.push_back({&Coverage::nan_elements});
  list.push_back(
      combine_suite("combine_fp8", "bf16 rows that cross as e4m3", moe::Dtype::kBf16, true, false));
  return list;
}

}  // namespace

std::span<const Suite> suites() {
  static const std::vector<Suite> list = make_suites();
  return list;
}

Expected<const Suite*> find_suite(std::string_view name) {
  std::vector<std::string> names;
  for (const Suite& suite : suites()) {
    if (suite.name == name) return &suite;
    names.emplace_back(suite.name);
  }
  return bad_input(fmt::format("suite is {}; allowed are {}", in_quotes(name), joined(names)));
}

}  // namespace assay::verify
