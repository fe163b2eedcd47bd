// Files are replaced as a whole or not at all, and what cannot be a file is refused.
#include "model/core/mapped_file.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <vector>

#include "model/core/testing.hpp"
#include "model/core/testing_files.hpp"

using namespace assay;
using assay::testing::TempDir;

namespace {

Status write_text(const std::string& path, const std::string& text) {
  const std::span<const std::byte> part = std::as_bytes(std::span(text.data(), text.size()));
  return write_file(path, std::span(&part, 1));
}

std::size_t files_in(const TempDir& directory) {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator(directory.path()), {}));
}

}  // namespace

TEST_CASE("a file is written, replaced and mapped", "[COR-2.1]") {
  const TempDir directory;
  const std::string path = directory.file("f");
  REQUIRE(write_text(path, "old"));
  const MappedFile old = *MappedFile::open(path);
  REQUIRE(write_text(path, "newer"));
  REQUIRE(testing::read_bytes(path) == "newer");
  // What was mapped before the replacement stays what it was.
  REQUIRE(std::string(reinterpret_cast<const char*>(old.bytes().data()), old.bytes().size()) ==
          "old");
  REQUIRE(write_text(path, ""));
  REQUIRE(MappedFile::open(path)->bytes().empty());
  REQUIRE(files_in(directory) == 1);
}

TEST_CASE("a failed write leaves the old file and no other", "[COR-2.1]") {
  const TempDir directory;
  const std::string path = directory.file("f");
  REQUIRE(write_text(path, "old"));
  // A child with a file size limit fails in the middle of its write, as a full disk would.
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1000, 1000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    ::_exit(write_text(path, std::string(5000, 'x')) ? 1 : 0);
  }
  int state = 0;
  REQUIRE(::waitpid(child, &state, 0) == child);
  REQUIRE(WIFEXITED(state));
  REQUIRE(WEXITSTATUS(state) == 0);
  REQUIRE(testing::read_bytes(path) == "old");
  REQUIRE(files_in(directory) == 1);
}

TEST_CASE("a killed write leaves the old file", "[COR-2.1]") {
  const TempDir directory;
  const std::string path = directory.file("f");
  REQUIRE(write_text(path, "old"));
  const pid_t child = ::fork();
  if (child == 0) {  // without SIG_IGN the limit kills the process in the middle of its write
    std::signal(SIGXFSZ, SIG_DFL);
    const rlimit limit{1000, 1000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    const Status status = write_text(path, std::string(5000, 'x'));
    ::_exit(status ? 1 : 2);
  }
  int state = 0;
  REQUIRE(::waitpid(child, &state, 0) == child);
  REQUIRE(WIFSIGNALED(state));
  REQUIRE(testing::read_bytes(path) == "old");
}

TEST_CASE("what a killed process of the same number left behind is passed over", "[COR-2.1]") {
  const TempDir directory;
  const std::string path = directory.file("f");
  const pid_t child = ::fork();
  if (child == 0) {
    for (int n = 0; n < 200; ++n) {
      const std::string name =
          directory.file(".assay-tmp-" + std::to_string(::getpid()) + "-" + std::to_string(n));
      const int fd = ::open(name.c_str(), O_WRONLY | O_CREAT, 0600);
      if (fd < 0) ::_exit(3);
      ::close(fd);
    }
    ::_exit(write_text(path, "new") && write_file_beside(path) ? 0 : 1);
  }
  int state = 0;
  REQUIRE(::waitpid(child, &state, 0) == child);
  REQUIRE(WIFEXITED(state));
  REQUIRE(WEXITSTATUS(state) == 0);
  REQUIRE(testing::read_bytes(path) == "new");
  REQUIRE(files_in(directory) == 201);
}

TEST_CASE("links are followed, permissions kept, devices and directories refused", "[COR-2.1]") {
  const TempDir directory;
  const std::string path = directory.file("f"), link = directory.file("l");
  REQUIRE(write_text(path, "old"));
  REQUIRE(::chmod(path.c_str(), 0640) == 0);
  REQUIRE(::symlink("f", link.c_str()) == 0);
  REQUIRE(write_text(link, "new"));
  REQUIRE(testing::read_bytes(path) == "new");
  REQUIRE(std::filesystem::is_symlink(link));
  struct stat info {};
  REQUIRE(::stat(path.c_str(), &info) == 0);
  REQUIRE((info.st_mode & 07777) == 0640);

  CHECK(write_text("/dev/null", "x").error().sentence ==
        "/dev/null: cannot be written: it exists and is not a regular file");
  CHECK(write_text(directory.path().string(), "x").error().sentence ==
        directory.path().string() + ": cannot be written: it exists and is not a regular file");
  CHECK(write_text(directory.file("no/f"), "x").error().sentence ==
        directory.file("no/f") + ": cannot be written: No such file or directory");
  CHECK(MappedFile::open(directory.file("no")).error().sentence ==
        directory.file("no") + ": cannot be opened: No such file or directory");
  CHECK(MappedFile::open("/dev/zero").error().sentence == "/dev/zero: is not a regular file");
  const std::string pipe = directory.file("p");
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(MappedFile::open(pipe).error().sentence == pipe + ": is not a regular file");
}
