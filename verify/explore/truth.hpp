// What every round of an explored program must do, computed once by the spec route (model/moe) and
// compared with in every execution: which rows arrive where, what the experts make of them, and
// the combined rows, bit for bit. Decides how rounds are generated for a case (SPEC VER-8.2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "model/core/case_text.hpp"
#include "model/moe/moe.hpp"
#include "verify/subject/round.hpp"

namespace assay::verify {

struct RoundTruth {
  Round round;
  std::vector<moe::Payload> payloads;
  std::int32_t ids_payload = 0;
  moe::DispatchPlan plan;                          // with canonical slots where any are legal
  std::vector<std::vector<std::byte>> expert_out;  // [dst] -> [src, slot, h], slots of the plan
  std::vector<std::vector<std::byte>> out;         // [src] -> [t, h]

  // [bytes_per_token] of what token `token` of `src` sends.
  std::span<const std::byte> sent_row(std::size_t payload, RankId src, TokenId token) const;
  // Its row among the expert rows of `dst`; the token must have been sent there.
  std::span<const std::byte> expert_row(RankId dst, RankId src, TokenId token) const;
};

// slot_rules: one per round, as its protocol promises. Errors: rounds that are no legal request.
Expected<std::vector<RoundTruth>> make_truth(const GroupSetup& setup, std::vector<Round> rounds,
                                             std::span<const moe::SlotRule> slot_rules);

// Whose row these bytes are, over all rounds: for the words "it is token 1 of rank 0 in round 2".
struct RowOrigin {
  std::size_t round;
  RankId src;
  TokenId token;
};
std::optional<RowOrigin> origin_of(std::span<const RoundTruth> rounds, std::size_t payload,
                                   std::span<const std::byte> row);

// The rounds of a case: two payloads, rows and ids. Every word of a row holds its round, source,
// token and position, so no two rows of a program are equal; but the second word of a row is all
// ones in every second token, which a protocol may take for "nothing here yet", and a NaN in the
// others. `changing_max`: every even round is made for one token per rank. Errors: an illegal case,
// an odd hidden size (a word is two elements).
struct CaseRounds {
  GroupSetup setup;
  std::vector<Round> rounds;
};
Expected<CaseRounds> rounds_of_case(const MoeCase& moe_case, bool changing_max = false);

}  // namespace assay::verify
