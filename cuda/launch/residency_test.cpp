// What a launch may wait in, without a device.
#include "cuda/launch/residency.hpp"

#include "model/core/testing.hpp"

namespace assay::cuda {
namespace {

constexpr std::uint32_t kMultiprocessors = 132;

Residency launch(std::uint32_t blocks, std::uint32_t resident = 264) {
  return {"Sentinel dispatch", blocks, 512, resident};
}
std::string sentence(const Expected<std::uint32_t>& waiters) {
  return waiters ? "" : waiters.error().sentence;
}

TEST_CASE("blocks that a device holds are remembered by whole warps, the fewest of all devices",
          "[CUD-1.4]") {
  ResidentBlocks blocks;
  CHECK(blocks.of(256) == 0);
  blocks.note(8, 1056);
  CHECK(blocks.of(256) == 1056);
  CHECK(blocks.of(225) == 1056);
  CHECK(blocks.of(224) == 0);
  CHECK(blocks.of(257) == 0);
  blocks.note(8, 912);
  blocks.note(8, 1000);
  CHECK(blocks.of(256) == 912);
  blocks.note(32, 0);
  blocks.note(32, 132);
  CHECK(blocks.of(1024) == 0);
  CHECK(blocks.of(1025) == 0);
  CHECK(blocks.of(0xFFFFFFFF) == 0);
}

TEST_CASE(
    "a rank alone waits in what is resident, and in one block for each multiprocessor unasked",
    "[CUD-1.4]") {
  for (const std::uint32_t blocks : {1u, 131u, 132u, 133u, 5000u}) {
    const auto unasked = waiters_of(launch(blocks), 0, true, kMultiprocessors);
    REQUIRE(unasked.has_value());
    CHECK(*unasked == std::min(blocks, kMultiprocessors));
    for (const std::uint32_t asked : {1u, 131u, 264u, 265u, 5000u}) {
      const auto waiters = waiters_of(launch(blocks), asked, true, kMultiprocessors);
      CHECK(waiters.has_value() == (asked <= blocks && asked <= 264));
      if (waiters) CHECK(*waiters == asked);
    }
  }
  CHECK(sentence(waiters_of(launch(5000), 265, true, kMultiprocessors)) ==
        "Sentinel dispatch is to wait in 265 blocks of 512 threads; the device holds 264 at once");
  CHECK(sentence(waiters_of(launch(32), 33, true, kMultiprocessors)) ==
        "Sentinel dispatch is to wait in 33 blocks; its launch has 32 for the rank");
  // Threads that the kernel cannot have: nothing is resident, so nobody may wait.
  CHECK(sentence(waiters_of(launch(1, 0), 0, true, kMultiprocessors)) ==
        "Sentinel dispatch is to wait in 1 blocks of 512 threads; the device holds 0 at once");
}

TEST_CASE("ranks side by side wait in all their blocks, which must be resident together",
          "[CUD-1.3][CUD-1.4]") {
  CHECK(check_all_resident(launch(264), 2).has_value());
  const Status refused = check_all_resident(launch(265), 2);
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().kind == ErrorKind::kUnsupported);
  CHECK(refused.error().sentence ==
        "Sentinel dispatch of 2 ranks on one device has 265 blocks of 512 threads that wait for "
        "each other; the device holds 264 at once");
  const auto waiters = waiters_of(launch(200), 0, false, kMultiprocessors);
  REQUIRE(waiters.has_value());
  CHECK(*waiters == 200);
  CHECK_FALSE(waiters_of(launch(200), 201, false, kMultiprocessors).has_value());
}

}  // namespace
}  // namespace assay::cuda
