// What reaches a subject, what is counted, and that buffers of any size show every write.
#include "verify/subject/driver.hpp"

#include <cstring>

#include "model/core/testing.hpp"
#include "verify/checks/checks.hpp"
#include "verify/subject/broken_subject.hpp"
#include "verify/subject/buffers.hpp"
#include "verify/suites/suites.hpp"

namespace assay::verify {
namespace {

using testing::broken_subject;

// Two ranks, two experts each, two picks; rank 0 has two tokens, rank 1 one.
GroupSetup small_setup() {
  return {.ep_size = 2, .num_experts = 4, .top_k = 2, .hidden_size = 4, .max_tokens_per_rank = 3};
}

Round small_round() {
  Round round;
  round.max_tokens_per_rank = 3;
  // Token 0: both at rank 0, a duplicate. Token 1: one at each rank. Rank 1's: one, and nothing.
  round.topk_ids = {{0, 1, 2, 0}, {3, -1}};
  round.payloads = {{{"hidden", 8, false}, {}}, {{"topk_ids", 8, true}, {}}};
  keyed_rows(1, 0, RankId(0), 2, 8, round.payloads[0].rows.emplace_back());
  keyed_rows(1, 0, RankId(1), 1, 8, round.payloads[0].rows.emplace_back());
  return round;
}

std::string refusal(const Round& round) {
  const Status status = check_round(small_setup(), round);
  REQUIRE(!status.has_value());
  return status.error().sentence;
}

TEST_CASE("rows of the id payload are the routing, so a round cannot contradict itself",
          "[VER-1.1]") {
  CHECK(check_round(small_setup(), small_round()).has_value());
  const Subject subject = broken_subject({.after_dispatch = [](const assay_round& r, auto) {
    // What the subject is given as rows of the id payload.
    for (int rank = 0; rank < 2; ++rank) CHECK(r.payload_rows[1][rank] == r.topk_ids[rank]);
  }});
  auto driver = Driver::make(subject, small_setup());
  REQUIRE(driver.has_value());
  const auto outcome = driver->run(small_round());
  REQUIRE(outcome.has_value());
  CHECK(outcome->state == Outcome::State::kConforms);
}

TEST_CASE("a round that is no legal request is refused with the numbers", "[VER-1.1]") {
  Round round = small_round();
  round.payloads[0].rows[1].resize(7);
  CHECK(refusal(round) == "payload \"hidden\" of rank 1 has 7 bytes; its tokens need 8");
  round = small_round();
  round.payloads[1].payload.bytes_per_token = 12;
  CHECK(refusal(round) == "the id payload \"topk_ids\" has 12 bytes per token; top_k 2 needs 8");
  round = small_round();
  round.payloads.pop_back();
  CHECK(refusal(round).find("0 payloads hold expert ids; exactly one must") == 0);
  round = small_round();
  round.max_tokens_per_rank = 4;
  CHECK(refusal(round) == "max_tokens of a round is 4; the group was made for 3");
  round = small_round();
  round.max_tokens_per_rank = 1;  // rank 0 has two tokens
  CHECK(!check_round(small_setup(), round).has_value());
  round = small_round();
  round.alive = moe::RankMask::all();
  round.alive.set_alive(RankId(0), false);
  round.alive.set_alive(RankId(1), false);
  CHECK(refusal(round) == "all ranks are dead; one must be alive");
  GroupSetup setup = small_setup();
  setup.invalid_expert_id = 3;
  CHECK(!check_setup(setup).has_value());
}

TEST_CASE("coverage counts what the plan asks for", "[VER-4.1]") {
  auto driver = Driver::make(broken_subject({}), small_setup());
  REQUIRE(driver.has_value());
  Round round = small_round();
  const auto outcome = driver->run(round);
  REQUIRE(outcome.has_value());
  const Coverage& c = outcome->coverage;
  CHECK(c.rounds == 1);
  CHECK(c.tokens == 3);
  CHECK(c.picks == 6);
  CHECK(c.rows == 4);
  CHECK(c.remote_rows == 1);
  CHECK(c.duplicate_picks == 1);
  CHECK(c.invalid_picks == 1);
  CHECK(c.masked_picks == 0);
  CHECK(c.pairs == 4);
  CHECK(c.empty_pairs == 1);  // rank 1 sends nothing to rank 0
  CHECK(c.padding_rows == 2 * 2 * 3 - 4);
  CHECK(c.tokens_with_holes == 2);
  CHECK(c.tokens_without_rows == 0);
  CHECK(c.dispatch_bytes == 4 * 16);
  CHECK(c.combine_elements == 12);
  round.alive.set_alive(RankId(1), false);
  const auto masked = driver->run(round);
  REQUIRE(masked.has_value());
  CHECK(masked->coverage.masked_picks == 1);
  CHECK(masked->coverage.tokens == 2);
  CHECK(masked->coverage.mask_changes == 1);
}

TEST_CASE("a buffer arrives as poison between guards and shows what was touched", "[VER-1.3]") {
  BufferArena arena;
  for (int turn = 0; turn < 2; ++turn) {
    arena.reset();
    for (const std::int64_t bytes : {0, 1, 63, 64, 4097, 20'000'000}) {
      const OutputBuffer buffer = arena.take(bytes, std::byte{0xA3});
      CHECK(reinterpret_cast<std::uintptr_t>(buffer.data) % 64 == 0);
      CHECK(all_equal(buffer.bytes(), std::byte{0xA3}));
      CHECK(all_equal(buffer.guard_before(), kGuardByte));
      CHECK(all_equal(buffer.guard_after(), kGuardByte));
      std::memset(buffer.data, 0, static_cast<std::size_t>(bytes));
      CHECK(all_equal(buffer.guard_before(), kGuardByte));
      CHECK(all_equal(buffer.guard_after(), kGuardByte));
    }
  }
}

TEST_CASE("a buffer of gigabytes costs what is touched of it", "[VER-1.4]") {
  BufferArena arena;
  const std::int64_t bytes = std::int64_t{9} << 30;
  const OutputBuffer buffer = arena.take(bytes, std::byte{0xA3});
  REQUIRE(buffer.sparse);
  const std::int64_t places[] = {0, (std::int64_t{5} << 30) + 17, bytes - 1};
  const std::uint64_t untouched = digest(buffer);
  for (const std::int64_t place : places) buffer.data[place] = std::byte{1};
  const std::uint64_t touched = digest(buffer);
  CHECK(touched != untouched);
  // Reading maps pages, and must not change what is said about them.
  for (const std::int64_t place : {std::int64_t{3} << 30, places[1] + 4096})
    CHECK(first_other({buffer.data + place, 1}, std::byte{0}) == 1);
  CHECK(digest(buffer) == touched);
  std::int64_t seen = 0;
  std::int64_t ones = 0;
  buffer.touched_parts([&](std::int64_t offset, std::span<const std::byte> part) {
    seen += static_cast<std::int64_t>(part.size());
    for (std::size_t i = 0; i < part.size(); ++i) {
      if (part[i] == std::byte{0}) continue;
      const std::int64_t at = offset + static_cast<std::int64_t>(i);
      CHECK((at == places[0] || at == places[1] || at == places[2]));
      ++ones;
    }
  });
  CHECK(ones == 3);
  CHECK(seen < 20 * 4096);
}

TEST_CASE("digests differ in every single bit of short and long inputs", "[VER-1.3]") {
  std::vector<std::byte> bytes(77);
  for (std::size_t size = 1; size <= bytes.size(); ++size) {
    const std::span<std::byte> part(bytes.data(), size);
    const std::uint64_t before = digest(part);
    for (std::size_t bit = 0; bit < 8 * size; ++bit) {
      bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      if (digest(part) == before) FAIL(size << " bytes, bit " << bit);
      bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    }
    if (size > 1 && digest(part) == digest(part.first(size - 1))) FAIL(size);
  }
}

TEST_CASE("a write into the padding of a buffer of gigabytes is seen", "[VER-1.4]") {
  const auto suite = find_suite("large_offsets");
  REQUIRE(suite.has_value());
  const auto c = parse_moe_case((*suite)->cases[0], MoeCase{});
  const auto scenario = make_scenario(*c, (*suite)->axes);
  REQUIRE(scenario.has_value());
  const auto clean = run_scenario(broken_subject({}), *scenario);
  REQUIRE(clean.has_value());
  CHECK(clean->state == Outcome::State::kConforms);
  const auto outcome =
      run_scenario(broken_subject({.after_dispatch =
                                       [](const assay_round& r, auto) {
                                         testing::recv_row(r, 0, 1, 1, 700'000)[5] = std::byte{1};
                                       }}),
                   *scenario);
  REQUIRE(outcome->state == Outcome::State::kMismatch);
  const Mismatch& mismatch = outcome->mismatches.front();
  CHECK(mismatch.check == "dispatch.padding");
  CHECK(mismatch.coordinate("source") == 1);
  CHECK(mismatch.coordinate("slot") == 700'000);
  CHECK(mismatch.coordinate("byte") == 5);
}

TEST_CASE("a driver gives experts of one's own the received rows, and NaN where they write nothing",
          "[VER-2.3]") {
  std::int32_t calls = 0;
  DriverOptions options;
  options.experts = [&](const ExpertsCall& call) {
    ++calls;
    CHECK(call.payloads.size() == 2);
    CHECK(call.recv_counters.size() == 2);
    for (std::size_t i = 0; i < call.expert_out.size(); i += 2) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, call.expert_out.data() + i, 2);
      if (bits != 0x7FFF) FAIL("not NaN at " << i);
    }
  };
  auto driver = Driver::make(broken_subject({}), small_setup(), options);
  REQUIRE(driver.has_value());
  const auto outcome = driver->run(small_round());
  REQUIRE(outcome.has_value());
  CHECK(outcome->state == Outcome::State::kConforms);
  CHECK(calls == 2);
}

}  // namespace
}  // namespace assay::verify
