// combine.bits is seen to fail for each way to get a sum wrong, and to say which it was.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "model/core/testing.hpp"
#include "verify/checks/checks.hpp"
#include "verify/checks/spoiled_rounds.hpp"

namespace assay::verify {
namespace {

using testing::first_of;
using testing::now;
using testing::outcome_of;
using testing::recv_row;
using testing::says;

// Combined rows of every token once more, by another arithmetic or from changed terms.
using ChangeTerms = std::function<void(std::vector<const std::byte*>&)>;
void recombine(const assay_round& r, const moe::CombineArithmetic& arithmetic,
               const ChangeTerms& change = {}) {
  const assay_group_config& c = testing::config();
  const auto combine =
      moe::Combine::make(arithmetic, {.top_k = c.top_k, .dtype = moe::Dtype::kBf16});
  REQUIRE(combine.has_value());
  for (int src = 0; src < c.ep_size; ++src) {
    for (int token = 0; token < r.num_tokens[src]; ++token) {
      std::vector<const std::byte*> terms;
      for (int k = 0; k < c.top_k; ++k) {
        const int pick = token * c.top_k + k;
        const int dst = r.target_rank[src][pick];
        const int row = src * r.max_tokens_per_rank + r.target_slot[src][pick];
        terms.push_back(dst < 0 ? nullptr
                                : static_cast<const std::byte*>(r.expert_out[dst]) +
                                      row * c.hidden_size * 2);
      }
      if (change) change(terms);
      combine->row(terms, c.hidden_size,
                   static_cast<std::byte*>(r.out[src]) + token * c.hidden_size * 2);
    }
  }
}

const Axes kHoles{.routing = Axes::Routing::kHolePatterns};
constexpr const char* kHolesCase =
    "ep=5 experts=10 top_k=4 hidden=64 max_tokens=8 tokens=8 rounds=2 seed=3";

TEST_CASE("one wrong element is found with its place, terms, order and distance", "[VER-2.2]") {
  const Outcome outcome = outcome_of({.after_combine = [](const assay_round& r, auto number) {
    if (now(number)) static_cast<std::uint16_t*>(r.out[2])[3 * 16 + 5] ^= 1;
  }});
  const Mismatch& mismatch = first_of(outcome);
  CHECK(mismatch.check == "combine.bits");
  CHECK(mismatch.coordinate("rank") == 2);
  CHECK(mismatch.coordinate("token") == 3);
  CHECK(mismatch.coordinate("hidden") == 5);
  CHECK(mismatch.wrong == 1);
  CHECK(mismatch.total == 15 * 16);
  CHECK((mismatch.values->got ^ mismatch.values->expected) == 1);
  CHECK(mismatch.terms.size() == 4);
  CHECK(mismatch.order == "(0+1)+(2+3)");
  CHECK(mismatch.sums.size() == 3);
  REQUIRE(mismatch.ulp.has_value());
  CHECK(mismatch.ulp->different() == 1);
  CHECK(mismatch.ulp->total() == mismatch.total);
}

TEST_CASE("every other known arithmetic is told apart and its profile named", "[VER-2.6]") {
  const auto same_sum = [](const moe::CombineArithmetic& a, const moe::CombineArithmetic& b) {
    const bool payload = a.accumulate == moe::CombineArithmetic::Accumulate::kPayload;
    return a.accumulate == b.accumulate && a.holes == b.holes && a.trees == b.trees &&
           (payload || a.flush_subnormals == b.flush_subnormals);
  };
  std::vector<moe::CombineArithmetic> seen{moe::default_combine_profile().arithmetic};
  for (const moe::CombineProfile& profile : moe::combine_profiles()) {
    const auto& other = profile.arithmetic;
    if (std::any_of(seen.begin(), seen.end(), [&](const auto& a) { return same_sum(a, other); }))
      continue;
    seen.push_back(other);
    INFO(profile.name);
    const Mismatch mismatch = first_of(
        outcome_of({.after_combine = [&](const assay_round& r, auto) { recombine(r, other); }},
                   kHoles, kHolesCase));
    CHECK(mismatch.check == "combine.bits");
    CHECK(says(mismatch,
               fmt::format("profile {} ({}) fits instead: all", profile.name, profile.variant)));
  }
  CHECK(seen.size() == 5);  // R1, R2, R2+ftz, R3, R3+ftz
}

TEST_CASE("swapped terms are named", "[VER-2.6]") {
  const auto& arithmetic = moe::default_combine_profile().arithmetic;
  const Mismatch mismatch = first_of(outcome_of({.after_combine =
                                                     [&](const assay_round& r, auto) {
                                                       recombine(r, arithmetic, [](auto& terms) {
                                                         std::swap(terms[1], terms[2]);
                                                       });
                                                     }},
                                                kHoles, kHolesCase));
  CHECK(mismatch.check == "combine.bits");
  CHECK(says(mismatch, "if terms"));
  CHECK(says(mismatch, "are swapped: all"));
}

TEST_CASE("a term that is left out is named", "[VER-2.6]") {
  const auto& arithmetic = moe::default_combine_profile().arithmetic;
  const Mismatch mismatch =
      first_of(outcome_of({.after_combine =
                               [&](const assay_round& r, auto) {
                                 recombine(r, arithmetic, [](auto& terms) { terms[3] = nullptr; });
                               }},
                          kHoles, kHolesCase));
  CHECK(says(mismatch, "term k3 of rank"));
}

TEST_CASE("a combine that reads a row without a token gives NaN and is called that", "[VER-2.6]") {
  const auto& arithmetic = moe::default_combine_profile().arithmetic;
  // The last row of the last source's block holds no token in this case.
  const auto spoil = [&](const assay_round& r, auto) {
    const auto* padding =
        static_cast<const std::byte*>(r.expert_out[0]) + (3 * r.max_tokens_per_rank - 1) * 16 * 2;
    recombine(r, arithmetic, [&](auto& terms) {
      for (auto& term : terms)
        if (term != nullptr) term = padding;
    });
  };
  const Mismatch mismatch = first_of(outcome_of({.after_combine = spoil}));
  CHECK(says(mismatch, "a row that holds no token was read"));
}

TEST_CASE("a sum from the round before is round.isolation", "[VER-2.5]") {
  std::vector<std::byte> before;
  const auto spoil = [&](const assay_round& r, std::int64_t number) {
    auto* row = static_cast<std::byte*>(r.out[1]);
    const std::vector<std::byte> fresh(row, row + 32);
    if (now(number)) std::copy(before.begin(), before.end(), row);
    before = fresh;
  };
  const Mismatch mismatch = first_of(outcome_of({.after_combine = spoil}));
  CHECK(mismatch.check == "round.isolation");
  CHECK(mismatch.coordinate("token") == 0);
  CHECK(says(mismatch, "stale: it is the row of token 0 of round 0"));
}

TEST_CASE("a combined row that was not written is called that", "[VER-2.6]") {
  const Mismatch mismatch =
      first_of(outcome_of({.after_combine = [](const assay_round& r, std::int64_t number) {
        if (!now(number)) return;
        const auto poison = recv_row(r, 0, 0, 0, r.max_tokens_per_rank - 1);
        std::memcpy(r.out[0], poison.data(), 32);
      }}));
  CHECK(mismatch.check == "combine.bits");
  CHECK(says(mismatch, "nothing was written there"));
}

}  // namespace
}  // namespace assay::verify
