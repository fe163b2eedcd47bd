// assay profiles: the tables of combine and attention arithmetics that the model knows, each with
// what it covers, how far its bits can be trusted and where every field was read (SPEC VER-21.11).
#include <fmt/format.h>

#include "model/attention/profile.hpp"
#include "model/core/text.hpp"
#include "model/moe/profile.hpp"
#include "tools/cli/arguments.hpp"
#include "tools/cli/document.hpp"
#include "tools/cli/output.hpp"
#include "tools/cli/tools.hpp"

namespace assay::tools {
namespace {

using CombineProfiles = std::span<const moe::CombineProfile>;
using AttentionProfiles = std::span<const attention::Profile>;

Table combine_table(CombineProfiles profiles) {
  Table table{{"name", "variant", "grade", "evidence", "covers"}, {}};
  for (const moe::CombineProfile& profile : profiles) {
    table.rows.push_back({std::string(profile.name), std::string(profile.variant),
                          std::string(grade_name(profile.grade)),
                          std::string(evidence_name(profile.evidence)),
                          std::string(profile.covers)});
  }
  return table;
}

Table attention_table(AttentionProfiles profiles) {
  Table table{{"name", "grade", "evidence", "covers"}, {}};
  for (const attention::Profile& profile : profiles) {
    table.rows.push_back({std::string(profile.name), std::string(grade_name(profile.grade)),
                          std::string(evidence_name(profile.evidence)),
                          std::string(profile.covers)});
  }
  return table;
}

template <class Profile>
Table fields_of(const Profile& profile) {
  Table table{{"field", "value", "evidence", "source"}, {}};
  for (const auto& field : profile.fields) {
    table.rows.push_back({std::string(field.name), std::string(field.value),
                          std::string(evidence_name(field.evidence)), std::string(field.source)});
  }
  return table;
}

// The profiles of that name, of one table or the other.
template <class Profile>
std::span<const Profile> named(std::span<const Profile> all, const std::string& name) {
  for (const Profile& profile : all)
    if (profile.name == name) return {&profile, 1};
  return {};
}

Expected<ExitCode> print_profiles(const OptionalText& wanted, const OptionalText& json) {
  ASSAY_TRY(const Output output, Output::open(json));
  CombineProfiles combine = moe::combine_profiles();
  AttentionProfiles attention = attention::profiles();
  if (wanted) {
    std::vector<std::string_view> names;
    for (const moe::CombineProfile& profile : combine) names.push_back(profile.name);
    for (const attention::Profile& profile : attention) names.push_back(profile.name);
    combine = named(combine, *wanted);
    attention = named(attention, *wanted);
    if (combine.empty() && attention.empty())
      return bad_input(
          fmt::format("--profile is {}; allowed are {}", in_quotes(*wanted), joined(names)));
  }
  Document document;
  if (!combine.empty()) {
    document.field("default", std::string(moe::default_combine_profile().name),
                   "what our own dispatch and combine kernels compute when nothing is said");
    document.table("combine", combine_table(combine));
  }
  if (!attention.empty()) document.table("attention", attention_table(attention));
  Document& fields = document.group("fields");
  for (const moe::CombineProfile& profile : combine)
    fields.table(std::string(profile.name), fields_of(profile));
  for (const attention::Profile& profile : attention)
    fields.table(std::string(profile.name), fields_of(profile));
  ASSAY_CHECK(output.write(document));
  return ExitCode::kConforms;
}

}  // namespace

Action declare_profiles(Arguments& arguments) {
  const OptionalText& wanted =
      arguments.option("--profile", "NAME", "only this one, of either kind");
  const OptionalText& json = arguments.json();
  return [&wanted, &json] { return print_profiles(wanted, json); };
}

}  // namespace assay::tools
