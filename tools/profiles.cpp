// assay profiles: the table of combine arithmetics that the model knows, each with what it covers,
// how far its bits can be trusted and where every field was read.
#include <fmt/format.h>

#include "model/moe/profile.hpp"
#include "tools/cli/arguments.hpp"
#include "tools/cli/document.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/tools.hpp"

namespace assay::tools {
namespace {

Table overview(std::span<const moe::CombineProfile> profiles) {
  Table table{{"name", "variant", "grade", "evidence", "covers"}, {}};
  for (const moe::CombineProfile& profile : profiles) {
    table.rows.push_back({std::string(profile.name), std::string(profile.variant),
                          std::string(grade_name(profile.grade)),
                          std::string(evidence_name(profile.evidence)),
                          std::string(profile.covers)});
  }
  return table;
}

Table fields_of(const moe::CombineProfile& profile) {
  Table table{{"field", "value", "evidence", "source"}, {}};
  for (const moe::CombineProfile::Field& field : profile.fields) {
    table.rows.push_back({std::string(field.name), std::string(field.value),
                          std::string(evidence_name(field.evidence)), std::string(field.source)});
  }
  return table;
}

Expected<ExitCode> print_profiles(const OptionalText& wanted, const OptionalText& json) {
  ASSAY_TRY(const Output output, Output::open(json));
  Document document;
  std::span<const moe::CombineProfile> profiles = moe::combine_profiles();
  if (wanted) {
    ASSAY_TRY(const moe::CombineProfile* profile, moe::find_combine_profile(*wanted));
    profiles = {profile, 1};
  }
  document.field("default", std::string(moe::default_combine_profile().name),
                 "what our own kernels compute when nothing is said");
  document.table("combine", overview(profiles));
  Document& fields = document.group("fields");
  for (const moe::CombineProfile& profile : profiles)
    fields.table(std::string(profile.name), fields_of(profile));
  ASSAY_CHECK(output.write(document));
  return ExitCode::kConforms;
}

}  // namespace

Action declare_profiles(Arguments& arguments) {
  const OptionalText& wanted = arguments.option("--profile", "NAME", "only this one");
  const OptionalText& json = arguments.json();
  return [&wanted, &json] { return print_profiles(wanted, json); };
}

}  // namespace assay::tools
