// Our own random numbers: xoshiro256** seeded by splitmix64, both by definition, so that a seed
// names the same schedule on every platform and with every standard library (SPEC MAC-4.2). Decides
// no distribution beyond `below`.
#pragma once

#include <cstdint>

namespace assay {

// The two halves of splitmix64 (Vigna, public domain reference): what its counter grows by, and the
// bijection of 64 bits that the counter goes through.
inline constexpr std::uint64_t kSplitmix64Step = 0x9E3779B97F4A7C15u;
constexpr std::uint64_t scrambled(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// One step of it.
constexpr std::uint64_t splitmix64(std::uint64_t& state) {
  return scrambled(state += kSplitmix64Step);
}

class Prng {
 public:
  constexpr explicit Prng(std::uint64_t seed) {
    for (std::uint64_t& word : state_) word = splitmix64(seed);
  }

  constexpr std::uint64_t next() {
    const std::uint64_t result = rotate_left(state_[1] * 5, 7) * 9;
    const std::uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = rotate_left(state_[3], 45);
    return result;
  }

  // A number in [0, n). The multiply-high map favours no value by more than n / 2^32, which no
  // search over schedules can notice, and needs no loop.
  constexpr std::uint32_t below(std::uint32_t n) {
    return static_cast<std::uint32_t>(((next() >> 32) * n) >> 32);
  }

 private:
  static constexpr std::uint64_t rotate_left(std::uint64_t x, int bits) {
    return (x << bits) | (x >> (64 - bits));
  }
  std::uint64_t state_[4] = {};
};

}  // namespace assay
