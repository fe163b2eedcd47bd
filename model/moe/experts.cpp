// The stand-in's hash and its values (SPEC MOE-4). Decides every constant of both.
#include "model/moe/experts.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "model/numerics/formats.hpp"

namespace assay::moe {

static_assert(std::endian::native == std::endian::little, "words are stored as they are");

namespace {

// --- the hash (SPEC MOE-4.1) --------------------------------------------------------------------

// Odd constants without structure: the fractional parts of sqrt(2), sqrt(3), sqrt(5), times 2^64,
// made odd.
constexpr std::uint64_t kStep = 0x6A09E667F3BCC909;
constexpr std::uint64_t kMul = 0xBB67AE8584CAA73B;
constexpr std::uint64_t kMul2 = 0x3C6EF372FE94F82B;

// Bijective in x, so that different inputs stay different.
constexpr std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 32;
  x *= kMul;
  x ^= x >> 29;
  x *= kMul2;
  return x ^ (x >> 32);
}

// Eight independent chains over 64-byte blocks, because one chain would wait for its multiplier.
// Each step is bijective in the word, so no single changed word can go unnoticed.
std::uint64_t hash_bytes(std::uint64_t seed, std::span<const std::byte> bytes) {
  std::array<std::uint64_t, 8> lanes;
  for (std::size_t i = 0; i < lanes.size(); ++i) lanes[i] = seed + (i + 1) * kStep;
  const auto absorb = [&lanes](const std::byte* block) {
    std::array<std::uint64_t, 8> words;
    std::memcpy(words.data(), block, sizeof words);
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      lanes[i] = (lanes[i] ^ words[i]) * kMul;
      lanes[i] ^= lanes[i] >> 32;
    }
  };
  std::size_t at = 0;
  for (; at + 64 <= bytes.size(); at += 64) absorb(bytes.data() + at);
  if (at < bytes.size()) {
    std::array<std::byte, 64> last{};  // zero-padded; the length below tells paddings apart
    std::memcpy(last.data(), bytes.data() + at, bytes.size() - at);
    absorb(last.data());
  }
  std::uint64_t hash = mix(seed ^ bytes.size());
  for (const std::uint64_t lane : lanes) hash = mix(hash ^ lane) + kStep;
  return hash;
}

// --- the values (SPEC MOE-4.2) ------------------------------------------------------------------

// How a word of elements is made from a word of shared random bits (equal on all ranks that got the
// token) and one of private bits (of this rank). All masks are per element; levels are exponents.
struct ValueClass {
  std::uint32_t base;       // magnitude before the bits below
  std::uint32_t shared;     // bits taken from the shared word: what makes pairs cancel
  std::uint32_t own;        // bits taken from the private word
  std::uint32_t drop_far;   // subtracted from the magnitude where private bit W-3 is set
  std::uint32_t drop_near;  // where private bit W-2 is set
  bool with_zeros;          // zero where private bits W-6, W-5 and W-4 are set
};
using ValueClasses = std::array<ValueClass, 16>;

// `mantissa` bits below `exponent` bits; e(n) is an exponent field of n.
template <class T>
constexpr ValueClasses value_classes() {
  using F = numerics::Format<T>;
  constexpr std::uint32_t sign = F::kSignMask;
  constexpr std::uint32_t frac = F::kMinNormal - 1;
  constexpr auto e = [](std::uint32_t n) { return n << F::kMantissaBits; };
  constexpr auto bias = static_cast<std::uint32_t>(F::kBias);
  constexpr std::uint32_t top = (F::kInfinity >> F::kMantissaBits) - 1;
  // Terms 2^far apart: with the mantissas that is more than f32's 24 bits, so that the order of
  // addition shows after cancellation. f16 has no room for 20 binades above its subnormals.
  constexpr std::uint32_t far = F::kExponentBits == 5 ? 15 : 20;
  constexpr std::uint32_t near = 5;
  constexpr std::uint32_t low = F::kExponentBits == 5 ? bias + 6 : bias - 7;
  constexpr ValueClass wide = {e(low), frac | e(3), sign, e(far), e(near), true};
  constexpr ValueClass wide_high = {e(bias + 7), frac | e(1), sign, e(far), e(near), true};
  constexpr ValueClass to_subnormal = {e(far + near), frac, sign, e(far), e(near), true};
  constexpr ValueClass plain = {e(bias - 3), 0, sign | frac | e(3), 0, 0, true};
  constexpr ValueClass tiny = {0, 0, sign | frac | e(3), 0, 0, true};
  constexpr ValueClass huge = {e(top - 3), 0, sign | frac | e(3), 0, 0, false};
  constexpr ValueClass zeros = {0, sign, 0, 0, 0, false};
  return {wide,  wide,  wide,  wide,         wide,         wide, wide_high, wide_high,
          plain, plain, plain, to_subnormal, to_subnormal, tiny, huge,      zeros};
}

// The same masks in every element of a 64-bit word.
template <class T>
constexpr std::uint64_t spread(std::uint32_t element) {
  constexpr int width = 8 * static_cast<int>(sizeof(T));
  std::uint64_t word = 0;
  for (int at = 0; at < 64; at += width) word |= std::uint64_t{element} << at;
  return word;
}

struct WordClass {
  std::uint64_t base, shared, own, drop_far, drop_near, with_zeros;
};

template <class T>
constexpr std::array<WordClass, 16> word_classes() {
  std::array<WordClass, 16> words{};
  for (std::size_t i = 0; i < words.size(); ++i) {
    const ValueClass c = value_classes<T>()[i];
    words[i] = {spread<T>(c.base),      spread<T>(c.shared),
                spread<T>(c.own),       spread<T>(c.drop_far),
                spread<T>(c.drop_near), c.with_zeros ? ~std::uint64_t{0} : 0};
  }
  return words;
}

// All bits of the elements whose bit `bit` is set in `word`.
template <class T>
constexpr std::uint64_t fill(std::uint64_t word, int bit) {
  constexpr std::uint64_t ones = (std::uint64_t{1} << (8 * sizeof(T) - 1) << 1) - 1;
  return ((word >> bit) & spread<T>(1)) * ones;
}

template <class T>
std::uint64_t make_word(const WordClass& c, std::uint64_t shared, std::uint64_t own) {
  constexpr int width = 8 * static_cast<int>(sizeof(T));
  // No sum or difference crosses an element: the classes stay within the magnitudes.
  std::uint64_t bits = c.base + ((shared & c.shared) | (own & c.own));
  bits -= c.drop_far & fill<T>(own, width - 3);
  bits -= c.drop_near & fill<T>(own, width - 2);
  const std::uint64_t zero = fill<T>(own & (own >> 1) & (own >> 2), width - 6) & c.with_zeros;
  return bits & ~(zero & spread<T>(numerics::Format<T>::kMagnitudeMask));
}

// One element of the word becomes an Inf or a NaN with payload bits of its own (SPEC MOE-4.3).
template <class T>
std::uint64_t put_special(std::uint64_t word, std::uint64_t own) {
  constexpr int width = 8 * static_cast<int>(sizeof(T));
  const int at = static_cast<int>((own >> 1) % (64 / width)) * width;
  const std::uint64_t payload =
      (own & 1) != 0 ? own >> 40 & (numerics::Format<T>::kMinNormal - 1) : 0;
  const std::uint64_t kept = word & ~(std::uint64_t{numerics::Format<T>::kMagnitudeMask} << at);
  return kept | ((numerics::Format<T>::kInfinity | payload) << at);
}

template <class T>
void make_row(const StandIn& config, std::uint64_t token_hash, std::uint64_t rank_hash,
              std::byte* out) {
  static constexpr auto kClasses = word_classes<T>();
  const std::int64_t bytes =
      std::int64_t{config.hidden_size} * static_cast<std::int64_t>(sizeof(T));
  std::uint64_t index = 0;
  for (std::int64_t at = 0; at < bytes; at += 8, ++index) {
    const std::uint64_t shared = mix(token_hash + index * kStep);
    const std::uint64_t own = mix(rank_hash + index * kStep);
    std::uint64_t word = make_word<T>(kClasses[shared >> 60], shared, own);
    // 10 bits for the word, 1 element of it: about one element in 4,096 of a 16-bit format.
    if (config.nan_and_inf && (shared >> 50 & 1023) == 0) word = put_special<T>(word, own);
    std::memcpy(out + at, &word, static_cast<std::size_t>(std::min<std::int64_t>(8, bytes - at)));
  }
}

template <class T>
void fill_nan(std::span<std::byte> rows) {
  const T nan = numerics::canonical_nan<T>();
  for (std::size_t at = 0; at < rows.size(); at += sizeof nan)
    std::memcpy(rows.data() + at, &nan, sizeof nan);
}

// The picks of an id row that are local to `rank`, in k order.
std::size_t local_picks(const Placement& placement, RankId rank, std::span<const std::byte> ids,
                        std::span<const std::byte> weights,
                        std::array<LocalPick, static_cast<std::size_t>(kMaxTopK)>& picks) {
  std::size_t count = 0;
  for (std::size_t at = 0; at + 4 <= ids.size(); at += 4) {
    std::int32_t id = 0;
    std::memcpy(&id, ids.data() + at, sizeof id);
    const auto place = placement.place_of_wire(id);
    if (!place || placement.rank_of(*place) != rank) continue;
    std::uint32_t weight = 0;
    if (!weights.empty()) std::memcpy(&weight, weights.data() + at, sizeof weight);
    picks[count++] = {*place, weight};
  }
  return count;
}

}  // namespace

void stand_in_row(const StandIn& config, std::span<const std::span<const std::byte>> payload_rows,
                  std::span<const LocalPick> picks, std::byte* out) {
  CONTRACT(config.hidden_size >= 1, config.hidden_size);
  std::uint64_t token_hash = mix(config.key + kStep);
  for (const auto& row : payload_rows) token_hash = hash_bytes(token_hash, row);
  std::uint64_t rank_hash = mix(token_hash);
  for (const LocalPick& pick : picks) {
    const auto expert = static_cast<std::uint32_t>(pick.expert.value());
    rank_hash = mix(rank_hash ^ (std::uint64_t{expert} << 32 | pick.weight_bits)) + kStep;
  }
  switch (config.dtype) {
    case Dtype::kBf16:
      return make_row<Bf16>(config, token_hash, rank_hash, out);
    case Dtype::kF16:
      return make_row<F16>(config, token_hash, rank_hash, out);
    case Dtype::kF32:
      return make_row<F32>(config, token_hash, rank_hash, out);
    case Dtype::kE4m3:
      CONTRACT(false, "experts do not write e4m3: the wire conversion belongs to combine");
  }
}

void stand_in_rank(const StandIn& config, const Placement& placement, RankId rank,
                   std::int32_t max_tokens_per_rank, SlotRule rule,
                   std::span<const ReceivedPayload> payloads, std::optional<std::size_t> weights,
                   std::span<const std::int32_t> recv_counters, std::span<std::byte> expert_out) {
  constexpr std::size_t kMaxPayloads = 16;  // two and a half times what any known kernel takes
  CONTRACT(payloads.size() <= kMaxPayloads, payloads.size());
  std::optional<std::size_t> ids;
  for (std::size_t i = 0; i < payloads.size(); ++i)
    if (payloads[i].payload.holds_expert_ids) {
      CONTRACT(!ids, "two payloads hold expert ids");
      ids = i;
    }
  CONTRACT(ids.has_value(), "no payload holds expert ids");
  CONTRACT(payloads[*ids].payload.bytes_per_token <= 4 * kMaxTopK, "too many picks per token");
  const auto ep = static_cast<std::size_t>(placement.ep_size());
  CONTRACT(recv_counters.size() == ep, recv_counters.size(), ep);
  const auto max = static_cast<std::size_t>(max_tokens_per_rank);
  const std::size_t row_bytes = static_cast<std::size_t>(config.hidden_size) *
                                static_cast<std::size_t>(dtype_bytes(config.dtype));
  CONTRACT(expert_out.size() == ep * max * row_bytes, expert_out.size());
  std::array<std::span<const std::byte>, kMaxPayloads> rows;
  std::array<LocalPick, static_cast<std::size_t>(kMaxTopK)> picks;
  for (std::size_t row = 0; row < ep * max; ++row) {
    for (std::size_t i = 0; i < payloads.size(); ++i) {
      const auto bytes = static_cast<std::size_t>(payloads[i].payload.bytes_per_token);
      rows[i] = payloads[i].recv.subspan(row * bytes, bytes);
    }
    const std::size_t count =
        local_picks(placement, rank, rows[*ids],
                    weights ? rows[*weights] : std::span<const std::byte>{}, picks);
    const auto out = expert_out.subspan(row * row_bytes, row_bytes);
    const bool present = rule == SlotRule::kTokenIndex
                             ? count > 0
                             : static_cast<std::int64_t>(row % max) < recv_counters[row / max];
    if (present) {
      stand_in_row(config, std::span(rows).first(payloads.size()), std::span(picks).first(count),
                   out.data());
    } else if (config.dtype == Dtype::kBf16) {  // (SPEC MOE-4.4)
      fill_nan<Bf16>(out);
    } else if (config.dtype == Dtype::kF16) {
      fill_nan<F16>(out);
    } else {
      fill_nan<F32>(out);
    }
  }
}

}  // namespace assay::moe
