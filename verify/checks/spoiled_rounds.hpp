// For tests only: one group and three rounds on a subject with one fault, and what the checks say.
// Decides nothing.
#pragma once

#include <algorithm>
#include <string>

#include "model/core/testing.hpp"
#include "verify/gen/gen.hpp"
#include "verify/subject/broken_subject.hpp"
#include "verify/subject/driver.hpp"
#include "verify/suites/suites.hpp"

namespace assay::verify::testing {

// Rank 1 sends all of its tokens to rank 0 and more; duplicates occur; every rank has padding.
inline constexpr const char* kCase =
    "ep=3 experts=6 top_k=4 hidden=16 max_tokens=8 tokens=6,5,4 rounds=3 seed=5";

inline Scenario scenario_of(const Axes& axes = {}, const char* line = kCase) {
  const auto c = parse_moe_case(line, MoeCase{});
  REQUIRE(c.has_value());
  auto scenario = make_scenario(*c, axes);
  REQUIRE(scenario.has_value());
  return *scenario;
}

inline Outcome outcome_of(Spoil spoil, const Axes& axes = {}, const char* line = kCase) {
  const Subject subject = broken_subject(std::move(spoil));
  auto outcome = run_scenario(subject, scenario_of(axes, line));
  REQUIRE(outcome.has_value());
  return *outcome;
}

inline bool says(const Mismatch& mismatch, const std::string& part) {
  for (const std::string& sentence : mismatch.diagnoses)
    if (sentence.find(part) != std::string::npos) return true;
  UNSCOPED_INFO("what: " << mismatch.sentence);
  for (const std::string& sentence : mismatch.diagnoses) UNSCOPED_INFO("diagnosis: " << sentence);
  return false;
}

inline const Mismatch& first_of(const Outcome& outcome) {
  REQUIRE(outcome.state == Outcome::State::kMismatch);
  REQUIRE(!outcome.mismatches.empty());
  return outcome.mismatches.front();
}

// The spoiling happens once, in the second round.
inline bool now(std::int64_t number) { return number == 1; }

// A pair of ranks with at least `rows` rows in this round.
struct Block {
  int dst, src;
};
inline Block block_with(const assay_round& round, int rows) {
  for (int dst = 0; dst < config().ep_size; ++dst) {
    for (int src = 0; src < config().ep_size; ++src)
      if (round.recv_counters[dst][src] >= rows) return {dst, src};
  }
  FAIL("no block has " << rows << " rows");
  return {};
}

inline void swap_rows(const assay_round& round, int payload, const Block& block, int a, int b) {
  const auto x = recv_row(round, payload, block.dst, block.src, a);
  const auto y = recv_row(round, payload, block.dst, block.src, b);
  std::swap_ranges(x.begin(), x.end(), y.begin());
}

}  // namespace assay::verify::testing
