// What the litmus probe makes of what it saw, without a GPU.
#include "cuda/probe/litmus_report.hpp"

#include "model/core/testing.hpp"
#include "model/core/testing_files.hpp"

namespace assay::litmus_probe {
namespace {

// Store buffering: both registers may be 0, and no interleaving explains that.
CaseInfo store_buffering() {
  CaseInfo test;
  test.name = "SB.relaxed";
  test.num_threads = 2;
  test.locations = {{"x", 1}, {"y", 1}};
  test.observables = {{true, 0, 0, 0, 0}, {true, 1, 0, 0, 0}};
  test.texts = {"P0:r0", "P1:r0"};
  test.exists = {{0, 0, true}, {1, 0, true}};
  for (int b = 0; b < 3; ++b) {
    test.verdict[b] = "allowed";
    test.allowed[b] = {0x00, 0x01, 0x10, 0x11};
  }
  test.sequential = {0x01, 0x10, 0x11};
  return test;
}

struct Finished {
  int code;
  std::string json;
};
Finished finished(const CaseInfo& test, const Seen& seen, const Configuration& configuration = {},
                  std::uint32_t rounds_that_failed = 0) {
  const assay::testing::TempDir directory;
  Report report;
  report.add(test, configuration, seen);
  report.end_run();
  report.rounds_that_failed(rounds_that_failed);
  const int code = report.finish(directory.file("out.json"), "litmus_probe", 13000);
  return {code, assay::testing::read_bytes(directory.file("out.json"))};
}
bool says(const Finished& run, const std::string& text) {
  return run.json.find(text) != std::string::npos;
}

TEST_CASE("a run that saw weak memory and nothing forbidden conforms", "[MAC-8.5]") {
  const Finished run = finished(store_buffering(), Seen{{{0x00, 3}, {0x11, 5}}, 8, 0});
  CHECK(run.code == 0);
  CHECK(says(run, "\"verdict\": \"CONFORMS\""));
  CHECK(says(run, "\"weak_outcomes\": 3"));
  CHECK(says(run, "\"P0:r0=0 P1:r0=0\": 3"));
  CHECK(says(run, "\"exists_at\": {\"x0 y0\": 3}"));
}

TEST_CASE("a run without an outcome that only weak memory explains is mistrusted", "[MAC-8.5]") {
  const Finished run = finished(store_buffering(), Seen{{{0x01, 3}, {0x11, 5}}, 8, 0});
  CHECK(run.code == 1);
  CHECK(says(run, "\"verdict\": \"MISTRUSTED\""));
}

TEST_CASE("threads that gave up, and rounds that did not start together, are mistrusted",
          "[MAC-8.5]") {
  CHECK(finished(store_buffering(), Seen{{{0x00, 7}}, 8, 1}).code == 1);
  CHECK(finished(store_buffering(), Seen{{{0x00, 8}}, 8, 0}, {}, 1).code == 1);
}

TEST_CASE("an outcome that is not allowed is a mismatch, unless the test has a race", "[MAC-8.5]") {
  CaseInfo test = store_buffering();
  test.allowed[0] = test.sequential;
  const Finished run = finished(test, Seen{{{0x00, 2}, {0x11, 5}}, 7, 0});
  CHECK(run.code == 1);
  CHECK(says(run, "\"verdict\": \"MISMATCH\""));
  CHECK(says(run, "\"mismatches\": 2"));
  test.race[0] = true;
  CHECK(says(finished(test, Seen{{{0x00, 2}, {0x11, 5}}, 7, 0}), "\"mismatches\": 0"));
}

TEST_CASE("a programmatic launch is held against its own boundary, a plain one also against flush",
          "[MAC-8.5]") {
  CaseInfo test = store_buffering();
  test.allowed[1] = test.sequential;
  test.allowed[2] = test.sequential;
  const Seen seen{{{0x00, 2}, {0x11, 5}}, 7, 0};
  const Finished plain = finished(test, seen);
  CHECK(says(plain, "\"mismatches\": 0"));
  CHECK(says(plain, "\"beyond_flush\": 2"));
  Configuration programmatic;
  programmatic.programmatic = true;
  CHECK(says(finished(test, seen, programmatic), "\"mismatches\": 2"));
}

}  // namespace
}  // namespace assay::litmus_probe
