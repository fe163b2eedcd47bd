// A 32-bit digest of a sequence of values, equal on every machine: what ranks compare to find out
// that they disagree about a layout or a round. Decides the function (SPEC COR-4.4); it detects
// mistakes, not attacks.
#pragma once

#include <cstdint>
#include <string_view>

#include "model/core/platform.hpp"

namespace assay {

// FNV-1a over little-endian bytes with a 64-bit state, folded by a finalising mix so that the low
// 32 bits depend on every input bit. Text is preceded by its length, so "ab","c" differs from
// "a","bc".
class Digest {
 public:
  ASSAY_HD constexpr Digest& add(std::uint64_t value) {
    for (int byte = 0; byte < 8; ++byte) mix(static_cast<std::uint8_t>(value >> (8 * byte)));
    return *this;
  }
  constexpr Digest& add(std::string_view text) {
    add(std::uint64_t{text.size()});
    for (const char c : text) mix(static_cast<std::uint8_t>(c));
    return *this;
  }
  ASSAY_HD constexpr std::uint32_t value() const {
    std::uint64_t x = state_;
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdULL;  // MurmurHash3's 64-bit finaliser
    x ^= x >> 33;
    return static_cast<std::uint32_t>(x ^ (x >> 32));
  }

 private:
  ASSAY_HD constexpr void mix(std::uint8_t byte) {
    state_ = (state_ ^ byte) * 0x100000001b3ULL;  // the FNV prime for 64 bits
  }
  std::uint64_t state_ = 0xcbf29ce484222325ULL;  // the FNV offset basis for 64 bits
};

}  // namespace assay
