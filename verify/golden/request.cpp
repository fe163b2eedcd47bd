// See request.hpp.
#include "verify/golden/request.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "model/core/text.hpp"

namespace assay::verify {
namespace {

std::vector<ParameterKey> keys_of(const GoldenOp& op) {
  std::vector<ParameterKey> keys;
  for (const GoldenParameter& parameter : op.parameters)
    keys.push_back({parameter.name, parameter.form});
  return keys;
}
std::string names_of(const GoldenOp& op) { return parameter_names(keys_of(op)); }

Expected<Parameters> settings_of(const GoldenOp& op, const std::vector<std::string>& settings) {
  Parameters values;
  for (const std::string& setting : settings) {
    const std::size_t equals = setting.find('=');
    if (equals == std::string::npos || equals == 0)
      return bad_input(fmt::format("--set is {}; it takes key=value with a key of {}",
                                   in_quotes(setting), names_of(op)));
    const std::string key = setting.substr(0, equals);
    ASSAY_CHECK(check_parameter_key(op.name, keys_of(op), key));
    if (!values.emplace(key, setting.substr(equals + 1)).second)
      return bad_input(fmt::format("--set gives {} twice", key));
  }
  return values;
}

}  // namespace

Expected<TensorFile> open_golden(const std::string& path, const GoldenOp& op) {
  if (path.find("{rank}") != std::string::npos) {
    return unsupported(
        fmt::format("{} names one file per rank; {} reads one file whose tensors "
                    "have an axis for the ranks",
                    in_quotes(path, 300), op.name));
  }
  ASSAY_TRY(TensorFile file, TensorFile::open(path));
  // Files of frameworks have no schema; one of another schema would be a mistake.
  const auto schema = file.metadata("schema");
  if (schema && !op.recorded_schema.empty() && *schema == op.recorded_schema)
    ASSAY_CHECK(file.schema_version(op.recorded_schema, 1));
  else if (schema)
    ASSAY_CHECK(file.schema_version(kGoldenSchema, kGoldenVersion));
  const auto named = file.metadata("assay.op");
  if (named && *named != op.name)
    return bad_input(
        fmt::format("{}: its assay.op is {}, not {}", path, in_quotes(*named), op.name));
  return file;
}

Expected<GoldenInput> read_parameters(const GoldenOp& op, const TensorFile& file,
                                      const std::vector<std::string>& settings,
                                      const std::optional<std::string>& profile) {
  GoldenInput in;
  in.file = &file;
  auto from_file = parameters_in(file, op.name, keys_of(op));
  if (!from_file) return from_file.error().within(file.path());
  in.parameters = *std::move(from_file);
  ASSAY_TRY(const Parameters given, settings_of(op, settings));
  for (const auto& [key, value] : given) in.parameters[key] = value;
  in.given = given;
  if (profile) {
    if (op.profile_key.empty())
      return bad_input(fmt::format("--profile is {}; {} takes none, its parameters are {}",
                                   in_quotes(*profile), op.name, names_of(op)));
    if (given.find(op.profile_key) != given.end())
      return bad_input(fmt::format("--profile and --set {} say the same thing; give one of them",
                                   op.profile_key));
    in.parameters[std::string(op.profile_key)] = *profile;
  }
  for (const GoldenParameter& parameter : op.parameters) {
    if (in.has(parameter.name)) continue;
    if (parameter.fallback) {
      in.parameters[std::string(parameter.name)] = std::string(*parameter.fallback);
    } else if (parameter.required) {
      const bool is_profile = parameter.name == op.profile_key;
      return bad_input(fmt::format("{} of {} is not given by {} and not by {}; allowed are {}",
                                   parameter.name, op.name, is_profile ? "--profile" : "--set",
                                   file.path(), parameter.allowed));
    }
  }
  return in;
}

std::string parameters_json(const GoldenOp& op, const GoldenInput& in) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const GoldenParameter& parameter : op.parameters) {
    if (!in.has(parameter.name)) continue;
    const std::string& text = in.text(parameter.name);
    // The operation has parsed it by now.
    if (parameter.form == ParameterForm::kInteger || parameter.form == ParameterForm::kFlag)
      json[std::string(parameter.name)] = std::stoll(text);
    else
      json[std::string(parameter.name)] = text;
  }
  return json.dump();
}

}  // namespace assay::verify
