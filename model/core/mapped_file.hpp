// Files as bytes: mapped for reading, replaced as a whole for writing. Decides that no reader ever
// sees half a file of ours (SPEC COR-2.1); knows nothing of what the bytes mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "model/core/expected.hpp"

namespace assay {

// A regular file mapped read-only. Pages are read when they are touched, so a large trace costs
// what is looked at. A file that another program shortens while it is mapped raises SIGBUS on
// access; files written by write_file() are replaced, never shortened, and keep what is mapped
// alive.
class MappedFile {
 public:
  // Errors: cannot be opened, is not a regular file (a pipe cannot be mapped), cannot be mapped.
  static Expected<MappedFile> open(const std::string& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  // Page-aligned; empty for an empty file. Valid while this object or one it was moved to lives.
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Whether write_file could put a file beside `path` now. Leaves nothing behind.
Status write_file_beside(const std::string& path);

// Replaces the file at `path` by the concatenation of `parts`, or leaves it as it was. The bytes go
// to a file ".assay-tmp-<pid>-<n>" in the same directory, which is renamed over `path` at the end
// and removed on failure; a killed process leaves that temporary file behind and `path` untouched.
// Symbolic links are followed; permissions of an existing file are kept. Nothing is synced to disk:
// after a power loss the file may be old, new or empty. Errors: `path` exists and is not a regular
// file (so /dev/null is never replaced), is not writable, or any system call fails.
Status write_file(const std::string& path, std::span<const std::span<const std::byte>> parts);

}  // namespace assay
