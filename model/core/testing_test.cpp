// Checks that the test adapter itself can fail: a property that is false must be reported.
#include "model/core/testing.hpp"

#include "model/core/id.hpp"
#include "model/core/expected.hpp"

using namespace assay;

TEST_CASE("a place is said once, however often it is added", "[COR-1.2]") {
  const assay::Error error = assay::bad_input("x is 1");
  CHECK(error.within("a.st").sentence == "a.st: x is 1");
  CHECK(error.within("a.st").within("a.st").sentence == "a.st: x is 1");
  CHECK(error.within("a.st").within("b.st").sentence == "b.st: a.st: x is 1");
  CHECK(assay::unsupported("a.st").within("a.st").kind == assay::ErrorKind::kUnsupported);
}

TEST_CASE("ids of one kind compare and advance, and know no arithmetic", "[COR-1.1]") {
  testing::prop("order follows the value", [](int a, int b) {
    RC_ASSERT((RankId(a) < RankId(b)) == (a < b));
    RC_ASSERT((RankId(a) == RankId(b)) == (a == b));
  });
  STATIC_REQUIRE(!std::is_convertible_v<RankId, int>);
  STATIC_REQUIRE(!std::is_convertible_v<int, RankId>);
  STATIC_REQUIRE(!std::is_constructible_v<RankId, ExpertId>);
  REQUIRE(RankId(3).next() == RankId(4));
}

TEST_CASE("an Expected carries either its value or a sentence", "[COR-1.2]") {
  const auto half = [](int n) -> Expected<int> {
    if (n % 2) return bad_input(std::to_string(n) + " is odd; allowed are even numbers");
    return n / 2;
  };
  const auto quarter = [&](int n) -> Expected<int> {
    ASSAY_TRY(const int h, half(n));
    return half(h);
  };
  REQUIRE(*quarter(8) == 2);
  REQUIRE(quarter(6).error().sentence == "3 is odd; allowed are even numbers");
}
