// A round as the C interface wants it: arrays of pointers into the buffers of a RoundView. Decides
// nothing; what each pointer means is subject.h.
#pragma once

#include <cstdint>
#include <vector>

#include "model/core/expected.hpp"
#include "verify/checks/checks.hpp"
#include "verify/subject/buffers.hpp"
#include "verify/subject/subject.h"

namespace assay::verify {

// The structs point into the vectors beside them and into the view, which must stay where it is.
struct AbiRound {
  assay_round round{};
  std::vector<assay_payload> payloads;
  std::vector<std::int32_t> num_tokens;
  std::vector<const std::int32_t*> topk_ids;
  std::vector<std::vector<const void*>> rows;  // [payload][rank]
  std::vector<const void* const*> rows_of;
  std::vector<std::vector<void*>> recv;
  std::vector<void* const*> recv_of;
  std::vector<std::int32_t*> recv_counters, target_rank, target_slot;
  std::vector<const void*> expert_out;
  std::vector<void*> out;
  assay_round_more more{};
  std::vector<const std::int32_t*> told;
  std::vector<std::int32_t*> statistics, list_offsets, list_entries;
};

// Takes all output buffers of a round from the arena, filled with `poison`. The view has its sizes,
// payloads and plan already.
void take_buffers(RoundView& view, BufferArena& arena, std::byte poison);

// Points `abi` at the buffers and inputs of `view`.
void point_at(const RoundView& view, AbiRound& abi);

// The group as the C interface wants it, but for who is asked for more (assay_group_config::more).
// The texts of `setup` and its profile must outlive it.
assay_group_config abi_config(const GroupSetup& setup);

}  // namespace assay::verify
