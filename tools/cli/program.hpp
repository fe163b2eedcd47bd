// Another program, run to its end or to the end of its time. Decides that it is ended then, and
// that what it printed is what counts.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "model/core/expected.hpp"

namespace assay::tools {

// What `words` (a path and arguments) prints on standard output; standard error goes where ours
// goes. Errors: a program that cannot be started, that ends with another code than 0, or that has
// not ended in time and was killed.
Expected<std::string> run_program(const std::vector<std::string>& words, std::chrono::seconds time);

// A file that holds `text` as long as this object lives.
class TemporaryFile {
 public:
  static Expected<TemporaryFile> make(const std::string& text);
  TemporaryFile(TemporaryFile&& other) noexcept : path_(std::move(other.path_)) {
    other.path_.clear();
  }
  TemporaryFile& operator=(TemporaryFile&&) = delete;
  ~TemporaryFile();
  const std::string& path() const { return path_; }

 private:
  explicit TemporaryFile(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace assay::tools
