// The set of ranks that are alive in a round. It decides the limit of 256 ranks and the polarity of
// the bit (1 is alive); what a dead rank means for dispatch is decided in dispatch.hpp.
#pragma once

#include <array>
#include <cstdint>

#include "model/core/contract.hpp"
#include "model/core/id.hpp"

namespace assay::moe {

// The largest group. Four 64-bit mask words, as the widest known kernel has (SPEC MOE-1.1).
inline constexpr std::int32_t kMaxRanks = 256;

class RankMask {
 public:
  using Words = std::array<std::uint64_t, kMaxRanks / 64>;

  // Everybody is alive, whatever the ep_size.
  static constexpr RankMask all() {
    RankMask mask;
    for (auto& word : mask.words_) word = ~std::uint64_t{0};
    return mask;
  }
  // Bit r % 64 of word r / 64: rank r is alive (SPEC MOE-1.6). Bits of ranks beyond the group are
  // ignored. `words` holds ceil(ep_size / 64) words.
  static RankMask from_words(const std::uint64_t* words, std::int32_t ep_size) {
    CONTRACT(ep_size >= 1 && ep_size <= kMaxRanks, ep_size);
    RankMask mask;
    for (std::int32_t word = 0; word < (ep_size + 63) / 64; ++word)
      mask.words_[static_cast<std::size_t>(word)] = words[word];
    return mask;
  }

  bool alive(RankId rank) const { return (word_of(rank) >> (rank.value() % 64) & 1) != 0; }
  void set_alive(RankId rank, bool alive) {
    const std::uint64_t bit = std::uint64_t{1} << (rank.value() % 64);
    auto& word = words_[index_of(rank)];
    word = alive ? word | bit : word & ~bit;
  }
  std::int32_t num_alive(std::int32_t ep_size) const {
    std::int32_t count = 0;
    for (RankId rank{0}; rank.value() < ep_size; rank = rank.next()) count += alive(rank) ? 1 : 0;
    return count;
  }
  const Words& words() const { return words_; }

  friend bool operator==(const RankMask&, const RankMask&) = default;

 private:
  static std::size_t index_of(RankId rank) {
    CONTRACT(rank.value() >= 0 && rank.value() < kMaxRanks, rank);
    return static_cast<std::size_t>(rank.value() / 64);
  }
  std::uint64_t word_of(RankId rank) const { return words_[index_of(rank)]; }

  Words words_{};
};

}  // namespace assay::moe
