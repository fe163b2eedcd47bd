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

}  // namespace

Status check_writable(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code failed;
  const fs::path target = fs::weakly_canonical(path, failed);
  if (failed) return cannot_write(path, failed.message());
  const fs::file_status status = fs::status(target, failed);
  if (path.empty() || fs::is_directory(status) || path.back() == '/')
    return cannot_write(path, "it names a directory, not a file");
  if (fs::exists(status) && !fs::is_regular_file(status))
    return cannot_write(path, "it exists and is not a regular file");
  if (fs::exists(status) && ::access(target.c_str(), W_OK) != 0)
    return cannot_write(path, std::strerror(errno));
  // The only sure test is the thing itself: a file beside it, which is how it will be written.
  const fs::path beside =
      target.parent_path() / fmt::format(".assay-probe-{}", static_cast<long>(::getpid()));
  const int file = ::open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return cannot_write(path, std::strerror(errno));
  ::close(file);
  ::unlink(beside.c_str());
  return Done{};
}

Expected<Output> Output::open(const std::optional<std::string>& json) {
  if (json && *json != "-") ASSAY_CHECK(check_writable(*json));
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

}  // namespace assay::tools
