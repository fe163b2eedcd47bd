// What a subject is given: a group (sizes, arithmetic) and rounds (routing, payload rows). Plain
// data that a generator, a replayer or a test fills in and keeps. Decides SPEC VER-1.1: the payload
// of expert ids is the routing itself, so the two cannot disagree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "model/core/expected.hpp"
#include "model/moe/combine.hpp"
#include "model/moe/dispatch.hpp"
#include "model/moe/profile.hpp"
#include "model/moe/rank_mask.hpp"

namespace assay::verify {

struct GroupSetup {
  std::int32_t ep_size = 1;      // all ranks live in this process
  std::int32_t num_experts = 1;  // places on the wire, contiguous over ranks
  std::int32_t top_k = 1;
  std::int32_t hidden_size = 1;  // elements of a combined row; payload bytes are independent of it
  std::int32_t max_tokens_per_rank = 1;      // capacity: no round has a larger max
  std::int32_t max_payload_bytes_total = 0;  // capacity; 0: what the first rounds need
  std::int32_t invalid_expert_id = -1;       // must not name an expert
  moe::Dtype combine_dtype = moe::Dtype::kBf16;
  bool low_precision_combine = false;
  const moe::CombineProfile* profile = nullptr;  // nullptr: default_combine_profile()
  std::int32_t num_statistics = 0;  // capacity: words that a rank may tell all others in a round
  bool expert_lists = false;        // rounds want the slots of each local expert
  std::string options;              // passed to the subject as they are
  std::uint64_t seed = 1;           // schedule of a simulated subject
  std::uint64_t experts_key = 0;    // of the stand-in experts (SPEC MOE-4)
  bool nan_and_inf = false;         // let the stand-in produce them
};

// Rows of one payload of one round, packed: [src] -> [t, bytes_per_token].
struct RoundPayload {
  moe::Payload payload;
  // Empty for the payload that holds expert ids: its rows are topk_ids.
  std::vector<std::vector<std::byte>> rows;
};

// One round. Refill it in place from round to round and nothing is allocated after the first. Rows
// should differ from round to round: with equal rows nobody can see that one is stale.
struct Round {
  std::int32_t max_tokens_per_rank = 1;
  std::vector<std::vector<std::int32_t>> topk_ids;  // [src] -> [t, k], physical ids
  // In wire order; exactly one holds expert ids. One named "topk_weights" of 4 * top_k bytes is f32
  // router weights to the stand-in experts; everything else is opaque.
  std::vector<RoundPayload> payloads;
  moe::RankMask alive = moe::RankMask::all();
  // Loads of experts that every rank tells every rank: [src] -> [n], n as large for all; empty:
  // none travel.
  std::vector<std::vector<std::int32_t>> statistics;

  std::int32_t num_statistics() const {
    return statistics.empty() ? 0 : static_cast<std::int32_t>(statistics[0].size());
  }
  std::int32_t num_tokens(RankId src, std::int32_t top_k) const {
    return static_cast<std::int32_t>(topk_ids[static_cast<std::size_t>(src.value())].size()) /
           top_k;
  }
};

// A sentence about the first thing that makes the group or a round no legal request.
Status check_setup(const GroupSetup& setup);
Status check_round(const GroupSetup& setup, const Round& round);

std::int64_t payload_bytes_total(const Round& round);

}  // namespace assay::verify
