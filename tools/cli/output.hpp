// Where a verb's document goes. Decides that an output which cannot be written is refused before
// the work starts, and that a file is either the old one or the whole new one (SPEC COR-2.1).
#pragma once

#include <initializer_list>
#include <optional>
#include <string>

#include "model/core/expected.hpp"
#include "tools/cli/document.hpp"

namespace assay::tools {

// Error if write_file(path) would fail now: no such directory, not allowed, not a regular file.
// Leaves nothing behind.
Status check_writable(const std::string& path);

// Error if `output` is the same file as one of `inputs`: writing it would destroy what was read.
// Absent names and files that do not exist are no file.
Status check_not_input(const std::string& output,
                       std::initializer_list<std::optional<std::string>> inputs);

// The library that --subject names, which is an input too; nothing for other subjects.
std::optional<std::string> plugin_file(const std::optional<std::string>& subject);

// One document, to where `json` says: nothing means text on standard output, "-" means JSON there,
// a name means text there and JSON in that file.
class Output {
 public:
  // To be called before the work, with every file that the verb reads or writes.
  static Expected<Output> open(const std::optional<std::string>& json,
                               std::initializer_list<std::optional<std::string>> other_files = {});
  Status write(const Document& document) const;

 private:
  explicit Output(std::optional<std::string> json) : json_(std::move(json)) {}
  std::optional<std::string> json_;
};

}  // namespace assay::tools
