// Poison in device memory: the byte, how wide what lies around an output is, how many received
// slots are looked at, and which hold a token all the same. Shared by the subjects that run on GPUs
// (SPEC CUD-5.3, CUD-5.5); where it is put and looked for is theirs.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "model/core/expected.hpp"
#include "verify/subject/subject.h"

namespace assay::verify {

inline constexpr int kDevicePoison = 0xDB;
// Poison before and after what combine may write: as wide as the checks' own guards.
inline constexpr std::uint64_t kCanaryBytes = 256;
// A receive buffer beyond this is copied as far as there are tokens; the rest is not looked at.
inline constexpr std::uint64_t kWholeBufferMax = std::uint64_t{64} << 20;

// Slots of each source, of max_tokens_per_rank, to look at where `buffers` receive buffers of rows
// of `row_bytes` are copied: all, or, where that would be much, as many as any source has tokens.
// No slot rule reaches further.
inline std::uint64_t slots_looked_at(const assay_round& round, std::uint64_t ep_size,
                                     std::uint64_t buffers, std::uint64_t row_bytes) {
  const auto max = static_cast<std::uint64_t>(round.max_tokens_per_rank);
  if (ep_size * max * row_bytes * buffers <= kWholeBufferMax) return max;
  std::uint64_t most = 0;
  for (std::uint64_t rank = 0; rank < ep_size; ++rank)
    most = std::max<std::uint64_t>(most, static_cast<std::uint32_t>(round.num_tokens[rank]));
  return std::min(most, max);
}

// A row of int32 expert ids names an expert: its slot holds a token where no counter says so
// (SPEC MOE-2.3).
inline bool names_expert(std::span<const std::byte> ids, std::int32_t num_experts) {
  for (std::size_t at = 0; at + sizeof(std::int32_t) <= ids.size(); at += sizeof(std::int32_t)) {
    std::int32_t id;
    std::memcpy(&id, ids.data() + at, sizeof id);
    if (id >= 0 && id < num_experts) return true;
  }
  return false;
}

inline bool is_device_poison(std::span<const std::byte> bytes) {
  return bytes.empty() || (bytes[0] == std::byte{kDevicePoison} &&
                           std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

// `out` is a canary, the rows that combine may write, of which the first `written` bytes are
// tokens', and a canary: all but those bytes must be poison.
inline Status check_canaries(std::int32_t rank, std::span<const std::byte> out,
                             std::uint64_t written, std::uint64_t tokens) {
  if (!is_device_poison(out.first(kCanaryBytes)))
    return bad_input(fmt::format("combine of rank {} wrote before its first output row", rank));
  if (!is_device_poison(out.subspan(kCanaryBytes + written)))
    return bad_input(
        fmt::format("combine of rank {} wrote beyond its {} output rows", rank, tokens));
  return Done{};
}

}  // namespace assay::verify
