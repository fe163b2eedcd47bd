// See parameters.hpp.
#include "model/core/parameters.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "model/core/text.hpp"

namespace assay {
namespace {

constexpr std::string_view kPlace = "assay.params";

std::string_view allowed_of(ParameterForm form) {
  switch (form) {
    case ParameterForm::kWord:
      return "text in quotes";
    case ParameterForm::kInteger:
      return "whole numbers, also in quotes";
    case ParameterForm::kReal:
      return "numbers, also in quotes";
    case ParameterForm::kFlag:
      return "true, false, 1 and 0, also in quotes";
  }
  CONTRACT(false, static_cast<int>(form));
}

bool is_of_form(const nlohmann::json& value, ParameterForm form) {
  if (value.is_string()) return true;
  if (value.is_boolean()) return form == ParameterForm::kFlag;
  if (value.is_number_integer()) return form != ParameterForm::kWord;
  return value.is_number() && form == ParameterForm::kReal;
}

std::string text_of(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "1" : "0";
  return value.dump();
}

const ParameterKey* find_key(std::span<const ParameterKey> keys, std::string_view name) {
  const auto at = std::find_if(keys.begin(), keys.end(),
                               [&](const ParameterKey& key) { return key.name == name; });
  return at == keys.end() ? nullptr : &*at;
}

}  // namespace

Expected<std::optional<nlohmann::json>> parameters_object(const TensorFile& file) {
  const auto text = file.metadata(kPlace);
  if (!text) return std::optional<nlohmann::json>();
  std::set<std::string> keys;
  std::optional<std::string> twice;
  const auto note_key = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& key) {
    if (event != nlohmann::json::parse_event_t::key || depth != 1) return true;
    if (!keys.insert(key.get<std::string>()).second) twice = key.get<std::string>();
    return true;
  };
  auto json = nlohmann::json::parse(*text, note_key, false);
  if (json.is_discarded() || !json.is_object())
    return bad_input(fmt::format("{} is {}; allowed is a JSON object", kPlace, in_quotes(*text)));
  if (twice) return bad_input(fmt::format("{}: key {} appears twice", kPlace, in_quotes(*twice)));
  return std::optional(std::move(json));
}

Expected<Parameters> parameters_in(const TensorFile& file, std::string_view of,
                                   std::span<const ParameterKey> keys) {
  Parameters values;
  ASSAY_TRY(const auto json, parameters_object(file));
  if (!json) return values;
  for (const auto& [key, value] : json->items()) {
    if (const Status known = check_parameter_key(of, keys, key); !known)
      return known.error().within(std::string(kPlace));
    const ParameterForm form = find_key(keys, key)->form;
    if (!is_of_form(value, form))
      return bad_input(fmt::format("{}: {} is {}; allowed are {}", kPlace, key,
                                   in_quotes(value.dump()), allowed_of(form)));
    values[key] = text_of(value);
  }
  return values;
}

Status check_parameter_key(std::string_view of, std::span<const ParameterKey> keys,
                           std::string_view key) {
  if (find_key(keys, key) != nullptr) return Done{};
  return bad_input(fmt::format("{} is no parameter of {}; allowed are {}", in_quotes(key), of,
                               parameter_names(keys)));
}

std::string parameter_names(std::span<const ParameterKey> keys) {
  std::vector<std::string_view> names;
  for (const ParameterKey& key : keys) names.push_back(key.name);
  return joined(names);
}

Expected<float> parse_real(std::string_view name, std::string_view text, RealRange range) {
  float value = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  const bool whole = parsed.ec == std::errc() && parsed.ptr == end;
  const bool infinite = std::isinf(value) && range != RealRange::kNotNegativeOrInf;
  const bool low = range == RealRange::kPositive ? !(value > 0) : !(value >= 0);
  if (whole && !infinite && !low) return value;
  const char* const allowed = range == RealRange::kPositive      ? "positive numbers"
                              : range == RealRange::kNotNegative ? "0 and positive numbers"
                                                                 : "0, positive numbers and inf";
  return bad_input(
      fmt::format("{} is {}; allowed are {}{}", name, in_quotes(text), allowed,
                  parsed.ec == std::errc::result_out_of_range ? ", as F32 has them" : ""));
}

std::string real_text(float value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return {text, end};
}

}  // namespace assay
