// See arguments.hpp. The parsing library is only asked to find options; it converts nothing.
#include "tools/cli/arguments.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <limits>

#include "model/core/text.hpp"

namespace assay::tools {
namespace {

std::string option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_positional()) names.push_back(option->get_name());
  }
  return joined(names);
}

}  // namespace

std::string full_name(const CLI::App& app) {
  const CLI::App* parent = app.get_parent();
  return parent == nullptr ? app.get_name() : full_name(*parent) + " " + app.get_name();
}

const OptionalText& Arguments::option(const std::string& name, const std::string& value_name,
                                      const std::string& what) {
  OptionalText& text = texts_.emplace_back();
  app_.add_option_function<std::string>(
          name, [&text](const std::string& value) { text = value; }, what)
      ->type_name(value_name);
  return text;
}

const std::vector<std::string>& Arguments::repeated(const std::string& name,
                                                    const std::string& value_name,
                                                    const std::string& what) {
  std::vector<std::string>& list = lists_.emplace_back();
  app_.add_option(name, list, what)
      ->type_name(value_name)
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  return list;
}

const bool& Arguments::flag(const std::string& name, const std::string& what) {
  bool& given = flags_.emplace_back(false);
  app_.add_flag(name, given, what)->disable_flag_override();
  return given;
}

const OptionalText& Arguments::optional_positional(const std::string& value_name,
                                                   const std::string& what) {
  OptionalText& text = texts_.emplace_back();
  app_.add_option_function<std::string>(
          value_name, [&text](const std::string& value) { text = value; }, what)
      ->type_name("");
  return text;
}

const OptionalText& Arguments::positional(const std::string& value_name, const std::string& what) {
  const OptionalText& text = optional_positional(value_name, what);
  positionals_.push_back({value_name, what, &text});
  return text;
}

const OptionalText& Arguments::json() {
  return option("--json", "",
                "print JSON instead of text; --json=FILE writes it to a file as well");
}

std::vector<std::string> Arguments::words(int argc, char** argv) {
  std::vector<std::string> words;
  for (int i = argc - 1; i > 0; --i)  // the parser takes them from the back
    words.push_back(std::string(argv[i]) == "--json" ? "--json=-" : argv[i]);
  return words;
}

Status Arguments::check_complete() const {
  for (const std::string& extra : app_.remaining()) {
    const bool option = extra.size() > 1 && extra[0] == '-';
    if (option) {
      return bad_input(fmt::format("{} is no option of {}; its options are {}", in_quotes(extra),
                                   full_name(app_), option_names(app_)));
    }
    return bad_input(fmt::format("argument {} is one more than {} takes; see {} --help",
                                 in_quotes(extra), full_name(app_), full_name(app_)));
  }
  for (const Positional& positional : positionals_) {
    if (positional.value->has_value()) continue;
    return bad_input(fmt::format("{} is missing ({}); see {} --help", positional.value_name,
                                 positional.what, full_name(app_)));
  }
  return Done{};
}

Expected<IndexRange> parse_range(std::string_view name, const OptionalText& text) {
  IndexRange range;
  if (!text) return range;
  const Error wrong =
      bad_input(fmt::format("{} is {}; allowed is a:b with whole numbers 0 <= a < b, where a: "
                            "means from a on, :b means up to b, and b itself is not included",
                            name, in_quotes(*text)));
  const auto colon = text->find(':');
  if (colon == std::string::npos) return wrong;
  const std::string_view first = std::string_view(*text).substr(0, colon);
  const std::string_view last = std::string_view(*text).substr(colon + 1);
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  if (!first.empty()) {
    const auto begin = parse_integer<std::int64_t>("a", first, 0, kMax);
    if (!begin) return wrong;
    range.begin = *begin;
  }
  if (!last.empty()) {
    const auto end = parse_integer<std::int64_t>("b", last, range.begin + 1, kMax);
    if (!end) return wrong;
    range.end = *end;
  }
  return range;
}

std::vector<std::string> list_of(const OptionalText& text, const char* fallback) {
  std::vector<std::string> parts(1);
  for (const char c : text.value_or(fallback)) {
    if (c == ',')
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

}  // namespace assay::tools
