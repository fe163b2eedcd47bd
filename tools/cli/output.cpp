// See output.hpp.
#include "tools/cli/output.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <span>

#include "model/core/mapped_file.hpp"
#include "model/core/text.hpp"
#include "verify/subject/foreign.hpp"

namespace assay::tools {
namespace {

Error cannot_write(const std::string& path, const std::string& why) {
  return bad_input(fmt::format("cannot write {}: {}", in_quotes(path, 300), why));
}

Status print(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (!written || std::fflush(stdout) != 0)
    return bad_input(fmt::format("cannot write to standard output: {}", std::strerror(errno)));
  return Done{};
}

// Absolute first: of a relative name that does not exist, weakly_canonical keeps the spelling.
std::filesystem::path spelled(const std::string& path) {
  std::error_code failed;
  return std::filesystem::weakly_canonical(std::filesystem::absolute(path, failed), failed);
}

}  // namespace

Status check_writable(const std::string& path) {
  namespace fs = std::filesystem;
  if (path.empty()) return cannot_write(path, "the name is empty");
  std::error_code failed;
  const fs::path target = fs::weakly_canonical(path, failed);
  if (failed) return cannot_write(path, failed.message());
  const fs::file_status status = fs::status(target, failed);
  if (fs::is_directory(status) || path.back() == '/')
    return cannot_write(path, "it names a directory, not a file");
  if (fs::exists(status) && !fs::is_regular_file(status))
    return cannot_write(path, "it exists and is not a regular file");
  if (fs::exists(status) && ::access(target.c_str(), W_OK) != 0)
    return cannot_write(path, std::strerror(errno));
  // The only sure test is the thing itself: a file beside it, which is how it will be written.
  if (const Status possible = write_file_beside(target.string()); !possible)
    return cannot_write(path, possible.error().sentence);
  return Done{};
}

Status check_not_input(const std::string& output,
                       std::initializer_list<std::optional<std::string>> inputs) {
  for (const std::optional<std::string>& input : inputs) {
    std::error_code absent;
    if (input && std::filesystem::equivalent(output, *input, absent))
      return cannot_write(
          output, fmt::format("it is {}, which this command also uses", in_quotes(*input, 300)));
    // Two outputs that do not exist yet are one file if they are spelled alike.
    if (input && absent && spelled(output) == spelled(*input))
      return cannot_write(output, "the command line names it twice");
  }
  return Done{};
}

Expected<Output> Output::open(const std::optional<std::string>& json,
                              std::initializer_list<std::optional<std::string>> other_files) {
  if (json && *json != "-") {
    ASSAY_CHECK(check_writable(*json));
    ASSAY_CHECK(check_not_input(*json, other_files));
  }
  return Output(json);
}

Status Output::write(const Document& document) const {
  if (json_ && *json_ == "-") return print(document.json());
  if (json_) {
    const std::string text = document.json();
    const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
    const std::span<const std::byte> parts[] = {bytes};
    ASSAY_CHECK(write_file(*json_, parts));
  }
  return print(document.text());
}

std::optional<std::string> plugin_file(const std::optional<std::string>& subject) {
  if (!subject || !verify::is_foreign(*subject)) return std::nullopt;
  return subject->substr(subject->find(':') + 1);
}

}  // namespace assay::tools
