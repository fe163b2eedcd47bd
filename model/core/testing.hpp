// For tests only: one spelling of Catch2 2 (Debian 12) and 3 (Ubuntu 24.04), and RapidCheck
// properties that print how to replay them. Decides nothing about Assay.
//
//   TEST_CASE("a slot is never taken twice", "[MOE-3.1]") {
//     prop("any routing", [](const Case& c) { RC_ASSERT(...); });
//   }
//
// Test names are sentences; tags are clauses of model/SPEC.md. `prop` runs a RapidCheck property as
// one assertion; on failure it prints the shrunk counterexample and the RC_PARAMS line that replays
// it. The default seed is fixed by the build (meson test sets RC_PARAMS), so a run can be repeated.
#pragma once

#if __has_include(<catch2/catch_test_macros.hpp>)
#include <catch2/catch_approx.hpp>
#include <catch2/catch_message.hpp>
#include <catch2/catch_test_macros.hpp>
#else
#include <catch2/catch.hpp>
#endif

#include <rapidcheck.h>
#include <rapidcheck/detail/Configuration.h>

#include <sstream>
#include <string>
#include <utility>

namespace assay::testing {

// Runs `testable` as a RapidCheck property named `description` and makes its result a Catch2
// assertion. Discarded too often counts as failure: a property that checked nothing has not passed.
template <class Testable>
void prop(const std::string& description, Testable&& testable) {
  rc::detail::TestMetadata metadata;
  metadata.id = description;
  metadata.description = description;
  const auto result = rc::detail::checkTestable(std::forward<Testable>(testable), metadata);
  std::ostringstream report;
  rc::detail::printResultMessage(result, report);
  if (result.template is<rc::detail::FailureResult>()) {
    rc::detail::Configuration replay;
    replay.reproduce = {{metadata.id, result.template get<rc::detail::FailureResult>().reproduce}};
    report << "\nREPLAY: RC_PARAMS=\"" << rc::detail::configToMinimalString(replay) << "\"\n";
  }
  INFO(report.str());
  REQUIRE(result.template is<rc::detail::SuccessResult>());
}

}  // namespace assay::testing
