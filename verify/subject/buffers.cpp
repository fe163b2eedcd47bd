// Carving buffers from chunks, or mapping large ones; digests and scans at memory speed.
#include "verify/subject/buffers.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "model/core/contract.hpp"
#include "model/core/prng.hpp"

namespace assay::verify {

namespace {

// From here on a buffer is mapped page by page as it is touched. Filling this much poison takes
// some 10 ms, which a suite can afford per buffer and a gigabyte not.
constexpr std::int64_t kSparseBytes = std::int64_t{128} << 20;
constexpr std::int64_t kAlignment = 64;
constexpr std::int64_t kChunkBytes = std::int64_t{8} << 20;

std::int64_t page_bytes() {
  static const std::int64_t bytes = ::sysconf(_SC_PAGESIZE);
  return bytes;
}

constexpr std::int64_t round_up(std::int64_t value, std::int64_t to) {
  return (value + to - 1) / to * to;
}

}  // namespace

void OutputBuffer::touched_parts(
    const std::function<void(std::int64_t, std::span<const std::byte>)>& use) const {
  if (!sparse) {
    use(0, bytes());
    return;
  }
  // Residency of an anonymous mapping is "somebody touched it". A page that was written and swapped
  // out since would be missed; machines that swap during a test are not worth more.
  const std::int64_t page = page_bytes();
  const auto begin = reinterpret_cast<std::uintptr_t>(data) / static_cast<std::uintptr_t>(page) *
                     static_cast<std::uintptr_t>(page);
  auto* first = reinterpret_cast<std::byte*>(begin);
  const std::int64_t length = round_up(data + size - first, page);
  std::vector<unsigned char> resident(static_cast<std::size_t>(length / page));
  CONTRACT(::mincore(first, static_cast<std::size_t>(length), resident.data()) == 0, length);
  for (std::size_t i = 0; i < resident.size();) {
    if ((resident[i] & 1) == 0) {
      ++i;
      continue;
    }
    std::size_t end = i;
    while (end < resident.size() && (resident[end] & 1) != 0) ++end;
    std::byte* from = std::max(first + static_cast<std::int64_t>(i) * page, data);
    std::byte* to = std::min(first + static_cast<std::int64_t>(end) * page, data + size);
    if (from < to) use(from - data, {from, to});
    i = end;
  }
}

BufferArena::~BufferArena() { reset(); }

void BufferArena::reset() {
  for (const Mapping& mapping : mappings_) ::munmap(mapping.address, mapping.length);
  mappings_.clear();
  chunk_ = 0;
  used_ = 0;
}

std::byte* BufferArena::carve(std::int64_t bytes) {
  const auto start_in = [](const Chunk& chunk, std::int64_t used) {
    const auto address =
        reinterpret_cast<std::uintptr_t>(chunk.memory.get()) + static_cast<std::uintptr_t>(used);
    return static_cast<std::int64_t>(used) +
           static_cast<std::int64_t>((kAlignment - address % kAlignment) % kAlignment);
  };
  for (; chunk_ < chunks_.size(); ++chunk_, used_ = 0) {
    Chunk& chunk = chunks_[chunk_];
    const std::int64_t start = start_in(chunk, used_);
    if (start + bytes <= chunk.size) {
      used_ = start + bytes;
      return chunk.memory.get() + start;
    }
  }
  Chunk chunk;
  chunk.size = std::max(kChunkBytes, bytes + kAlignment);
  chunk.memory.reset(new std::byte[static_cast<std::size_t>(chunk.size)]);
  chunks_.push_back(std::move(chunk));
  const std::int64_t start = start_in(chunks_.back(), 0);
  used_ = start + bytes;
  return chunks_.back().memory.get() + start;
}

OutputBuffer BufferArena::take(std::int64_t bytes, std::byte poison, bool fill) {
  CONTRACT(bytes >= 0, bytes);
  OutputBuffer buffer;
  buffer.size = bytes;
  const std::int64_t whole = bytes + 2 * kGuardBytes;
  if (bytes >= kSparseBytes) {
    const auto length = static_cast<std::size_t>(round_up(whole, page_bytes()));
    void* address = ::mmap(nullptr, length, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) throw std::bad_alloc();
    // Huge pages would make a touched byte cost 2 MiB.
    ::madvise(address, length, MADV_NOHUGEPAGE);
    mappings_.push_back({address, length});
    buffer.data = static_cast<std::byte*>(address) + kGuardBytes;
    buffer.sparse = true;
  } else {
    buffer.data = carve(whole) + kGuardBytes;
    buffer.poison = poison;
    if (fill && bytes > 0)
      std::memset(buffer.data, static_cast<int>(poison), static_cast<std::size_t>(bytes));
  }
  std::memset(buffer.data - kGuardBytes, static_cast<int>(kGuardByte),
              static_cast<std::size_t>(kGuardBytes));
  std::memset(buffer.data + bytes, static_cast<int>(kGuardByte),
              static_cast<std::size_t>(kGuardBytes));
  return buffer;
}

bool all_equal(std::span<const std::byte> bytes, std::byte value) {
  return bytes.empty() ||
         (bytes[0] == value && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

std::size_t first_other(std::span<const std::byte> bytes, std::byte value) {
  return static_cast<std::size_t>(
      std::find_if(bytes.begin(), bytes.end(), [&](std::byte b) { return b != value; }) -
      bytes.begin());
}

std::uint64_t digest(std::span<const std::byte> bytes, std::uint64_t key) {
  // Four independent lanes, because one multiplication waits for the one before it.
  std::uint64_t lane[4] = {key ^ 0x243F6A8885A308D3u, key ^ 0x13198A2E03707344u,
                           key ^ 0xA4093822299F31D0u, key ^ 0x082EFA98EC4E6C89u};
  std::size_t i = 0;
  for (; i + 32 <= bytes.size(); i += 32) {
    std::uint64_t word[4];
    std::memcpy(word, bytes.data() + i, 32);
    for (int l = 0; l < 4; ++l) {
      lane[l] = (lane[l] ^ word[l]) * 0x9E3779B97F4A7C15u;
      lane[l] ^= lane[l] >> 32;
    }
  }
  std::uint64_t tail[4] = {};
  std::memcpy(tail, bytes.data() + i, bytes.size() - i);
  std::uint64_t result = scrambled(bytes.size());
  for (int l = 0; l < 4; ++l) result = scrambled(result ^ scrambled(lane[l] ^ scrambled(tail[l])));
  return result;
}

std::uint64_t digest(const OutputBuffer& buffer) {
  if (!buffer.sparse) return digest(buffer.bytes());
  // Page by page, leaving out zeros: a page that was only read is resident as well, and must not
  // change the digest.
  std::uint64_t result = 0;
  buffer.touched_parts([&](std::int64_t offset, std::span<const std::byte> part) {
    while (!part.empty()) {
      const std::int64_t to_boundary = page_bytes() - (offset + kGuardBytes) % page_bytes();
      const auto piece = part.first(std::min(part.size(), static_cast<std::size_t>(to_boundary)));
      if (!all_equal(piece, std::byte{0}))
        result ^= digest(piece, static_cast<std::uint64_t>(offset) + 1);
      offset += static_cast<std::int64_t>(piece.size());
      part = part.subspan(piece.size());
    }
  });
  return result;
}

}  // namespace assay::verify
