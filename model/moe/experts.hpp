// The stand-in for experts: a deterministic function of everything a rank received for a token, so
// that a wrong byte anywhere in dispatch changes combine's inputs, and values chosen to tell the
// combine arithmetics apart (cancelling pairs across ranks, wide exponents, subnormals, -0, near
// overflow). It is our own (SPEC MOE-4) and models no network.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "model/core/id.hpp"
#include "model/moe/combine.hpp"
#include "model/moe/dispatch.hpp"
#include "model/moe/placement.hpp"

namespace assay::moe {

struct StandIn {
  std::uint64_t key = 0;       // other keys, other values
  Dtype dtype = Dtype::kBf16;  // of expert_out
  std::int32_t hidden_size = 1;
  bool nan_and_inf = false;  // true: about one element in 4,096 is NaN or Inf (SPEC MOE-4.3)
};

// A pick of the token that is local to the rank, in k order.
struct LocalPick {
  PhysicalExpertId expert;
  std::uint32_t weight_bits = 0;  // of the f32 router weight, 0 if no weights travelled
};

// One output row. payload_rows: the token's received row of every payload in wire order; they are
// the same on every rank that received the token, and so is what makes pairs cancel.
// out: [hidden_size] of dtype, no alignment needed. Cost: about 1 ns per 4 bytes in, 2 out.
void stand_in_row(const StandIn& config, std::span<const std::span<const std::byte>> payload_rows,
                  std::span<const LocalPick> picks, std::byte* out);

// One rank: what its experts would do with its receive buffers.
struct ReceivedPayload {
  Payload payload;
  std::span<const std::byte> recv;  // [ep, max, bytes_per_token]
};
// payloads in wire order. The one with holds_expert_ids gives the picks; `weights` is the index of
// the f32 [k] router weights among the payloads, or nothing. Rows that hold no token are set to NaN
// (all bits of the dtype's canonical NaN), so that a combine that reads one is seen. Present rows:
// slot < recv_counters[src], or under kTokenIndex those whose ids name a local expert.
// expert_out: [ep, max, h] of dtype. CONTRACT: exactly one id payload, sizes fit.
void stand_in_rank(const StandIn& config, const Placement& placement, RankId rank,
                   std::int32_t max_tokens_per_rank, SlotRule rule,
                   std::span<const ReceivedPayload> payloads, std::optional<std::size_t> weights,
                   std::span<const std::int32_t> recv_counters, std::span<std::byte> expert_out);

}  // namespace assay::moe
