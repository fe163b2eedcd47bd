// assay check: an output against the legal one of given inputs, bit by bit. Prints the report of
// verify/compare; what is legal is decided in verify/golden.
#include <nlohmann/json.hpp>

#include "tools/cli/arguments.hpp"
#include "tools/cli/document.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/tools.hpp"
#include "verify/golden/golden.hpp"

namespace assay::tools {
namespace {

struct CheckArguments {
  const OptionalText& op;
  const OptionalText& in;
  const OptionalText& got;
  const OptionalText& subject;
  const OptionalText& profile;
  const std::vector<std::string>& settings;
  const bool& allow_vacuous;
  const OptionalText& json;
};

Expected<ExitCode> run_check(const CheckArguments& from) {
  ASSAY_TRY(const Output output,
            Output::open(from.json, {from.in, from.got, plugin_file(from.subject)}));
  if (!from.in) return bad_input("--in is missing; it names the file with the inputs");
  if (from.got.has_value() == from.subject.has_value())
    return bad_input(
        from.got ? "--got names a file with outputs and --subject who makes them; allowed is one"
                 : "--got is missing; it names the file with the output to judge (of attention, "
                   "--subject runs who makes it)");
  const verify::GoldenRequest request{*from.op, *from.in, from.settings, from.profile};
  ASSAY_TRY(const verify::Report report,
            from.got ? verify::check_golden(request, *from.got, from.allow_vacuous)
                     : verify::check_golden_subject(request, *from.subject, from.allow_vacuous));
  Document document;
  document.rendered("report", verify::to_text(report), verify::to_json(report));
  ASSAY_CHECK(output.write(document));
  return static_cast<ExitCode>(verify::exit_code(report.verdict));
}

}  // namespace

Action declare_check(Arguments& arguments) {
  const CheckArguments from{
      arguments.positional("OP", "one of " + verify::golden_op_names()),
      arguments.option("--in", "FILE", "safetensors with the inputs of OP"),
      arguments.option("--got", "FILE", "safetensors with the output to judge"),
      arguments.option("--subject", "WHAT",
                       "of attention, in place of --got: cuda or plugin:FILE, run on the inputs"),
      arguments.option(
          "--profile", "NAME",
          "of combine, attention and quantize, unless the file names it; any tries all"),
      arguments.repeated("--set", "KEY=VALUE", "a parameter of OP, stronger than the file's"),
      arguments.flag("--allow-vacuous", "exit 0 even if the comparison could not have failed"),
      arguments.json()};
  return [from] { return run_check(from); };
}

}  // namespace assay::tools
