// POSIX behind mapped_file.hpp.
#include "model/core/mapped_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace assay {
namespace {

Error failed(const std::string& path, std::string_view action, int error) {
  return bad_input(fmt::format("{}: cannot be {}: {}", path, action, std::strerror(error)));
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  int close() { return ::close(std::exchange(fd_, -1)); }

 private:
  int fd_;
};

// Linux writes at most 0x7ffff000 bytes a call; 1 GiB a call is below that and page-aligned.
constexpr std::size_t kWriteBytesMax = std::size_t{1} << 30;

int write_all(int fd, std::span<const std::byte> bytes) {  // 0 or errno
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), std::min(bytes.size(), kWriteBytesMax));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return 0;
}

// What the rename will replace: the file a link leads to, and the permissions to keep.
struct Target {
  std::string path;
  mode_t mode = 0;  // 0: new file, the umask decides
};

Expected<Target> writable_target(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return Target{path, 0};
    return failed(path, "written", errno);
  }
  Target target{path, 0};
  if (S_ISLNK(info.st_mode)) {
    char* real = ::realpath(path.c_str(), nullptr);
    if (real == nullptr) return failed(path, "written", errno);
    target.path = real;
    std::free(real);
    if (::stat(target.path.c_str(), &info) != 0) return failed(path, "written", errno);
  }
  if (!S_ISREG(info.st_mode)) {
    return bad_input(path + ": cannot be written: it exists and is not a regular file");
  }
  if (::access(target.path.c_str(), W_OK) != 0) return failed(path, "written", errno);
  target.mode = info.st_mode & 07777;
  return target;
}

// A new file in the directory of `path`. A process that was killed leaves its temporary behind, and
// the next one may have its number: names that exist are passed over, up to a bound.
struct Temporary {
  std::string path;
  Descriptor file{-1};
};
constexpr int kNamesMax = 1000;

Temporary open_beside(const std::string& path) {
  static std::atomic<unsigned> next{0};
  const std::size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "" : path.substr(0, slash + 1);
  for (int i = 0; i < kNamesMax; ++i) {
    std::string name = fmt::format("{}.assay-tmp-{}-{}", directory, ::getpid(), next++);
    const int fd = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0) return {std::move(name), Descriptor(fd)};
    if (errno != EEXIST) break;
  }
  return {};
}

}  // namespace

Expected<MappedFile> MappedFile::open(const std::string& path) {
  // Without O_NONBLOCK, opening a pipe would wait for its writer.
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) return failed(path, "opened", errno);
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return failed(path, "opened", errno);
  if (!S_ISREG(info.st_mode)) return bad_input(path + ": is not a regular file");
  MappedFile mapped;
  if (info.st_size == 0) return mapped;
  mapped.size_ = static_cast<std::size_t>(info.st_size);
  void* data = ::mmap(nullptr, mapped.size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data == MAP_FAILED) return failed(path, "mapped", errno);
  mapped.data_ = static_cast<const std::byte*>(data);
  return mapped;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

Status write_file_beside(const std::string& path) {
  const auto [temporary, file] = open_beside(path);
  if (file.get() < 0) return bad_input(std::strerror(errno));
  ::unlink(temporary.c_str());
  return Done{};
}

Status write_file(const std::string& path, std::span<const std::span<const std::byte>> parts) {
  ASSAY_TRY(const Target target, writable_target(path));
  auto [temporary, file] = open_beside(target.path);
  if (file.get() < 0) return failed(path, "written", errno);
  int error = 0;
  if (target.mode != 0 && ::fchmod(file.get(), target.mode) != 0) error = errno;
  for (const std::span<const std::byte> part : parts) {
    if (error == 0) error = write_all(file.get(), part);
  }
  if (file.close() != 0 && error == 0) error = errno;  // a full quota may show only here
  if (error == 0 && std::rename(temporary.c_str(), target.path.c_str()) != 0) error = errno;
  if (error != 0) {
    ::unlink(temporary.c_str());
    return failed(path, "written", error);
  }
  return Done{};
}

}  // namespace assay
