// Programs that are run: what they print, how they end, and that they end.
#include "tools/cli/program.hpp"

#include <fstream>

#include "model/core/testing.hpp"

namespace assay::tools {
namespace {

std::string said(const Expected<std::string>& result) {
  return result ? "printed " + *result : result.error().sentence;
}

TEST_CASE("a program's standard output comes back, its code decides", "[VER-25.12]") {
  using std::chrono::seconds;
  CHECK(said(run_program({"/bin/sh", "-c", "echo one; echo two"}, seconds(10))) ==
        "printed one\ntwo\n");
  CHECK(said(run_program({"/bin/sh", "-c", "echo one; exit 3"}, seconds(10))) ==
        "\"/bin/sh\" ended with code 3");
  CHECK(said(run_program({"/bin/sh", "-c", "kill -9 $$"}, seconds(10))) ==
        "\"/bin/sh\" ended by signal 9");
  CHECK(said(run_program({"/no/such/program"}, seconds(10))).find("cannot be started") !=
        std::string::npos);
}

TEST_CASE("a program that does not end in time is ended", "[VER-25.12]") {
  const auto begin = std::chrono::steady_clock::now();
  CHECK(said(run_program({"/bin/sh", "-c", "sleep 30"}, std::chrono::seconds(1))) ==
        "\"/bin/sh\" had not ended within 1 s and was killed");
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
}

TEST_CASE("a temporary file holds its text, and goes", "[VER-25.12]") {
  std::string path;
  {
    const auto file = TemporaryFile::make("text");
    REQUIRE(file.has_value());
    path = file->path();
    std::string text;
    std::ifstream(path) >> text;
    CHECK(text == "text");
  }
  CHECK_FALSE(std::ifstream(path).good());
}

}  // namespace
}  // namespace assay::tools
