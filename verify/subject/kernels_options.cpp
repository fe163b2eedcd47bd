// Reading options, and looking at rounds before anything runs.
#include "verify/subject/kernels_options.hpp"

#include <fmt/format.h>

#include <vector>

#include "model/core/case_text.hpp"
#include "model/core/text.hpp"
#include "verify/subject/one_sided_plan.hpp"

namespace assay::verify {

namespace {

struct Number {
  std::string_view key;
  std::uint32_t* value;
  std::uint32_t least;
};

struct Flag {
  std::string_view key;
  bool* value;
};

template <class Entry, std::size_t n>
const Entry* find(const Entry (&entries)[n], std::string_view key) {
  for (const Entry& entry : entries)
    if (entry.key == key) return &entry;
  return nullptr;
}

Status check_ids(const assay_kernels_config& config, const assay_round& round) {
  for (std::int32_t rank = 0; rank < config.ep_size; ++rank) {
    if (!is_alive(round, RankId(rank))) continue;
    const std::int32_t* id = round.topk_ids[rank];
    for (std::int32_t token = 0; token < round.num_tokens[rank]; ++token)
      for (std::int32_t pick = 0; pick < config.top_k; ++pick, ++id)
        if (*id < 0 || *id >= config.num_experts)
          return unsupported(
              fmt::format("rank {} token {} pick {} has expert id {}, which names none of {} "
                          "experts; valid_ids=1 declines that",
                          rank, token, pick, *id, config.num_experts));
  }
  return Done{};
}

// Blocks that wait for each other must be resident together, and nobody but their author knows how
// many there are: of all that were read, one per token at most.
Status check_together(const assay_kernels_config& config, const KernelsOptions& options,
                      const assay_round& round) {
  std::int64_t tokens = 0;
  for (std::int32_t rank = 0; rank < config.ep_size; ++rank)
    if (is_alive(round, RankId(rank))) tokens += round.num_tokens[rank];
  if (tokens <= options.together) return Done{};
  return unsupported(
      fmt::format("{} tokens of ranks that share a device; option together allows {}", tokens,
                  options.together));
}

}  // namespace

Expected<KernelsOptions> parse_kernels_options(std::string_view text) {
  KernelsOptions options;
  const Number numbers[] = {{"timeout_ms", &options.timeout_ms, 1},
                            {"skew_us", &options.skew_us, 0},
                            {"replays", &options.replays, 0},
                            {"together", &options.together, 1}};
  const Flag flags[] = {{"graph", &options.graph},
                        {"keep_recv", &options.keep_recv},
                        {"valid_ids", &options.valid_ids}};
  ASSAY_TRY(const std::vector<KeyValue> fields, parse_key_values(text));
  for (const auto& [key, value] : fields) {
    if (key == "ranks") {
      ASSAY_TRY(options.ranks, parse_ranks(value));
    } else if (const Number* const number = find(numbers, key)) {
      ASSAY_TRY(*number->value, parse_integer<std::uint32_t>(key, value, number->least, 1'000'000));
    } else if (const Flag* const flag = find(flags, key)) {
      ASSAY_TRY(const std::uint32_t on, parse_integer<std::uint32_t>(key, value, 0, 1));
      *flag->value = on != 0;
    } else {
      options.others += fmt::format("{}{}={}", options.others.empty() ? "" : " ", key, value);
    }
  }
  return options;
}

Expected<std::string> parse_ranks(std::string_view text) {
  if (text != "auto" && text != "devices" && text != "emulated")
    return bad_input(
        fmt::format("option ranks is {}; allowed are auto, devices and emulated", in_quotes(text)));
  return std::string(text);
}

Status check_kernels_rounds(const assay_kernels_config& config, const KernelsOptions& options,
                            bool share_a_device, std::span<const assay_round> rounds) {
  // Streams beyond the hardware's queues (separate_queues) would wait behind each other's kernels.
  constexpr std::int32_t kStreamsMax = 32;
  if (share_a_device && config.ep_size > kStreamsMax)
    return unsupported(
        fmt::format("{} ranks share a device; at most {} streams run beside each other",
                    config.ep_size, kStreamsMax));
  for (const assay_round& round : rounds) {
    if (options.valid_ids) ASSAY_CHECK(check_ids(config, round));
    if (share_a_device) ASSAY_CHECK(check_together(config, options, round));
  }
  return Done{};
}

}  // namespace assay::verify
