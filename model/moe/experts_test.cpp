// The stand-in notices every changed bit, and its values are as odd as promised.
#include "model/moe/experts.hpp"

#include <cstring>
#include <random>

#include "model/moe/moe_testing.hpp"
#include "model/numerics/formats.hpp"

namespace assay::moe {
namespace {

using assay::testing::prop;
using Bytes = std::vector<std::byte>;

Bytes random_bytes(std::mt19937& random, std::size_t size) {
  Bytes bytes(size);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

Bytes row_of(const StandIn& config, const std::vector<Bytes>& payloads,
             const std::vector<LocalPick>& picks) {
  std::vector<std::span<const std::byte>> rows;
  for (const Bytes& payload : payloads) rows.emplace_back(payload);
  Bytes out(static_cast<std::size_t>(config.hidden_size * dtype_bytes(config.dtype)) + 1,
            std::byte{0x3C});
  stand_in_row(config, rows, picks, out.data());
  REQUIRE(out.back() == std::byte{0x3C});
  out.pop_back();
  return out;
}

std::size_t equal_bytes(const Bytes& a, const Bytes& b) {
  std::size_t equal = 0;
  for (std::size_t i = 0; i < a.size(); ++i) equal += a[i] == b[i] ? 1 : 0;
  return equal;
}

TEST_CASE("a changed bit anywhere in what a rank received changes its whole output", "[MOE-4.1]") {
  prop("any bit of any payload, any pick, the key", [] {
    std::mt19937 random(*rc::gen::arbitrary<std::uint32_t>());
    std::vector<Bytes> payloads;
    for (int i = 0; i < *in_range(1, 5); ++i)
      payloads.push_back(random_bytes(random, *in_range<std::size_t>(1, 200)));
    std::vector<LocalPick> picks;
    for (int i = 0; i < *in_range(1, 5); ++i)
      picks.push_back({PhysicalExpertId{*in_range(0, 100)}, *in_range<std::uint32_t>(1, 1000)});
    StandIn config{.key = 7, .hidden_size = 128};
    const Bytes before = row_of(config, payloads, picks);
    RC_ASSERT(before == row_of(config, payloads, picks));
    switch (*in_range(0, 5)) {
      case 0: {
        auto& payload = payloads[*in_range<std::size_t>(0, payloads.size())];
        payload[*in_range<std::size_t>(0, payload.size())] ^=
            static_cast<std::byte>(1 << *in_range(0, 8));
        break;
      }
      case 1:
        picks.back().weight_bits ^= 1u << *in_range(0, 32);
        break;
      case 2:
        picks.back().expert = picks.back().expert.next();
        break;
      case 3:
        payloads.back().push_back(std::byte{0});  // a longer row of the same words
        break;
      default:
        ++config.key;
    }
    // A quarter of the bytes may agree by chance (zeros, exponents); a copy agrees in all.
    RC_ASSERT(equal_bytes(before, row_of(config, payloads, picks)) < before.size() * 3 / 4);
  });
}

TEST_CASE("the order of picks and where a byte belongs reach the output", "[MOE-4.1]") {
  std::mt19937 random(3);
  const StandIn config{.key = 5, .hidden_size = 64};
  const Bytes a = random_bytes(random, 24), b = random_bytes(random, 24);
  const LocalPick one{PhysicalExpertId{1}, 7}, two{PhysicalExpertId{2}, 7};
  CHECK(row_of(config, {a, b}, {one, two}) != row_of(config, {b, a}, {one, two}));
  CHECK(row_of(config, {a, b}, {one, two}) != row_of(config, {a, b}, {two, one}));
  CHECK(row_of(config, {a, b}, {one}) != row_of(config, {a, b}, {one, one}));
}

// What the values of many rows are like, for one type.
template <class T>
void check_values(Dtype dtype, bool special) {
  using F = numerics::Format<T>;
  std::mt19937 random(4);
  const StandIn config{.key = 9, .dtype = dtype, .hidden_size = 1000, .nan_and_inf = special};
  std::int64_t nan = 0, infinite = 0, zero = 0, minus_zero = 0, subnormal = 0, huge = 0, all = 0;
  std::int64_t cancelling = 0, far = 0;
  for (int token = 0; token < 200; ++token) {
    const std::vector<Bytes> payloads = {random_bytes(random, 100)};
    const Bytes a = row_of(config, payloads, {{PhysicalExpertId{1}, 1}});
    const Bytes b = row_of(config, payloads, {{PhysicalExpertId{2}, 1}});
    for (std::size_t at = 0; at < a.size(); at += sizeof(T), ++all) {
      T x, y;
      std::memcpy(&x, a.data() + at, sizeof x);
      std::memcpy(&y, b.data() + at, sizeof y);
      nan += numerics::is_nan(x) ? 1 : 0;
      infinite += numerics::is_infinite(x) ? 1 : 0;
      zero += numerics::is_zero(x) ? 1 : 0;
      minus_zero += x.bits == F::kSignMask ? 1 : 0;
      subnormal += numerics::is_subnormal(x) ? 1 : 0;
      const std::uint32_t m = numerics::magnitude(x), n = numerics::magnitude(y);
      huge += m > F::kInfinity - (2u << F::kMantissaBits) && m < F::kInfinity ? 1 : 0;
      cancelling += m == n && m != 0 && x.bits != y.bits ? 1 : 0;
      const auto exponents =
          static_cast<int>(m >> F::kMantissaBits) - static_cast<int>(n >> F::kMantissaBits);
      far += m != 0 && n != 0 && exponents > (dtype == Dtype::kF16 ? 14 : 16) ? 1 : 0;
    }
  }
  INFO(dtype_name(dtype) << ": nan " << nan << " inf " << infinite << " zero " << zero << " -0 "
                         << minus_zero << " subnormal " << subnormal << " huge " << huge
                         << " cancelling " << cancelling << " far " << far << " of " << all);
  CHECK(zero * 50 > all);
  CHECK(minus_zero * 100 > all);
  CHECK(subnormal * 200 > all);
  CHECK(huge * 200 > all);
  CHECK(cancelling * 20 > all);  // equal and opposite on two ranks
  CHECK(far * 20 > all);
  if (special) {
    // 4,096 is the rate per element of 16 bits; a word has half as many f32 elements.
    const std::int64_t expected = all / (dtype == Dtype::kF32 ? 2048 : 4096);
    CHECK(nan + infinite > expected / 2);
    CHECK(nan + infinite < expected * 2);
    CHECK(nan > 0);
    CHECK(infinite > 0);
  } else {
    CHECK(nan == 0);
    CHECK(infinite == 0);
  }
}

TEST_CASE("the stand-in's values cancel across ranks and spread over 2^16", "[MOE-4.2][MOE-4.3]") {
  for (const bool special : {false, true}) {
    check_values<Bf16>(Dtype::kBf16, special);
    check_values<F16>(Dtype::kF16, special);
    check_values<F32>(Dtype::kF32, special);
  }
}

TEST_CASE("a row does not depend on how many elements follow", "[MOE-4.2]") {
  std::mt19937 random(8);
  const std::vector<Bytes> payloads = {random_bytes(random, 77)};
  const std::vector<LocalPick> picks = {{PhysicalExpertId{3}, 4}};
  const Bytes full = row_of({.hidden_size = 64}, payloads, picks);
  for (std::int32_t hidden = 1; hidden < 64; ++hidden) {
    const Bytes part = row_of({.hidden_size = hidden}, payloads, picks);
    CHECK(std::equal(part.begin(), part.end(), full.begin()));
  }
}

TEST_CASE("a rank's stand-in reads its own rows and marks the others as NaN",
          "[MOE-4.1][MOE-4.4]") {
  prop("rank equals row by row", [] {
    const std::int32_t ep = *in_range(1, 5), max = *in_range(1, 5), k = *in_range(1, 5);
    const std::int32_t experts = ep + *in_range(0, 6);
    std::mt19937 random(*rc::gen::arbitrary<std::uint32_t>());
    std::vector<std::vector<std::int32_t>> ids;
    for (std::int32_t src = 0; src < ep; ++src)
      ids.push_back(*rc::gen::container<std::vector<std::int32_t>>(
          static_cast<std::size_t>(*in_range(0, max + 1) * k), in_range(-1, experts + 1)));
    const auto placement = Placement::contiguous(ep, experts);
    const auto routing = Routing::make(k, max, ids);
    const auto rule = *rc::gen::element(SlotRule::kCanonical, SlotRule::kTokenIndex);
    const auto plan = plan_dispatch(*placement, *routing, rule).value();
    const std::vector<Payload> payloads = {
        {"hidden", 13, false}, {"topk_ids", 4 * k, true}, {"topk_weights", 4 * k, false}};
    const bool with_weights = *rc::gen::arbitrary<bool>();
    const RankId rank{*in_range(0, ep)};
    std::vector<std::vector<Bytes>> sent(payloads.size());
    std::vector<Bytes> recv;
    for (std::size_t p = 0; p < payloads.size(); ++p) {
      std::vector<const std::byte*> sources;
      for (RankId src{0}; src.value() < ep; src = src.next()) {
        sent[p].push_back(random_bytes(
            random, static_cast<std::size_t>(plan.num_tokens(src) * payloads[p].bytes_per_token)));
        if (payloads[p].holds_expert_ids && !sent[p].back().empty())
          std::memcpy(sent[p].back().data(), routing->topk_ids(src).data(), sent[p].back().size());
      }
      for (const Bytes& rows : sent[p]) sources.push_back(rows.data());
      recv.push_back(random_bytes(random, static_cast<std::size_t>(recv_bytes(plan, payloads[p]))));
      build_recv(plan, rank, payloads[p], sources, -1, recv.back());
    }
    std::vector<ReceivedPayload> received;
    for (std::size_t p = 0; p < payloads.size(); ++p) received.push_back({payloads[p], recv[p]});
    const StandIn config{.key = random(), .dtype = Dtype::kF16, .hidden_size = *in_range(1, 20)};
    const auto row_bytes = static_cast<std::size_t>(config.hidden_size) * 2;
    Bytes out(static_cast<std::size_t>(ep * max) * row_bytes);
    stand_in_rank(config, *placement, rank, max, rule, received,
                  with_weights ? std::optional<std::size_t>(2) : std::nullopt,
                  plan.recv_counters(rank), out);
    for (std::int32_t src = 0; src < ep; ++src)
      for (std::int32_t slot = 0; slot < max; ++slot) {
        const auto first =
            static_cast<std::ptrdiff_t>(src * max + slot) * static_cast<std::ptrdiff_t>(row_bytes);
        const Bytes got(out.begin() + first,
                        out.begin() + first + static_cast<std::ptrdiff_t>(row_bytes));
        Bytes expected(row_bytes);
        for (std::size_t at = 0; at < row_bytes; at += 2) {
          expected[at] = std::byte{0xFF};
          expected[at + 1] = std::byte{0x7F};
        }
        if (const auto token = plan.source_of(rank, RankId{src}, SlotId{slot})) {
          std::vector<Bytes> rows;
          for (std::size_t p = 0; p < payloads.size(); ++p) {
            const auto bytes = static_cast<std::ptrdiff_t>(payloads[p].bytes_per_token);
            const auto from =
                sent[p][static_cast<std::size_t>(src)].begin() + token->value() * bytes;
            rows.emplace_back(from, from + bytes);
          }
          std::vector<LocalPick> picks;
          for (std::int32_t i = 0; i < k; ++i) {
            const std::int32_t id =
                routing->topk_ids(RankId{src}, *token)[static_cast<std::size_t>(i)];
            if (id < 0 || id >= experts || placement->rank_of(PhysicalExpertId{id}) != rank)
              continue;
            std::uint32_t weight = 0;
            if (with_weights) std::memcpy(&weight, rows[2].data() + 4 * i, 4);
            picks.push_back({PhysicalExpertId{id}, weight});
          }
          expected = row_of(config, rows, picks);
        }
        RC_ASSERT(got == expected);
      }
  });
}

}  // namespace
}  // namespace assay::moe
