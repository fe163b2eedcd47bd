// Addresses, bounds, poison, and what a fault says.
#include "model/machine/memory.hpp"

#include <array>

#include "model/machine/machine_testing.hpp"

namespace assay::machine {
namespace {

using assay::testing::prop;
using testing::enqueue;
using testing::small_config;

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

// Runs one thread of rank `rank` and returns the report, which must be a fault's.
std::string fault_of(Machine& machine, std::int32_t rank, std::function<void(SimOps&)> body) {
  enqueue(machine, rank, "probe", 1, std::move(body));
  const RunResult result = machine.run();
  REQUIRE(run_status_name(result.status) == std::string("fault"));
  return result.report;
}

TEST_CASE("offsets beyond 4 GiB reach other bytes than their low halves", "[MAC-1.1]") {
  Machine machine(small_config(1));
  const Window window = machine.allocate_window("huge", 12 * kGiB, 16, Fill::kPoison);
  const std::uint64_t far = 10 * kGiB + 48;
  enqueue(machine, 0, "far", 1, [=](SimOps& ops) {
    ops.store(relaxed_sys, Site::kDispatchStorePayload, window.of(RankId(1)).at(far),
              Vec16{{1, 2, 3, 4}});
  });
  REQUIRE(machine.run().ok());
  std::array<std::byte, 16> seen{};
  REQUIRE(machine.read(window.of(RankId(1)).at(far), seen));
  CHECK(seen[4] == std::byte{2});
  CHECK(machine.count_written(window.of(RankId(1)).at(far % (4 * kGiB)), 16) == 0);
  CHECK(machine.count_written(window.of(RankId(0)).at(far), 16) == 0);
  CHECK(window.stride_bytes % (4 * kGiB) == 0);
}

TEST_CASE("an address cut to 32 bits meets no allocation", "[MAC-1.1]") {
  Machine machine(small_config(1));
  const Address buffer = machine.allocate(RankId(0), "buffer", 64, 16, Fill::kZero);
  const std::string report = fault_of(machine, 0, [=](SimOps& ops) {
    ops.load(as<std::uint32_t>, weak, Site::kDispatchReadIds, Address{buffer.raw & 0xFFFFFFFFu});
  });
  CHECK(report.find("out of bounds") != std::string::npos);
}

TEST_CASE("an allocation is aligned as asked and not better", "[MAC-1.3]") {
  prop("any size and alignment", [] {
    Machine machine(small_config(1, 3));
    for (int i = 0; i < 3; ++i) {
      const std::uint64_t alignment = std::uint64_t{1} << *rc::gen::inRange(0, 22);
      const auto bytes = *rc::gen::inRange<std::uint64_t>(1, 1u << 20);
      const Address local = machine.allocate(RankId(1), "local", bytes, alignment, Fill::kZero);
      RC_ASSERT(local.raw % alignment == 0u);
      RC_ASSERT(local.raw / alignment % 2 == 1u);
      const Window window = machine.allocate_window("window", bytes, alignment, Fill::kZero);
      for (std::int32_t r = 0; r < 3; ++r)
        RC_ASSERT(window.of(RankId(r)).raw / alignment % 2 == 1u);
    }
  });
}

TEST_CASE("an access outside every allocation names the nearest one and the distance",
          "[MAC-1.2]") {
  struct Row {
    std::int64_t offset;
    const char* expected;
  };
  const Row rows[] = {
      {40, "store of 16 bytes at"},  // 40 % 16 != 0 would be misaligned, but bounds come first
      {32, "it ends 8 bytes beyond 'rows' of rank 1 (40 bytes)"},
      {48, "it starts 8 bytes behind the end of 'rows' of rank 1 (40 bytes)"},
      {-16, "it starts 16 bytes before 'rows' of rank 1 (40 bytes)"},
  };
  for (const Row& row : rows) {
    Machine machine(small_config(1));
    const Window window = machine.allocate_window("rows", 40, 16, Fill::kZero);
    const std::string report = fault_of(machine, 0, [=](SimOps& ops) {
      ops.store(relaxed_sys, Site::kDispatchStorePayload,
                window.of(RankId(1)).at(static_cast<std::uint64_t>(row.offset)), Vec16{});
    });
    INFO(report);
    CHECK(report.find("rank 0 kernel probe cta 0 thread 0 at DispatchStorePayload: store of 16 "
                      "bytes") == 0);
    CHECK(report.find("out of bounds") != std::string::npos);
    CHECK(report.find(row.expected) != std::string::npos);
  }
}

// The neighbourhood of an allocation's both ends, byte by byte and for every width, against
// arithmetic.
TEST_CASE("exactly the aligned accesses inside an allocation are legal", "[MAC-1.2]") {
  const auto legal = [](auto width, std::int64_t bytes, std::int64_t offset, bool touch_first) {
    using T = decltype(width);
    Machine machine(small_config(1, 1));
    const Address buffer =
        machine.allocate(RankId(0), "buffer", static_cast<std::uint64_t>(bytes), 32, Fill::kZero);
    const Address place = buffer.at(static_cast<std::uint64_t>(offset));
    enqueue(machine, 0, "probe", 1, [=](SimOps& ops) {
      // With the page in the cache the short way decides, without it the long way.
      if (touch_first) ops.load(as<std::uint8_t>, weak, Site::kDispatchReadIds, buffer);
      ops.store(weak, Site::kDispatchReadIds, place, T{});
      ops.load(as<T>, weak, Site::kDispatchReadIds, place);
    });
    return machine.run().ok();
  };
  const auto check = [&](auto width) {
    constexpr auto kWidth = static_cast<std::int64_t>(sizeof(width));
    for (const std::int64_t bytes : {1, 15, 16, 31, 40})
      for (std::int64_t offset = -32; offset < 50; ++offset)
        for (const bool touch_first : {false, true}) {
          const bool expected = offset >= 0 && offset % kWidth == 0 && offset + kWidth <= bytes;
          if (legal(width, bytes, offset, touch_first) != expected) {
            CAPTURE(kWidth, bytes, offset, touch_first);
            REQUIRE(!"legality differs");
          }
        }
  };
  check(std::uint8_t{});
  check(std::uint16_t{});
  check(std::uint32_t{});
  check(std::uint64_t{});
  check(Vec16{});
}

TEST_CASE("a misaligned access says by how much", "[MAC-1.2]") {
  Machine machine(small_config(1));
  const Address buffer = machine.allocate(RankId(1), "buffer", 64, 16, Fill::kZero);
  const std::string report = fault_of(machine, 1, [=](SimOps& ops) {
    ops.load(as<Vec16>, relaxed_sys, Site::kCombinePull, buffer.at(4));
  });
  CHECK(report.find("at CombinePull: load of 16 bytes") != std::string::npos);
  CHECK(report.find("is misaligned by 4: 'buffer' of rank 1 + 4 (of 64 bytes)") !=
        std::string::npos);
}

TEST_CASE("a misaligned vector access is a fault under every seed, also where a switch splits it",
          "[MAC-1.2][MAC-1.4]") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    MachineConfig config = small_config(seed);
    config.longest_run = 1;
    Machine machine(config);
    const Address buffer = machine.allocate(RankId(1), "buffer", 64, 16, Fill::kZero);
    fault_of(machine, 1, [=](SimOps& ops) {
      ops.store(relaxed_sys, Site::kCombinePull, buffer.at(4), Vec16{});
    });
  }
}

TEST_CASE("reading a byte that nobody wrote is a fault, one written byte does not cover the next",
          "[MAC-1.2]") {
  const auto ok = [](std::uint64_t written_mask, std::uint64_t offset, auto width) {
    Machine machine(small_config(1, 1));
    const Address buffer = machine.allocate(RankId(0), "buffer", 32, 16, Fill::kPoison);
    enqueue(machine, 0, "probe", 1, [=](SimOps& ops) {
      for (std::uint64_t i = 0; i < 32; ++i)
        if ((written_mask >> i & 1) != 0)
          ops.store(weak, Site::kDispatchReadIds, buffer.at(i), std::uint8_t{1});
      ops.load(as<decltype(width)>, weak, Site::kDispatchReadIds, buffer.at(offset));
    });
    return machine.run().ok();
  };
  const auto check = [&](auto width, std::uint64_t offset) {
    const std::uint64_t needed = ((std::uint64_t{1} << sizeof(width)) - 1) << offset;
    REQUIRE(ok(needed, offset, width));
    for (std::uint64_t hole = 0; hole < sizeof(width); ++hole) {
      CAPTURE(sizeof(width), offset, hole);
      REQUIRE_FALSE(ok(0xFFFFFFFFu & ~(std::uint64_t{1} << (offset + hole)), offset, width));
    }
  };
  for (const std::uint64_t base : {0, 16}) {
    check(Vec16{}, base);
    for (std::uint64_t i = 0; i < 16; i += 8) check(std::uint64_t{}, base + i);
    for (std::uint64_t i = 0; i < 16; i += 4) check(std::uint32_t{}, base + i);
    for (std::uint64_t i = 0; i < 16; i += 2) check(std::uint16_t{}, base + i);
    for (std::uint64_t i = 0; i < 16; i += 1) check(std::uint8_t{}, base + i);
  }
}

TEST_CASE("a read of poison names site, rank, allocation and offset", "[MAC-1.2]") {
  Machine machine(small_config(1));
  const Window window = machine.allocate_window("recv", 4096, 16, Fill::kPoison);
  const std::string report = fault_of(machine, 0, [=](SimOps& ops) {
    ops.load(as<Vec16>, relaxed_sys, Site::kCombinePull, window.of(RankId(1)).at(256));
  });
  CHECK(report.find("rank 0 kernel probe cta 0 thread 0 at CombinePull: load of 16 bytes at 0x") ==
        0);
  CHECK(report.find("reads what nobody has written: 'recv' of rank 1 + 256 (of 4096 bytes)") !=
        std::string::npos);
}

TEST_CASE("local memory of a rank is out of reach for the others", "[MAC-1.2]") {
  Machine machine(small_config(1));
  const Address secret = machine.allocate(RankId(1), "secret", 64, 16, Fill::kZero);
  // Rank 1 has it in its cache; rank 0's access must not profit from that.
  enqueue(machine, 1, "owner", 1,
          [=](SimOps& ops) { ops.load(as<std::uint32_t>, weak, Site::kDispatchReadIds, secret); });
  REQUIRE(machine.run().ok());
  const std::string report = fault_of(machine, 0, [=](SimOps& ops) {
    ops.load(as<std::uint32_t>, weak, Site::kDispatchReadIds, secret);
  });
  CHECK(report.find("reaches local memory of another rank: 'secret' of rank 1 + 0") !=
        std::string::npos);
}

TEST_CASE("released memory is named by what it was", "[MAC-1.2]") {
  Machine machine(small_config(1));
  const Address local = machine.allocate(RankId(0), "scratch", 8192, 16, Fill::kZero);
  const Window window = machine.allocate_window("round", 64, 16, Fill::kZero);
  enqueue(machine, 0, "touch", 1, [=](SimOps& ops) {
    // Both pages are in the rank's cache when they go.
    ops.load(as<std::uint32_t>, weak, Site::kDispatchReadIds, local);
    ops.load(as<std::uint32_t>, weak, Site::kDispatchReadIds, local.at(4096));
    ops.load(as<std::uint32_t>, weak, Site::kDispatchReadIds, window.of(RankId(1)));
  });
  REQUIRE(machine.run().ok());
  machine.release(window);
  machine.release(local);
  const std::string report = fault_of(machine, 0, [=](SimOps& ops) {
    ops.load(as<std::uint32_t>, weak, Site::kDispatchReadIds, local.at(4096));
  });
  CHECK(report.find("it is in 'scratch', released, of rank 0 + 4096 (of 8192 bytes)") !=
        std::string::npos);
}

TEST_CASE("host reads and writes meet the bytes that kernels see", "[MAC-1.2]") {
  prop("any range, written by the host, read by a kernel and back", [] {
    Machine machine(small_config(1, 1));
    const std::uint64_t bytes = 3 * kPageBytes;
    const Address buffer = machine.allocate(RankId(0), "buffer", bytes, 64, Fill::kPoison);
    const auto offset = *rc::gen::inRange<std::uint64_t>(0, bytes);
    const auto length = *rc::gen::inRange<std::uint64_t>(0, bytes - offset);
    std::vector<std::byte> data(length);
    for (std::uint64_t i = 0; i < length; ++i) data[i] = static_cast<std::byte>(i * 37 + 11);
    machine.write(buffer.at(offset), data);
    RC_ASSERT(machine.count_written(buffer, bytes) == length);
    std::uint64_t wrong = 0;
    enqueue(machine, 0, "check", 1, [&](SimOps& ops) {
      for (std::uint64_t i = 0; i < length; ++i)
        wrong += ops.load(as<std::uint8_t>, weak, Site::kDispatchReadIds, buffer.at(offset + i)) !=
                 static_cast<std::uint8_t>(data[i]);
    });
    RC_ASSERT(machine.run().ok());
    RC_ASSERT(wrong == 0u);
    std::vector<std::byte> all(bytes);
    RC_ASSERT(machine.peek(buffer, all) == (length == bytes));
    for (std::uint64_t i = 0; i < bytes; ++i)
      RC_ASSERT(all[i] == (i - offset < length ? data[i - offset] : kPoisonByte));
    std::vector<std::byte> back(length);
    RC_ASSERT(machine.read(buffer.at(offset), back).has_value());
    RC_ASSERT(back == data);
    if (length < bytes) RC_ASSERT(!machine.read(buffer, all).has_value());
  });
}

TEST_CASE(
    "forgotten bytes are poison again, exactly those, in poison-filled and zero-filled memory",
    "[MAC-1.2]") {
  prop("any range", [] {
    const auto fill = *rc::gen::element(Fill::kPoison, Fill::kZero);
    const bool touched = *rc::gen::arbitrary<bool>();
    Machine machine(small_config(1, 1));
    const std::uint64_t bytes = 2 * kPageBytes;
    const Address buffer = machine.allocate(RankId(0), "buffer", bytes, 64, fill);
    if (touched) machine.fill(buffer, bytes, std::byte{5});
    const std::uint64_t before = machine.count_written(buffer, bytes);
    const auto offset = *rc::gen::inRange<std::uint64_t>(0, bytes);
    const auto length = *rc::gen::inRange<std::uint64_t>(0, bytes - offset);
    machine.forget(buffer.at(offset), length);
    RC_ASSERT(machine.count_written(buffer.at(offset), length) == 0u);
    RC_ASSERT(machine.count_written(buffer, bytes) == (before == 0 ? 0 : bytes - length));
    std::vector<std::byte> all(bytes);
    machine.peek(buffer, all);
    for (std::uint64_t i = offset; i < offset + length; ++i) RC_ASSERT(all[i] == kPoisonByte);
  });
}

TEST_CASE("the host's read of poison names the first byte that nobody wrote", "[MAC-1.2]") {
  Machine machine(small_config(1));
  // The second and third page have holes as well; the first one counts.
  const Window window = machine.allocate_window("recv", 3 * kPageBytes, 16, Fill::kPoison);
  machine.fill(window.of(RankId(1)), 40, std::byte{7});
  std::vector<std::byte> bytes(3 * kPageBytes);
  const Status status = machine.read(window.of(RankId(1)), bytes);
  REQUIRE_FALSE(status);
  CHECK(status.error().sentence ==
        "the host reads 12288 bytes at 'recv' of rank 1 + 0 (of 12288 bytes), but nobody has "
        "written 'recv' of rank 1 + 40 (of 12288 bytes)");
}

}  // namespace
}  // namespace assay::machine
