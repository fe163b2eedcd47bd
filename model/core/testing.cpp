// The part of the test adapter that is compiled once: what runs a RapidCheck property and reports
// its result, and the generators that most properties draw from. Decides nothing about Assay.
#include "model/core/testing.hpp"

#include <rapidcheck/detail/Configuration.h>

#include <sstream>

ASSAY_GENERATED_TYPES()

namespace assay::testing {

void run_property(const std::string& description, const std::function<void()>& property) {
  rc::detail::TestMetadata metadata;
  metadata.id = description;
  metadata.description = description;
  const auto result = rc::detail::checkTestable(property, metadata);
  std::ostringstream report;
  rc::detail::printResultMessage(result, report);
  if (result.is<rc::detail::FailureResult>()) {
    rc::detail::Configuration replay;
    replay.reproduce = {{metadata.id, result.get<rc::detail::FailureResult>().reproduce}};
    report << "\nREPLAY: RC_PARAMS=\"" << rc::detail::configToMinimalString(replay) << "\"\n";
  }
  INFO(report.str());
  REQUIRE(result.is<rc::detail::SuccessResult>());
}

}  // namespace assay::testing
