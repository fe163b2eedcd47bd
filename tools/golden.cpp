// assay golden: the legal output of one operation on given inputs, written as a file that checks
// itself. Which operations there are and what they compute is verify/golden.
#include "verify/golden/golden.hpp"

#include "model/core/text.hpp"
#include "tools/cli/arguments.hpp"
#include "tools/cli/document.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/tools.hpp"

namespace assay::tools {
namespace {

struct GoldenArguments {
  const OptionalText& op;
  const OptionalText& in;
  const OptionalText& out;
  const OptionalText& profile;
  const std::vector<std::string>& settings;
  const OptionalText& json;
};

Expected<ExitCode> run_golden(const GoldenArguments& from) {
  ASSAY_TRY(const Output output, Output::open(from.json, {from.in, from.out}));
  if (!from.in) return bad_input("--in is missing; it names the file with the inputs");
  if (!from.out) return bad_input("--out is missing; it names the file to write");
  ASSAY_CHECK(check_writable(*from.out));
  ASSAY_CHECK(check_not_input(*from.out, {from.in}));
  ASSAY_TRY(const verify::GoldenWritten written,
            verify::write_golden({*from.op, *from.in, from.settings, from.profile}, *from.out));
  Document document;
  document.field("written", *from.out);
  document.field("rule", written.rule);
  document.field("grade", std::string(grade_name(written.grade)));
  document.field("claim", written.claim);
  document.list("tensors", {written.tensors.begin(), written.tensors.end()});
  ASSAY_CHECK(output.write(document));
  return ExitCode::kConforms;
}

}  // namespace

Action declare_golden(Arguments& arguments) {
  const GoldenArguments from{
      arguments.positional("OP", "one of " + verify::golden_op_names()),
      arguments.option("--in", "FILE", "safetensors with the inputs of OP"),
      arguments.option("--out", "FILE", "the file to write, *.safetensors"),
      arguments.option("--profile", "NAME",
                       "of combine, attention and quantize, unless the file names it"),
      arguments.repeated("--set", "KEY=VALUE", "a parameter of OP, stronger than the file's"),
      arguments.json()};
  return [from] { return run_golden(from); };
}

}  // namespace assay::tools
