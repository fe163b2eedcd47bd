// Output buffers whose misuse can be seen: filled with poison, between two guards. Decides SPEC
// VER-1.3 (poison, guards) and VER-1.4 (buffers of gigabytes of which few pages are touched).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace assay::verify {

inline constexpr std::byte kGuardByte{0xD7};
inline constexpr std::int64_t kGuardBytes = 256;

// [guard][bytes][guard]. Guards arrive as kGuardByte, bytes as `poison`.
struct OutputBuffer {
  std::byte* data = nullptr;
  std::int64_t size = 0;
  std::byte poison{};
  // A buffer of gigabytes: poison is 0, and a page that nobody wrote costs nothing. Readers go
  // through touched_parts.
  bool sparse = false;

  std::span<std::byte> bytes() const { return {data, static_cast<std::size_t>(size)}; }
  std::span<const std::byte> guard_before() const {
    return {data - kGuardBytes, static_cast<std::size_t>(kGuardBytes)};
  }
  std::span<const std::byte> guard_after() const {
    return {data + size, static_cast<std::size_t>(kGuardBytes)};
  }
  // Calls `use` with (offset, part) for all bytes that may differ from poison, ascending.
  void touched_parts(
      const std::function<void(std::int64_t, std::span<const std::byte>)>& use) const;
};

// Hands out buffers and takes them all back at once; memory is reused between the two.
class BufferArena {
 public:
  BufferArena() = default;
  BufferArena(const BufferArena&) = delete;
  BufferArena& operator=(const BufferArena&) = delete;
  ~BufferArena();

  // Buffers start at a multiple of 64 bytes. `fill` false leaves the bytes as they are: for buffers
  // that the caller fills as a whole.
  OutputBuffer take(std::int64_t bytes, std::byte poison, bool fill = true);
  void reset();

 private:
  struct Chunk {
    std::unique_ptr<std::byte[]> memory;
    std::int64_t size = 0;
  };
  struct Mapping {
    void* address;
    std::size_t length;
  };
  std::byte* carve(std::int64_t bytes);

  std::vector<Chunk> chunks_;
  std::size_t chunk_ = 0;  // the one that is carved from
  std::int64_t used_ = 0;  // of it
  std::vector<Mapping> mappings_;
};

// Whether all bytes are equal to `value`. Memory speed.
bool all_equal(std::span<const std::byte> bytes, std::byte value);
// The index of the first byte that is not; bytes.size() if none.
std::size_t first_other(std::span<const std::byte> bytes, std::byte value);
// A digest of bytes: equal bytes, equal digests; other bytes, other digests but for about 2^-64.
std::uint64_t digest(std::span<const std::byte> bytes, std::uint64_t key = 0);
std::uint64_t digest(const OutputBuffer& buffer);

}  // namespace assay::verify
