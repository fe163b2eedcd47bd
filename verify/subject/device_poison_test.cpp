// Which received slots are looked at, and which of them hold a token whatever their bytes are.
#include "verify/subject/device_poison.hpp"

#include <array>
#include <vector>

#include "model/core/testing.hpp"

namespace assay::verify {
namespace {

TEST_CASE("a row of ids names an expert by any id that is one", "[CUD-5.3][CUD-5.5]") {
  testing::prop("as a look at each id", [](const std::vector<std::int32_t>& ids) {
    const auto experts = *rc::gen::inRange<std::int32_t>(1, 100);
    bool expected = false;
    for (const std::int32_t id : ids) expected = expected || (id >= 0 && id < experts);
    RC_ASSERT(names_expert(std::as_bytes(std::span(ids)), experts) == expected);
  });
  const std::array<std::int32_t, 3> ids{-1, 8, 7};
  CHECK(names_expert(std::as_bytes(std::span(ids)), 8));
  CHECK(!names_expert(std::as_bytes(std::span(ids)), 7));
  CHECK(names_expert(std::as_bytes(std::span(ids).last(1)), 8));
  CHECK(!names_expert({}, 8));
}

TEST_CASE("all slots are looked at where that is cheap, else as many as any source has tokens",
          "[CUD-5.3][CUD-5.5]") {
  const std::array<std::int32_t, 2> tokens{3, 5};
  assay_round round{};
  round.num_tokens = tokens.data();
  round.max_tokens_per_rank = 1024;
  constexpr std::uint64_t kWidest = kWholeBufferMax / (2 * 1024);
  CHECK(slots_looked_at(round, 2, 1, kWidest) == 1024);
  CHECK(slots_looked_at(round, 2, 1, kWidest + 1) == 5);
  CHECK(slots_looked_at(round, 2, 2, kWidest) == 5);
  round.max_tokens_per_rank = 4;
  CHECK(slots_looked_at(round, 2, 1, kWholeBufferMax) == 4);
}

}  // namespace
}  // namespace assay::verify
