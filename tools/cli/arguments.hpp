// Options of one verb. Every value arrives here as text and is turned into a number, a range or a
// name by the functions below, so that a wrong one is answered with a sentence of ours: what was
// got and what is allowed. Knows the parsing library; verbs do not.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/core/case_text.hpp"
#include "model/core/expected.hpp"

namespace CLI {
class App;
}

namespace assay::tools {

using OptionalText = std::optional<std::string>;

class Arguments {
 public:
  explicit Arguments(CLI::App& app) : app_(app) {}

  // Each declares one thing and returns where its value will be once the command line was parsed:
  // empty if it was not given. The reference lives as long as this object.
  const OptionalText& option(const std::string& name, const std::string& value_name,
                             const std::string& what);
  // The same, given any number of times; its values in order.
  const std::vector<std::string>& repeated(const std::string& name, const std::string& value_name,
                                           const std::string& what);
  const bool& flag(const std::string& name, const std::string& what);
  // An argument without a name that must be given.
  const OptionalText& positional(const std::string& value_name, const std::string& what);
  // One that may be left out.
  const OptionalText& optional_positional(const std::string& value_name, const std::string& what);
  // --json prints JSON instead of text (its value is "-"); --json=FILE writes it to a file as well.
  const OptionalText& json();
  // The command line in the form that the parser is given. A bare --json never takes the word
  // behind it for its file: in "assay replay --json trace.csv" that would overwrite the trace.
  static std::vector<std::string> words(int argc, char** argv);

  // After parsing: an option that nobody declared, a positional that is missing.
  Status check_complete() const;

 private:
  struct Positional {
    std::string value_name;
    std::string what;
    const OptionalText* value;
  };
  CLI::App& app_;
  std::deque<OptionalText> texts_;  // a deque: references stay valid
  std::deque<std::vector<std::string>> lists_;
  std::deque<bool> flags_;
  std::vector<Positional> positionals_;
};

// "assay trace info"
std::string full_name(const CLI::App& app);

// A half-open range of steps or layers, "a:b"; either side may be missing.
struct IndexRange {
  std::int64_t begin = 0;
  std::optional<std::int64_t> end;  // absent: to the last
};

// All sentences start with the option's name. An option that was not given has its default.
template <class T>
Expected<T> integer_or(std::string_view name, const OptionalText& text, T value_min, T value_max,
                       T value_default) {
  if (!text) return value_default;
  return parse_integer<T>(name, *text, value_min, value_max);
}
Expected<IndexRange> parse_range(std::string_view name, const OptionalText& text);
// The parts between commas, empty ones too; of `fallback` if the option was not given.
std::vector<std::string> list_of(const OptionalText& text, const char* fallback);

}  // namespace assay::tools
