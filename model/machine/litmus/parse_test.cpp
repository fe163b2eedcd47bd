// The text format: what a test becomes, and the sentence for everything that is no test.
#include <algorithm>

#include "model/machine/litmus/litmus.hpp"
#include "model/machine/litmus/litmus_testing.hpp"

namespace assay::machine::litmus {
namespace {

const std::string kBegin = "test MP\nlocations x v[4]\nalias a of x\nP0 rank 0 cta 0\n";
const std::string kEnd = "exists P0:r0=1\ncase c : allowed ; here\n";

std::string error_of(const std::string& text) {
  const auto tests = parse_litmus(text, "t.litmus");
  return tests ? "no error" : tests.error().sentence;
}
std::string error_of_line(const std::string& line) {
  return error_of(kBegin + "ld.weak r0 x\n" + line + "\n" + kEnd);
}

TEST_CASE("a case fills the names of its test, and an empty line is no instruction", "[MAC-8.1]") {
  const auto tests = parse_litmus(
      "test MP  # the shape\nabout a sentence\nlocations x y\n"
      "P0 rank 0 cta 0\n  st.{O} x 1\n  {F}\n  st.{O} y 2\n"
      "P1 rank 1 kernel 1 cta 2\n  ld.relaxed.sys r0 y\n  await.acquire.gpu x != 3\n"
      "exists P1:r0=2 & x!=0\n"
      "case a O=weak F= : forbidden ; one\n"
      "case b O=release.sys F=fence.sc.gpu : ptx=race flush=allowed pdl=unexplored ; two\n",
      "t.litmus");
  if (!tests) FAIL(tests.error().sentence);
  REQUIRE(tests->size() == 2);
  const Test& a = tests->front();
  const Test& b = tests->back();
  CHECK(a.name == "MP.a");
  CHECK(a.about == "a sentence");
  CHECK(a.source == "one");
  CHECK(a.line == 12);
  CHECK(a.threads[0].code.size() == 2);
  CHECK(a.verdict(Boundary::kPdl) == Verdict::kForbidden);
  CHECK(b.threads[0].code.size() == 3);
  CHECK(b.threads[0].code[0].order == Order::kRelease);
  CHECK(b.threads[0].code[1].order == Order::kSc);
  CHECK(b.threads[0].code[1].scope == Scope::kGpu);
  CHECK(b.threads[1].place.rank == 1);
  CHECK(b.threads[1].place.kernel == 1);
  CHECK(b.threads[1].place.cta == 2);
  CHECK_FALSE(b.threads[1].code[1].until_equal);
  CHECK(b.verdict(Boundary::kPtx) == Verdict::kRace);
  CHECK(b.verdict(Boundary::kFlush) == Verdict::kAllowed);
  CHECK(b.verdict(Boundary::kPdl) == Verdict::kUnexplored);
  CHECK(b.has_several_kernels());
  CHECK(b.num_ranks() == 2);
  CHECK(outcome_text(b, 0x12) == "P1:r0=2 x=1");
  CHECK(satisfies_exists(b, 0x12));
  CHECK_FALSE(satisfies_exists(b, 0x02));
  CHECK_FALSE(satisfies_exists(b, 0x11));
}

TEST_CASE("every instruction has one spelling", "[MAC-8.1]") {
  const auto tests = parse_litmus(
      kBegin +
          "ld.acquire.cta r0 x\nld.relaxed.sys.v4 {r1,r2,r3,r4} v\nst.weak.v4 v {1,2,3,4}\n"
          "st.relaxed.gpu v[3] 7\natom.add.acq_rel.gpu r5 x 1\natom.cas.relaxed.sys r6 a 0 2\n"
          "red.add.release.sys x 3\nfence.proxy.alias\nbar.sync\nshfl.sync.idx r7 r0 0\n"
          "vote.sync.any r8 r7\ngriddepcontrol.launch_dependents\ngriddepcontrol.wait\n" +
          kEnd,
      "t.litmus");
  if (!tests) FAIL(tests.error().sentence);
  const ThreadCode& thread = tests->front().threads[0];
  REQUIRE(thread.code.size() == 13);
  CHECK(thread.num_registers == 9);
  CHECK(thread.code[1].words == 4);
  CHECK(thread.code[2].value == std::array<std::uint32_t, 4>{1, 2, 3, 4});
  CHECK(thread.code[3].word == 3);
  CHECK(thread.code[5].value[0] == 2);
  CHECK(thread.code[5].value[1] == 0);
  CHECK(tests->front().names[thread.code[5].name].is_alias);
  CHECK(thread.code[9].source_reg == 0);
}

TEST_CASE("an error names file, line, the text and what is allowed", "[MAC-8.1]") {
  CHECK(error_of("locations x\n") ==
        "t.litmus line 1: \"locations x\"; a file begins with `test NAME`");
  CHECK(error_of_line("mov r1 r0") ==
        "t.litmus line 6: instruction \"mov\"; allowed are ld, st, atom.add, atom.cas, red.add, "
        "fence, fence.proxy.alias, await, bar.sync, shfl.sync.idx, vote.sync.any, "
        "griddepcontrol.launch_dependents and griddepcontrol.wait");
  CHECK(error_of_line("ld.release.gpu r1 x") ==
        "t.litmus line 6: order \"release\" of ld; allowed are weak, relaxed, acquire");
  CHECK(error_of_line("st.relaxed x 1") ==
        "t.litmus line 6: scope \"\" of st.relaxed; allowed are cta, cluster, gpu and sys");
  CHECK(error_of_line("st.weak.gpu x 1") ==
        "t.litmus line 6: \"gpu\" at the end of st.weak.gpu; allowed is nothing, or v4 for ld and "
        "st");
  CHECK(error_of_line("ld.weak r2 x") ==
        "t.litmus line 6: register \"r2\" comes before r1; they are used in order");
  CHECK(error_of_line("ld.weak r1 q") ==
        "t.litmus line 6: location \"q\"; allowed are those of the test, with [0] to [3] for a "
        "word of a vector");
  CHECK(error_of_line("ld.weak r1 x[1]") ==
        "t.litmus line 6: \"ld.weak r1 x[1]\" reaches beyond x, which has 1 words");
  CHECK(error_of_line("st.weak x 15") == "t.litmus line 6: value \"15\"; allowed are 0 to 14");
  CHECK(error_of_line("st.weak x") ==
        "t.litmus line 6: \"st.weak x\" has 1 operands; needed are a location and a value");
  CHECK(error_of_line("{F}") == "t.litmus line 6: \"F\" has no value; the case gives none");
  CHECK(error_of_line("P1 rank 0 cta 0 thread 2") ==
        "t.litmus line 1: the threads of cta 0 of rank 0 are not numbered from 0");
  CHECK(error_of_line("P1 rank 0 cta 0 thread 1\nbar.sync") ==
        "t.litmus line 1: the threads of cta 0 of rank 0 do not meet at the same bar, shfl and "
        "vote");
  CHECK(error_of_line("P1 row 0") ==
        "t.litmus line 6: instruction \"P1\"; allowed are ld, st, atom.add, atom.cas, red.add, "
        "fence, fence.proxy.alias, await, bar.sync, shfl.sync.idx, vote.sync.any, "
        "griddepcontrol.launch_dependents and griddepcontrol.wait");
}

TEST_CASE("an error in a case or a condition is told as well", "[MAC-8.1]") {
  const std::string body = kBegin + "ld.weak r0 x\n";
  CHECK(error_of(body + "exists P0:r1=1\ncase c : allowed ; s\n") ==
        "t.litmus line 1: condition \"P0:r1=1\"; allowed are P0:r0=1, x=1, x[2]=1 or != instead, "
        "joined by &, of registers and locations of the test and values up to 14");
  CHECK(error_of(body + "exists P0:r0=1\ncase c : maybe ; s\n") ==
        "t.litmus line 7: verdict \"maybe\"; allowed are allowed, forbidden, race and unexplored");
  CHECK(error_of(body + "exists P0:r0=1\ncase c : ptx=race ; s\n") ==
        "t.litmus line 7: verdicts \"ptx=race\"; allowed is one word, or ptx=, flush= and pdl= "
        "with one each");
  CHECK(error_of(body + "exists P0:r0=1\ncase c : allowed\n") ==
        "t.litmus line 7: a case is written `case NAME KEY=VALUE ... : VERDICTS ; SOURCE`");
  CHECK(error_of(body + "exists P0:r0=1\ncase c : allowed ; s\ncase c : allowed ; s\n") ==
        "t.litmus line 8: a second case \"MP.c\"");
  CHECK(error_of(body + "exists P0:r0=1\n") == "t.litmus line 1: the test has no case");
  CHECK(error_of(body + "case c : allowed ; s\n") ==
        "t.litmus line 1: a test needs a line `exists`");
}

TEST_CASE("a truncated file is an error or has fewer tests, never a crash", "[MAC-8.1]") {
  const std::string whole = kBegin + "ld.relaxed.sys.v4 {r0,r1,r2,r3} v\n" + kEnd;
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    const auto tests = parse_litmus(whole.substr(0, bytes), "t.litmus");
    CHECK((!tests || tests->size() <= 1));
  }
}

}  // namespace
}  // namespace assay::machine::litmus
