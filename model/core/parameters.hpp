// Parameters that travel with tensors: assay.params in a file's metadata, one JSON object. Decides
// how every reader of it understands keys and values (SPEC VER-7.1); which keys there are, and what
// their values may be, is decided by who asks.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "model/core/expected.hpp"
#include "model/core/safetensors.hpp"

namespace assay {

// How a value may be written in JSON; as text it always may.
enum class ParameterForm : std::uint8_t {
  kWord,
  kInteger,  // a whole number
  kReal,     // any number
  kFlag,     // true, false, 1 or 0
};
struct ParameterKey {
  std::string_view name;
  ParameterForm form = ParameterForm::kWord;
};
using Parameters = std::map<std::string, std::string, std::less<>>;  // values as text

// The object itself, nothing if the file has none. Errors: text that is no JSON object, a key that
// appears twice (of which one parser keeps the first and another the last).
Expected<std::optional<nlohmann::json>> parameters_object(const TensorFile& file);

// Its values as text: numbers as JSON prints them, true and false as 1 and 0. `of` names who knows
// `keys`. Errors: those above, a key that is not among them, a value of another form.
Expected<Parameters> parameters_in(const TensorFile& file, std::string_view of,
                                   std::span<const ParameterKey> keys);
Status check_parameter_key(std::string_view of, std::span<const ParameterKey> keys,
                           std::string_view key);
std::string parameter_names(std::span<const ParameterKey> keys);  // "profile, mask, scale"

// A decimal number as F32 has it, and nothing around it: no blanks, no hexadecimal digits. Infinity
// is "inf" and allowed where it says so.
enum class RealRange : std::uint8_t { kPositive, kNotNegative, kNotNegativeOrInf };
Expected<float> parse_real(std::string_view name, std::string_view text, RealRange range);
std::string real_text(float value);  // the shortest text that is read as it: "1e+10", "1e-40"

}  // namespace assay
