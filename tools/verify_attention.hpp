// The attention part of assay verify: --suite attention, or attention.PROPERTY. Decides which flags
// it takes and what it prints; what a property is, is verify/attention's.
#pragma once

#include <string>

#include "tools/cli/arguments.hpp"
#include "tools/cli/tools.hpp"

namespace assay::verify {
struct AttentionSuiteOptions;  // verify/attention/suite.hpp
}

namespace assay::tools {

struct VerifyAttentionArguments {
  const OptionalText& suite;
  const OptionalText& case_text;
  const OptionalText& recipe;   // refused
  const OptionalText& options;  // refused
  const OptionalText& profile;
  const OptionalText& subject;
  const OptionalText& mutant;
  const OptionalText& budget;
  const OptionalText& seed;
  const bool& allow_vacuous;
  const OptionalText& json;
};

// Whether --suite names attention or one of its properties.
bool is_attention(const OptionalText& suite);
// --budget, --seed and --allow-vacuous, and that nothing of dispatch and combine is given.
Expected<verify::AttentionSuiteOptions> parse_suite_options(const VerifyAttentionArguments& from);
// What --case takes of attention: keys, their meanings and defaults.
std::string attention_case_help();
std::string long_case_help();
// --suite attention.long, which is no property (verify_long.cpp).
Expected<ExitCode> run_verify_long(const VerifyAttentionArguments& from);
Expected<ExitCode> run_verify_attention(const VerifyAttentionArguments& from);

}  // namespace assay::tools
