// The sentences about requests that are not legal.
#include "verify/subject/round.hpp"

#include <fmt/format.h>

#include "model/core/text.hpp"
#include "model/moe/placement.hpp"
#include "model/moe/routing.hpp"

namespace assay::verify {

namespace {

Status check_payload(const RoundPayload& entry, const GroupSetup& setup, const Round& round) {
  const moe::Payload& payload = entry.payload;
  if (payload.bytes_per_token < 1 || payload.bytes_per_token > INT32_MAX) {
    return bad_input(fmt::format("payload {} has {} bytes per token; allowed are 1 to {}",
                                 in_quotes(payload.name), payload.bytes_per_token, INT32_MAX));
  }
  if (payload.holds_expert_ids) {
    if (payload.bytes_per_token == 4 * setup.top_k) return Done{};
    return bad_input(fmt::format("the id payload {} has {} bytes per token; top_k {} needs {}",
                                 in_quotes(payload.name), payload.bytes_per_token, setup.top_k,
                                 4 * setup.top_k));
  }
  if (entry.rows.size() != static_cast<std::size_t>(setup.ep_size)) {
    return bad_input(fmt::format("payload {} has rows of {} ranks; ep is {}",
                                 in_quotes(payload.name), entry.rows.size(), setup.ep_size));
  }
  for (RankId src{0}; src.value() < setup.ep_size; src = src.next()) {
    const auto bytes =
        static_cast<std::int64_t>(entry.rows[static_cast<std::size_t>(src.value())].size());
    const std::int64_t needed = round.num_tokens(src, setup.top_k) * payload.bytes_per_token;
    if (bytes != needed) {
      return bad_input(fmt::format("payload {} of rank {} has {} bytes; its tokens need {}",
                                   in_quotes(payload.name), src.value(), bytes, needed));
    }
  }
  return Done{};
}

}  // namespace

std::int64_t payload_bytes_total(const Round& round) {
  std::int64_t total = 0;
  for (const RoundPayload& entry : round.payloads) total += entry.payload.bytes_per_token;
  return total;
}

Status check_setup(const GroupSetup& setup) {
  ASSAY_TRY(const moe::Placement placement,
            moe::Placement::contiguous(setup.ep_size, setup.num_experts));
  ASSAY_CHECK(moe::check_invalid_id(placement, setup.invalid_expert_id));
  if (setup.top_k < 1 || setup.top_k > moe::kMaxTopK) {
    return bad_input(fmt::format("top_k is {}; allowed are 1 to {}", setup.top_k, moe::kMaxTopK));
  }
  if (setup.hidden_size < 1)
    return bad_input(fmt::format("hidden is {}; it must be at least 1", setup.hidden_size));
  if (setup.combine_dtype == moe::Dtype::kE4m3) {
    return bad_input(
        "expert rows are e4m3; allowed are bf16, f16 and f32 (low precision combine "
        "makes e4m3 of them on the way)");
  }
  if (setup.max_tokens_per_rank < 1) {
    return bad_input(
        fmt::format("max_tokens is {}; it must be at least 1", setup.max_tokens_per_rank));
  }
  return Done{};
}

Status check_round(const GroupSetup& setup, const Round& round) {
  if (round.max_tokens_per_rank > setup.max_tokens_per_rank) {
    return bad_input(fmt::format("max_tokens of a round is {}; the group was made for {}",
                                 round.max_tokens_per_rank, setup.max_tokens_per_rank));
  }
  if (round.topk_ids.size() != static_cast<std::size_t>(setup.ep_size)) {
    return bad_input(fmt::format("a round has picks of {} ranks; ep is {}", round.topk_ids.size(),
                                 setup.ep_size));
  }
  ASSAY_CHECK(moe::Routing::make(setup.top_k, round.max_tokens_per_rank, round.topk_ids));
  if (round.alive.num_alive(setup.ep_size) == 0)
    return bad_input("all ranks are dead; one must be alive");
  for (const std::vector<std::int32_t>& told : round.statistics) {
    const auto most = static_cast<std::size_t>(setup.num_statistics);
    if (told.size() != round.statistics[0].size() || told.size() > most)
      return bad_input(
          fmt::format("a rank tells {} statistics, the first one {}; all must tell as "
                      "many, and at most {}",
                      told.size(), round.statistics[0].size(), most));
  }
  if (!round.statistics.empty() &&
      round.statistics.size() != static_cast<std::size_t>(setup.ep_size))
    return bad_input(fmt::format("a round has statistics of {} ranks; ep is {}",
                                 round.statistics.size(), setup.ep_size));
  std::int32_t id_payloads = 0;
  for (const RoundPayload& entry : round.payloads) {
    id_payloads += entry.payload.holds_expert_ids ? 1 : 0;
    ASSAY_CHECK(check_payload(entry, setup, round));
  }
  if (id_payloads != 1) {
    return bad_input(
        fmt::format("{} payloads hold expert ids; exactly one must, or the experts cannot know "
                    "which of them a row is for",
                    id_payloads));
  }
  if (setup.max_payload_bytes_total > 0 &&
      payload_bytes_total(round) > setup.max_payload_bytes_total) {
    return bad_input(fmt::format("the payloads have {} bytes per token; the group was made for {}",
                                 payload_bytes_total(round), setup.max_payload_bytes_total));
  }
  return Done{};
}

}  // namespace assay::verify
