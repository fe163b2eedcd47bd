// max, min and shuffle reductions.
#include "model/numerics/max_min.hpp"

#include <array>
#include <cmath>

#include "model/core/testing.hpp"
#include "model/numerics/numerics.hpp"
#include "model/numerics/warp_reduce.hpp"

using namespace assay;
using namespace assay::numerics;
using assay::testing::prop;

TEST_CASE("max and min drop a NaN, order zeros, and agree with fmax elsewhere", "[NUM-3.7]") {
  std::uint64_t wrong = 0;
  for (std::uint32_t a = 0; a < 0x10000; a += 7) {
    for (std::uint32_t b = 0; b < 0x10000; b += 61) {
      const F16 x{static_cast<std::uint16_t>(a)}, y{static_cast<std::uint16_t>(b)};
      const float fx = to_float(widen(x)), fy = to_float(widen(y));
      const F16 larger = max_of(x, y), smaller = min_of(x, y);
      if (std::isnan(fx) && std::isnan(fy)) {
        wrong += larger.bits != 0x7FFF || smaller.bits != 0x7FFF;
      } else if (std::isnan(fx) || std::isnan(fy)) {
        const std::uint32_t number = std::isnan(fx) ? b : a;
        wrong += larger.bits != number || smaller.bits != number;
        wrong += max_of(x, y, NanRule::kPropagate).bits != 0x7FFF;
        wrong += min_of(x, y, NanRule::kPropagate).bits != 0x7FFF;
      } else if (fx != fy) {
        wrong += larger.bits != (fx > fy ? a : b) || smaller.bits != (fx > fy ? b : a);
      } else {  // equal numbers, or two zeros: the bits decide
        wrong += larger.bits != (a & b) || smaller.bits != (a | b);
      }
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("flushing max and min return zeros for subnormals", "[NUM-3.7]") {
  CHECK(max_ftz(F32{0x00000001}, F32{0x80000001}).bits == 0);
  CHECK(min_ftz(F32{0x00000001}, F32{0x80000001}).bits == 0x80000000u);
  CHECK(max_of(F32{0x00000001}, F32{0}).bits == 1);
  CHECK(max_ftz(F32{0x7FC00000}, F32{0x00000001}).bits == 0);
  CHECK(max_of(F32{0xFFC00000}, F32{0x7F800001}).bits == 0x7FFFFFFFu);
}

TEST_CASE("a butterfly gives every lane the sum of the same tree", "[NUM-3.8]") {
  constexpr std::array<std::size_t, 2> quad{2, 1};
  prop("quads of an accumulator", [&] {
    std::array<F32, 4> lanes;
    for (F32& x : lanes) x.bits = *rc::gen::arbitrary<std::uint32_t>();
    const auto add = [](F32 a, F32 b) { return add_rn(a, b, false); };
    const auto sums = reduce_butterfly(lanes, std::span<const std::size_t>(quad), add);
    const F32 tree = add(add(lanes[0], lanes[2]), add(lanes[1], lanes[3]));
    for (const F32 sum : sums) RC_ASSERT(same_bits(sum, tree));
  });
}

TEST_CASE("each lane meets the lane that the distance names, itself first", "[NUM-3.8]") {
  constexpr std::array<std::size_t, 1> one{1}, two{2};
  const std::array<int, 4> lanes{1, 2, 3, 4};
  const auto pair = [](int a, int b) { return 10 * a + b; };
  using Lanes = std::array<int, 4>;
  CHECK(reduce_butterfly(lanes, std::span<const std::size_t>(one), pair) == Lanes{12, 21, 34, 43});
  CHECK(reduce_butterfly(lanes, std::span<const std::size_t>(two), pair) == Lanes{13, 24, 31, 42});
  CHECK(reduce_down(lanes, std::span<const std::size_t>(one), pair) == Lanes{12, 23, 34, 44});
  CHECK(reduce_down(lanes, std::span<const std::size_t>(two), pair) == Lanes{13, 24, 33, 44});
}

TEST_CASE("distances decide the tree, so their order changes bits", "[NUM-3.8]") {
  constexpr std::array<std::size_t, 2> wide_first{2, 1}, narrow_first{1, 2};
  // (1 + 2^-24) + (-1 + 0) loses the small term in one order and not in the other.
  const std::array<F32, 4> lanes{from_float(1.0f), from_float(0x1p-25f), from_float(-1.0f), F32{0}};
  const auto add = [](F32 a, F32 b) { return add_rn(a, b, false); };
  CHECK(to_float(reduce_butterfly(lanes, std::span<const std::size_t>(wide_first), add)[0]) ==
        0x1p-25f);
  CHECK(to_float(reduce_butterfly(lanes, std::span<const std::size_t>(narrow_first), add)[0]) ==
        0.0f);
}

TEST_CASE("shuffling down leaves the tree's result in lane zero", "[NUM-3.8]") {
  std::array<F32, 32> lanes;
  for (std::size_t i = 0; i < lanes.size(); ++i)
    lanes[i] = from_float(std::ldexp(1.1f, static_cast<int>(i)));
  constexpr std::array<std::size_t, 5> distances{16, 8, 4, 2, 1};
  const auto add = [](F32 a, F32 b) { return add_rn(a, b, false); };
  const auto down = reduce_down(lanes, std::span<const std::size_t>(distances), add);
  const auto butterfly = reduce_butterfly(lanes, std::span<const std::size_t>(distances), add);
  CHECK(down[0].bits == butterfly[0].bits);
  CHECK(down[31].bits != butterfly[31].bits);  // the last lane has added only itself
}
