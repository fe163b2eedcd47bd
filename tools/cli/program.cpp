// See program.hpp.
#include "tools/cli/program.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include "model/core/text.hpp"

extern char** environ;

namespace assay::tools {
namespace {

// The child's exit status, or nothing after `time`: it was killed then.
Expected<int> wait_for_end(pid_t child, const std::string& name, std::chrono::seconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  int status = 0;
  for (;;) {
    const pid_t ended = ::waitpid(child, &status, WNOHANG);
    if (ended == child) return status;
    if (ended < 0)
      return bad_input(fmt::format("{} was lost: {}", in_quotes(name), std::strerror(errno)));
    if (std::chrono::steady_clock::now() > end) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  // Its own process group: what it started ends with it.
  ::kill(-child, SIGKILL);
  ::waitpid(child, &status, 0);
  return bad_input(
      fmt::format("{} had not ended within {} s and was killed", in_quotes(name), time.count()));
}

}  // namespace

Expected<std::string> run_program(const std::vector<std::string>& words,
                                  std::chrono::seconds time) {
  ASSAY_TRY(const TemporaryFile out, TemporaryFile::make(""));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, out.path().c_str(), O_WRONLY | O_TRUNC, 0600);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t child = 0;
  const int code =
      ::posix_spawnp(&child, words[0].c_str(), &actions, &attributes, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (code != 0)
    return bad_input(
        fmt::format("{} cannot be started: {}", in_quotes(words[0]), std::strerror(code)));
  ASSAY_TRY(const int status, wait_for_end(child, words[0], time));
  std::ostringstream printed;
  printed << std::ifstream(out.path(), std::ios::binary).rdbuf();
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return printed.str();
  return bad_input(
      WIFEXITED(status)
          ? fmt::format("{} ended with code {}", in_quotes(words[0]), WEXITSTATUS(status))
          : fmt::format("{} ended by signal {}", in_quotes(words[0]), WTERMSIG(status)));
}

Expected<TemporaryFile> TemporaryFile::make(const std::string& text) {
  const char* const folder = std::getenv("TMPDIR");
  std::string path = std::string(folder != nullptr ? folder : "/tmp") + "/assay-XXXXXX";
  const int file = ::mkstemp(path.data());
  if (file < 0)
    return bad_input(fmt::format("{} cannot be made: {}", in_quotes(path), std::strerror(errno)));
  ::close(file);
  TemporaryFile made(path);
  std::ofstream stream(path, std::ios::binary);
  stream << text;
  if (!stream.flush()) return bad_input(fmt::format("{} cannot be written", in_quotes(path)));
  return Expected<TemporaryFile>(std::move(made));
}

TemporaryFile::~TemporaryFile() {
  if (!path_.empty()) ::unlink(path_.c_str());
}

}  // namespace assay::tools
