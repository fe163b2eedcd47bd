// For tests only: a directory that disappears, and whole files in and out of it.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "model/core/contract.hpp"

namespace assay::testing {

class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "assay-test-XXXXXX").string();
    CONTRACT(::mkdtemp(name.data()) != nullptr, name);
    path_ = name;
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string file(const std::string& name) const { return (path_ / name).string(); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary);
  out << bytes;
  CONTRACT(static_cast<bool>(out.flush()), path);
}

inline std::string read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  CONTRACT(static_cast<bool>(in), path);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

}  // namespace assay::testing
