// For tests only: the example plugin with one thing spoiled. A hook runs between the plugin's
// dispatch and the experts, another at the end, and changes what it likes. Decides nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "verify/subject/subject.hpp"

namespace assay::verify::testing {

struct Spoil {
  // Before the experts of any rank run in round `number` (counted since create).
  std::function<void(const assay_round&, std::int64_t number)> after_dispatch;
  // When the plugin is done with it.
  std::function<void(const assay_round&, std::int64_t number)> after_combine;
  int calls_of_experts = 1;
  int return_code = ASSAY_OK;
  const char* message = "";
};

// Valid until the next call; one at a time.
Subject broken_subject(Spoil spoil);

// Views of a round's arrays.
std::span<std::int32_t> targets(const assay_round& round, int rank, int top_k);
std::span<std::int32_t> slots(const assay_round& round, int rank, int top_k);
std::span<std::byte> recv_row(const assay_round& round, int payload, int dst, int src, int slot);
// The group as the plugin was given it.
const assay_group_config& config();

}  // namespace assay::verify::testing
