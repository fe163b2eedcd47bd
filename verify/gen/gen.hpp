// From a case line to rounds, and from random bits to case lines. A case fixes the sizes, the axes
// fix what is odd about the rounds (masks, invalid ids, payload bytes that no vector fits ...). All
// bytes are a keyed hash of where they belong, so a wrong row names its origin. Decides SPEC VER-6;
// the values of expert rows are model/moe/experts.hpp.
//
//   ASSAY_TRY(Scenario scenario, make_scenario(moe_case, {.routing = Axes::Routing::kSkewed}));
//   Round round;
//   for (std::int32_t r = 0; r < scenario.num_rounds; ++r) { fill_round(scenario, r, round); ... }
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/core/case_text.hpp"
#include "model/core/expected.hpp"
#include "model/moe/buffer_sizes.hpp"
#include "verify/subject/round.hpp"

namespace assay::verify {

// What is odd about the rounds of a scenario. The default is nothing.
struct Axes {
  enum class Routing : std::uint8_t {
    kUniform,       // distinct experts at random
    kSkewed,        // few experts get most picks: uneven rows per rank, empty ranks
    kOneRank,       // all picks of a token at one rank: top_k - 1 duplicates
    kDuplicates,    // the same expert may be picked twice
    kHolePatterns,  // every class of holes that top_k and ep allow, one class per token
  };
  enum class Payloads : std::uint8_t {
    kRecipe,    // hidden, [scales], ids, weights
    kOdd,       // rows of 1, 2, 3, 6, 12, 20 bytes around ids and weights
    kChanging,  // another set every round
    kLarge,     // ids and rows of 5,328 bytes: few tokens make large offsets
  };
  enum class Masks : std::uint8_t {
    kNone,
    kFixed,      // some ranks are dead in all rounds
    kShrinking,  // ranks die from round to round and stay dead
  };
  Routing routing = Routing::kUniform;
  Payloads payloads = Payloads::kRecipe;
  moe::Recipe recipe = moe::Recipe::kBf16;  // where nobody asks for another
  Masks masks = Masks::kNone;
  std::int32_t invalid_percent = 0;  // of picks: -1, E, INT_MIN, INT_MAX and neighbours
  bool valid_ids = false;            // for subjects that demand it: every pick names an expert
  bool zero_token_ranks = false;     // some ranks have no token in some rounds
  bool changing_max = false;         // max_tokens_per_rank goes up and down from round to round
  bool all_ones = false;             // rows of ones, and rows made to spoil any key that hides ones
  bool statistics = false;           // in two of three rounds every rank tells words to all
  bool expert_lists = false;         // the slots of each local expert are wanted
  bool nan_and_inf = false;
  bool low_precision = false;
  moe::Dtype dtype = moe::Dtype::kBf16;
  std::int32_t invalid_id = -1;
  bool invalid_is_num_experts = false;  // some runners mark absence with num_experts
  std::string_view options = "";        // for the subject: "first_epoch=4294967293"
};

struct Scenario {
  MoeCase moe_case;
  Axes axes;
  moe::Recipe recipe = moe::Recipe::kBf16;
  GroupSetup setup;
  std::int32_t num_rounds = 1;
};

// Errors: a case whose sizes are no legal group, a recipe that the hidden size does not fit.
Expected<Scenario> make_scenario(const MoeCase& moe_case, const Axes& axes = {},
                                 moe::Recipe recipe = moe::Recipe::kBf16,
                                 const moe::CombineProfile* profile = nullptr);

// Round `index` of the scenario; the same for the same arguments. Reuses what `round` holds.
void fill_round(const Scenario& scenario, std::int32_t index, Round& round);

// Rows of a payload: byte b of token t of rank src depends on (key, payload, src, t, b) only
// (SPEC VER-6.1). out: [num_tokens, bytes_per_token]. Cost: about 1 ns per 8 bytes.
void keyed_rows(std::uint64_t key, std::int32_t payload, RankId src, std::int32_t num_tokens,
                std::int64_t bytes_per_token, std::vector<std::byte>& out);
// Router weights, f32 [t, k] in (0, 1), likewise keyed.
void keyed_weights(std::uint64_t key, RankId src, std::int32_t num_tokens, std::int32_t top_k,
                   std::vector<std::byte>& out);

}  // namespace assay::verify
