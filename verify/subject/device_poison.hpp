// Poison in device memory: the byte, and how wide what lies around an output is. Shared by the
// subjects that run on GPUs (SPEC CUD-5.3, CUD-5.5); where it is put and looked for is theirs.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "model/core/expected.hpp"

namespace assay::verify {

inline constexpr int kDevicePoison = 0xDB;
// Poison before and after what combine may write: as wide as the checks' own guards.
inline constexpr std::uint64_t kCanaryBytes = 256;
// A receive buffer beyond this is copied as far as there are tokens; the rest is not looked at.
inline constexpr std::uint64_t kWholeBufferMax = std::uint64_t{64} << 20;

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
