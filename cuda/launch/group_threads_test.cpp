// The width of groups where the launcher chooses it.
#include "cuda/launch/group_threads.hpp"

#include "model/core/testing.hpp"

namespace assay::cuda {
namespace {

TEST_CASE("few groups have a thread for each vector, in equal passes", "[CUD-3.3]") {
  CHECK(group_threads(640, 1, 1024, 132) == 640);
  CHECK(group_threads(641, 132, 1024, 132) == 672);  // whole warps
  CHECK(group_threads(896, 8, 768, 132) == 448);     // two passes
  CHECK(group_threads(896, 8, 500, 132) == 448);     // 480 threads are whole warps
  CHECK(group_threads(3, 1, 1024, 132) == 128);
  CHECK(group_threads(0, 1, 64, 132) == 64);  // no more than the kernel has
  CHECK(group_threads(640, 133, 1024, 132) == kGroupThreads);
}

TEST_CASE("a chosen width is whole warps, allowed, and never needs a pass more", "[CUD-3.3]") {
  testing::prop("width of a group", [] {
    const auto vectors = *rc::gen::inRange<std::uint64_t>(0, 20'000);
    const auto most = *rc::gen::inRange<std::uint32_t>(32, 1025);
    const std::uint64_t warps = most / 32 * 32;
    const std::uint64_t threads = group_threads(vectors, 1, most, 1);
    RC_ASSERT(threads % 32 == 0u);
    RC_ASSERT(threads > 0u);
    RC_ASSERT(threads <= most);
    RC_ASSERT((vectors + threads - 1) / threads == (vectors + warps - 1) / warps);
  });
}

TEST_CASE("groups share a row as long as each has vectors and a multiprocessor", "[CUD-3.3]") {
  CHECK(parts_log2_of(640, 1, 132) == 2);  // 160 vectors each; 80 would be too few
  CHECK(parts_log2_of(896, 1, 132) == 2);
  CHECK(parts_log2_of(1024, 1, 132) == 3);
  CHECK(parts_log2_of(640, 33, 132) == 2);  // 132 groups
  CHECK(parts_log2_of(640, 34, 132) == 1);
  CHECK(parts_log2_of(640, 67, 132) == 0);
  CHECK(parts_log2_of(255, 1, 132) == 0);
  CHECK(parts_log2_of(0, 1, 132) == 0);
  testing::prop("one more would be too many", [](std::uint16_t vectors, std::uint8_t rows) {
    const std::uint32_t log2 = parts_log2_of(vectors, 1u + rows, 132);
    const auto fits = [&](std::uint32_t l) {
      return ((1u + rows) << l) <= 132u && (vectors >> l) >= 128;
    };
    RC_ASSERT(log2 == 0u || fits(log2));
    RC_ASSERT(!fits(log2 + 1));
  });
}

TEST_CASE("a shared row takes no more passes than its parts have", "[CUD-3.3][KER-2.7]") {
  CHECK(vectors_of_part(640, 2) == 160);
  CHECK(vectors_of_part(641, 2) == 161);
  CHECK(vectors_of_part(0, 2) == 0);
  testing::prop("one pass where threads allow it", [](std::uint16_t vectors) {
    const std::uint32_t log2 = parts_log2_of(vectors, 1, 132);
    const std::uint64_t part = vectors_of_part(vectors, log2);
    const std::uint64_t threads = group_threads(part, 1u << log2, 1024, 132);
    const std::uint64_t passes = std::max<std::uint64_t>((part + 1023) / 1024, 1);
    RC_ASSERT((threads << log2) * passes >= vectors);
  });
}

TEST_CASE("by Sentinel there is a group for every slot, as far as there are places", "[CUD-3.5]") {
  CHECK(sentinel_groups_of(2, 1, 1, 132) == 2);
  CHECK(sentinel_groups_of(4, 8, 8, 132) == 32);
  CHECK(sentinel_groups_of(8, 64, 64, 132) == 132);
  CHECK(sentinel_groups_of(8, 64, 512, 132) == 512);  // every token apart
  CHECK(sentinel_groups_of(8, 4, 0, 0) == 8);         // every source's first slot apart
  testing::prop("never fewer than are needed, never idle ones",
                [](std::uint8_t ep, std::uint16_t max, std::uint16_t tokens) {
                  const std::uint32_t ranks = 1 + ep % 64, slots = 1 + max,
                                      sent = tokens % (slots + 1);
                  const std::uint32_t groups = sentinel_groups_of(ranks, slots, sent, 132);
                  RC_ASSERT(groups >= std::max(ranks, sent));
                  RC_ASSERT(groups <= ranks * slots);
                  RC_ASSERT(groups <= std::max({ranks, sent, 132u}));
                });
}

}  // namespace
}  // namespace assay::cuda
