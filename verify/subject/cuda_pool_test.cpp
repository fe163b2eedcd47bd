// Turns on the devices, which need no device.
#include "verify/subject/cuda_pool.hpp"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "model/core/testing.hpp"

namespace assay::verify {
namespace {

TEST_CASE("rounds share the devices as far as their blocks fit, and nobody is beside who is alone",
          "[CUD-5.2]") {
  std::atomic<int> blocks{0}, alone{0}, most{0}, beside{0}, done{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 24; ++i)
    threads.emplace_back([&, i] {
      for (int round = 0; round < 20; ++round) {
        if (i % 8 == 0) {
          const DeviceTurn turn = DeviceTurn::alone();
          if (blocks != 0 || ++alone != 1) ++beside;
          std::this_thread::yield();
          --alone;
        } else {
          const int mine = 1 + (i * 37 + round * 101) % 300;
          const DeviceTurn turn(static_cast<std::uint32_t>(mine));
          const int now = blocks += mine;
          int before = most;
          while (now > before && !most.compare_exchange_weak(before, now)) {
          }
          if (alone != 0) ++beside;
          std::this_thread::yield();
          blocks -= mine;
        }
        ++done;
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(done == 24 * 20);
  CHECK(beside == 0);
  CHECK(most <= 512);
}

TEST_CASE("a round larger than a device has its turn", "[CUD-5.2]") {
  { const DeviceTurn turn(100'000); }
  const DeviceTurn again(100'000);
  SUCCEED();
}

}  // namespace
}  // namespace assay::verify
