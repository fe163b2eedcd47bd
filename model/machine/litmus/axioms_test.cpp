// The verdicts of the litmus files against the axioms, and the axioms against cases that can be
// enumerated by hand.
#include "model/machine/litmus/axioms.hpp"

#include <algorithm>

#include "model/machine/litmus/litmus_testing.hpp"

namespace assay::machine::litmus {
namespace {

using testing::all_tests;
using testing::boundaries_of;

Test one(const std::string& text) {
  auto tests = parse_litmus(text, "inline");
  if (!tests) FAIL(tests.error().sentence);
  REQUIRE(tests->size() == 1);
  return tests->front();
}

TEST_CASE("the axioms agree with every verdict of the litmus files", "[MAC-8.2]") {
  std::string wrong;
  REQUIRE(all_tests().size() >= 200);
  for (const Test& test : all_tests())
    for (const Boundary boundary : boundaries_of(test)) {
      const Verdict got = axiomatic_verdict(test, evaluate_axioms(test, boundary));
      const Verdict wanted = test.verdict(boundary) == Verdict::kUnexplored
                                 ? Verdict::kAllowed
                                 : test.verdict(boundary);
      if (got != wanted) wrong += testing::wrong_verdict(test, boundary, got, wanted);
    }
  INFO(wrong);
  CHECK(wrong.empty());
}

TEST_CASE("what is sequentially consistent is consistent", "[MAC-8.2]") {
  for (const Test& test : all_tests()) {
    const AxiomaticResult result = evaluate_axioms(test, Boundary::kPtx);
    INFO(test.name);
    CHECK_FALSE(result.sequential.empty());
    CHECK(std::includes(result.outcomes.begin(), result.outcomes.end(), result.sequential.begin(),
                        result.sequential.end()));
  }
}

TEST_CASE("two stores and two loads have the outcomes that interleavings have, and one more",
          "[MAC-8.2]") {
  const Test test =
      one("test SB\nlocations x y\nP0 rank 0 cta 0\nst.relaxed.sys x 1\nld.relaxed.sys r0 y\n"
          "P1 rank 1 cta 0\nst.relaxed.sys y 1\nld.relaxed.sys r0 x\nexists P0:r0=0 & P1:r0=0\n"
          "case plain : allowed ; 8.10.6\n");
  const AxiomaticResult result = evaluate_axioms(test, Boundary::kPtx);
  CHECK(result.sequential == std::set<Outcome>{0x01, 0x10, 0x11});
  CHECK(result.outcomes == std::set<Outcome>{0x00, 0x01, 0x10, 0x11});
  CHECK_FALSE(result.race);
}

TEST_CASE("an atomic reads and writes without a gap", "[MAC-8.2]") {
  const Test test =
      one("test ADD\nlocations x\nP0 rank 0 cta 0\natom.add.relaxed.sys r0 x 1\n"
          "P1 rank 1 cta 0\natom.add.relaxed.sys r0 x 2\nexists x=1\ncase plain : forbidden ; "
          "8.10.3\n");
  const AxiomaticResult result = evaluate_axioms(test, Boundary::kPtx);
  CHECK(result.outcomes == std::set<Outcome>{0x310, 0x302});
}

TEST_CASE("an await that nothing ends has no execution", "[MAC-8.2]") {
  const Test test =
      one("test STUCK\nlocations x\nP0 rank 0 cta 0\nawait.relaxed.sys x == 1\nexists x=0\n"
          "case plain : forbidden ; no execution\n");
  CHECK(evaluate_axioms(test, Boundary::kPtx).consistent == 0);
}

}  // namespace
}  // namespace assay::machine::litmus
