// See request.hpp.
#include "verify/golden/request.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "model/core/text.hpp"

namespace assay::verify {
namespace {

using Settings = std::map<std::string, std::string, std::less<>>;

std::string parameter_names(const GoldenOp& op) {
  std::string names;
  for (const GoldenParameter& parameter : op.parameters)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", parameter.name);
  return names;
}

const GoldenParameter* find_parameter(const GoldenOp& op, std::string_view key) {
  for (const GoldenParameter& parameter : op.parameters)
    if (parameter.name == key) return &parameter;
  return nullptr;
}

Status check_key(const GoldenOp& op, std::string_view key) {
  if (find_parameter(op, key) != nullptr) return Done{};
  return bad_input(fmt::format("{} is no parameter of {}; allowed are {}", in_quotes(key), op.name,
                               parameter_names(op)));
}

// Words, whole numbers, true and false, and other numbers where a parameter is one.
Expected<std::string> value_text(const GoldenOp& op, const std::string& key,
                                 const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_integer()) return value.dump();
  if (value.is_number() && find_parameter(op, key)->real) return value.dump();
  if (value.is_boolean()) return std::string(value.get<bool>() ? "1" : "0");
  return bad_input(fmt::format("{} is {}; allowed are words, whole numbers, true and false",
                               in_quotes(key), in_quotes(value.dump())));
}

Expected<Settings> parameters_of(const GoldenOp& op, const TensorFile& file) {
  Settings values;
  const auto text = file.metadata("assay.params");
  if (!text) return values;
  // A parser keeps the last of two equal keys, another reader may keep the first.
  std::set<std::string> keys;
  std::optional<std::string> twice;
  const auto note_key = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& key) {
    if (event != nlohmann::json::parse_event_t::key || depth != 1) return true;
    if (!keys.insert(key.get<std::string>()).second) twice = key.get<std::string>();
    return true;
  };
  const auto json = nlohmann::json::parse(*text, note_key, false);
  if (json.is_discarded() || !json.is_object())
    return bad_input(fmt::format("{} is no JSON object", in_quotes(*text)));
  if (twice) return bad_input(fmt::format("key {} appears twice", in_quotes(*twice)));
  for (const auto& [key, value] : json.items()) {
    ASSAY_CHECK(check_key(op, key));
    ASSAY_TRY(values[key], value_text(op, key, value));
  }
  return values;
}

Expected<Settings> parameters_of(const GoldenOp& op, const std::vector<std::string>& settings) {
  Settings values;
  for (const std::string& setting : settings) {
    const std::size_t equals = setting.find('=');
    if (equals == std::string::npos || equals == 0)
      return bad_input(fmt::format("--set is {}; it takes key=value with a key of {}",
                                   in_quotes(setting), parameter_names(op)));
    const std::string key = setting.substr(0, equals);
    ASSAY_CHECK(check_key(op, key));
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
  auto from_file = parameters_of(op, file);
  if (!from_file) return from_file.error().within(file.path() + ": assay.params");
  in.parameters = *std::move(from_file);
  ASSAY_TRY(const Settings given, parameters_of(op, settings));
  for (const auto& [key, value] : given) in.parameters[key] = value;
  if (profile) {
    if (op.profile_key.empty())
      return bad_input(fmt::format("--profile is {}; {} takes none, its parameters are {}",
                                   in_quotes(*profile), op.name, parameter_names(op)));
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
    if (parameter.integer)
      json[std::string(parameter.name)] = std::stoll(text);
    else
      json[std::string(parameter.name)] = text;
  }
  return json.dump();
}

}  // namespace assay::verify
