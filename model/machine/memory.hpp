// Simulated global memory: sparse 64-bit addresses, bytes that know whether they were ever written,
// and the name of the allocation each address belongs to. Decides which accesses are legal (bounds,
// alignment, poison, who may reach what); the order in which writes become visible is
// memory_model.hpp.
//
// An allocation starts at a multiple of 4 GiB plus its alignment and is followed by a gap of more
// than 4 GiB: it is aligned exactly as declared and not better, a truncated address or offset meets
// nothing, and addresses are never reused, so that a dangling access names what it once was
// (SPEC MAC-1.1, MAC-1.3).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/core/core.hpp"
#include "model/core/ops.hpp"

namespace assay::machine {

enum class Fill : std::uint8_t {
  kPoison,  // reading a byte before anybody wrote it is a fault
  kZero,    // as after cudaMemset(0)
};

// What memory that nobody wrote holds for peek(); no format reads it as a common value.
inline constexpr std::byte kPoisonByte{0xDB};
inline constexpr std::uint64_t kPageBytes = 4096;

struct Page {
  alignas(64) std::array<std::byte, kPageBytes> data;
  std::array<std::uint8_t, kPageBytes / 8> written;  // one bit per byte of data
  std::uint32_t watchers = 0;  // threads that wait for a word here: a store must wake them
  std::uint32_t history = 0;   // a weak memory model's; 0 when the page is new
};

// Why an access is illegal (SPEC MAC-1.2).
enum class Trouble : std::uint8_t {
  kNone,
  kOutOfBounds,
  kMisaligned,
  kNeverWritten,
  kForeign,  // local memory of another rank
};

// The pages of one allocation that exist, two levels deep.
class PageTable {
 public:
  static constexpr std::uint64_t kPagesPerLeaf = 512;  // 2 MiB of address space
  Page* find(std::uint64_t index) const {
    const std::uint64_t leaf = index / kPagesPerLeaf;
    if (leaf >= leaves_.size() || leaves_[leaf] == nullptr) return nullptr;
    return (*leaves_[leaf])[index % kPagesPerLeaf].get();
  }
  std::unique_ptr<Page>& at(std::uint64_t index) {
    const std::uint64_t leaf = index / kPagesPerLeaf;
    if (leaf >= leaves_.size()) leaves_.resize(leaf + 1);
    if (leaves_[leaf] == nullptr) leaves_[leaf] = std::make_unique<Leaf>();
    return (*leaves_[leaf])[index % kPagesPerLeaf];
  }
  // Hands every page that exists to `take` with its index, and forgets it.
  template <class F>
  void drain(F&& take) {
    for (std::uint64_t leaf = 0; leaf < leaves_.size(); ++leaf)
      for (std::uint64_t i = 0; leaves_[leaf] != nullptr && i < kPagesPerLeaf; ++i)
        if (auto& page = (*leaves_[leaf])[i]; page != nullptr)
          take(leaf * kPagesPerLeaf + i, std::move(page));
    leaves_.clear();
  }

 private:
  using Leaf = std::array<std::unique_ptr<Page>, kPagesPerLeaf>;
  std::vector<std::unique_ptr<Leaf>> leaves_;
};

struct Allocation {
  std::string name;
  Address first;
  std::uint64_t bytes = 0;
  std::uint64_t alignment = 1;
  RankId rank{0};
  bool is_window = false;          // reachable from every rank
  std::uint32_t alias = 0;         // 0: the bytes' own address; else a second one of them
  std::uint64_t alias_offset = 0;  // from a second address to the bytes' own
  bool has_alias = false;
  bool released = false;
  Fill fill = Fill::kPoison;
  PageTable pages{};
  bool contains(std::uint64_t raw) const { return raw - first.raw < bytes; }
  std::uint64_t page_index(std::uint64_t raw) const {
    return raw / kPageBytes - first.raw / kPageBytes;
  }
};

// One rank's recently used pages. A hit proves that the page exists, that the rank may reach it and
// where the allocation ends in it; so the common access costs one probe. A page with watchers has
// storable == 0, which sends its stores to the slow path.
class PageCache {
 public:
  struct Entry {
    std::uint64_t begin = 0;     // first address of the allocation within the page
    std::uint32_t loadable = 0;  // bytes from begin on that a hit may load
    std::uint32_t storable = 0;  // bytes from begin on that a hit may store
    Page* page = nullptr;
  };
  Entry& entry_of(std::uint64_t raw) {
    return entries_[((raw / kPageBytes) * 0x9E3779B97F4A7C15u) >> (64 - kLog2Entries)];
  }
  void forget(std::uint64_t raw) { entry_of(raw) = Entry{}; }

 private:
  // 256 pages are 1 MiB of reach in 6 KiB: the rows that 64 CTAs are copying fit without a miss,
  // and eight ranks' caches fit the second-level cache of any host many times.
  static constexpr int kLog2Entries = 8;
  std::array<Entry, std::size_t{1} << kLog2Entries> entries_{};
};

// A part of an allocation that has a name of its own: "recv_counters" of a workspace.
struct NamedPart {
  std::string name;
  Address first;
  std::uint64_t bytes = 0;
};

class Memory {
 public:
  explicit Memory(std::int32_t num_ranks);

  // `alignment` is a power of two; `bytes` may be many GiB, only touched pages exist.
  Address allocate(RankId rank, const std::string& name, std::uint64_t bytes,
                   std::uint64_t alignment, Fill fill);
  Window allocate_window(const std::string& name, std::uint64_t bytes_per_rank,
                         std::uint64_t alignment, Fill fill);
  void release(Address first);
  void release(Window window);
  // A second address (aligned alike) for the bytes of an allocation (SPEC MAC-6.15). The alias must
  // not be used after its original is released. `first` is the allocation's first address.
  Address alias(Address first);
  Window alias(Window window);
  // The bytes' own address.
  Address canonical(Address address) const;

  // Host access. write and fill go anywhere inside one allocation. read says which byte was never
  // written; peek does not mind, and returns whether every byte was written.
  void write(Address to, std::span<const std::byte> bytes);
  void fill(Address to, std::uint64_t bytes, std::byte value);
  [[nodiscard]] Status read(Address from, std::span<std::byte> bytes);
  bool peek(Address from, std::span<std::byte> bytes);
  std::uint64_t count_written(Address from, std::uint64_t bytes);
  // Nobody has written these bytes any more: reading them before the next write is a fault.
  void forget(Address from, std::uint64_t bytes);

  // For memory models. locate checks bounds, alignment and reach; on kNone `page` holds the
  // address.
  struct Located {
    Trouble trouble = Trouble::kNone;
    Page* page = nullptr;  // of the bytes, whatever their address
    Allocation* allocation = nullptr;
  };
  Located locate(RankId rank, Address address, std::uint32_t bytes);
  // Lets the next accesses of `rank` to this page take the short way. Only a model in which every
  // load returns the newest write may call it.
  void cache(RankId rank, Address address, const Located& located);
  // From now on every access takes the long way, so that an observer is told of it.
  void close_caches() { caches_closed_ = true; }
  PageCache& cache_of(RankId rank) { return caches_[static_cast<std::size_t>(rank.value())]; }

  // The page of a legal address, whoever asks.
  Page& page_at(Address address);
  void add_watcher(Address address);
  void remove_watcher(Address address);

  // For messages. Within a named part: "'workspace' of rank 2 + 900 (of 2176 bytes; recv_counters +
  // 4)". The parts must outlive the memory and lie within allocations.
  std::string describe(Address address) const;
  void name_parts(const std::vector<NamedPart>* parts) { parts_ = parts; }
  // The shortest name: "recv_counters of rank 2 + 4", or "'workspace' of rank 2 + 900".
  std::string place_name(Address address) const;
  // For an access that no allocation contains: the nearest allocation, and by how much it misses.
  std::string describe_miss(Address address, std::uint64_t bytes) const;
  std::int32_t num_ranks() const { return static_cast<std::int32_t>(caches_.size()); }
  std::uint64_t touched_bytes() const { return num_pages_ * kPageBytes; }

 private:
  const NamedPart* part_at(Address address) const;
  Allocation* allocation_before(std::uint64_t raw);
  const Allocation* allocation_before(std::uint64_t raw) const;  // the last that starts at or below
  std::size_t index_before(std::uint64_t raw) const;
  Page* page_of(Allocation& allocation, std::uint64_t raw);
  void forget_in_all_caches(std::uint64_t raw);
  void release_one(Allocation& allocation);
  Address add(Allocation allocation, std::uint64_t base);
  Allocation& owner(Allocation& allocation);
  Allocation& checked_range(const char* what, Address first, std::uint64_t bytes);

  std::vector<Allocation> allocations_;  // ascending addresses: they are never reused
  std::uint64_t next_base_;
  std::uint64_t num_pages_ = 0;
  std::uint32_t num_aliases_ = 0;
  std::vector<std::unique_ptr<Page>> free_pages_;
  std::vector<PageCache> caches_;  // by rank
  bool caches_closed_ = false;
  const std::vector<NamedPart>* parts_ = nullptr;
};

// Bits of Page::written, for an aligned access that lies in one page.
template <Word T>
inline bool is_written(const Page& page, std::uint64_t in_page) {
  if constexpr (sizeof(T) == 16) {
    return page.written[in_page / 8] == 0xFF && page.written[in_page / 8 + 1] == 0xFF;
  } else {
    constexpr unsigned kMask = (1u << sizeof(T)) - 1;
    return ((page.written[in_page / 8] >> (in_page % 8)) & kMask) == kMask;
  }
}
template <Word T>
inline void set_written(Page& page, std::uint64_t in_page) {
  if constexpr (sizeof(T) == 16) {
    page.written[in_page / 8] = page.written[in_page / 8 + 1] = 0xFF;
  } else {
    constexpr unsigned kMask = (1u << sizeof(T)) - 1;
    page.written[in_page / 8] |= static_cast<std::uint8_t>(kMask << (in_page % 8));
  }
}

// The short way. False means: take the long way, which also finds out whether it is a fault.
template <Word T>
inline bool load_cached(PageCache& cache, Address address, T& value) {
  const PageCache::Entry& entry = cache.entry_of(address.raw);
  const std::uint64_t offset = address.raw - entry.begin;
  const std::uint64_t in_page = address.raw % kPageBytes;
  if (offset >= entry.loadable || offset + sizeof(T) > entry.loadable) return false;
  if (address.raw % sizeof(T) != 0 || !is_written<T>(*entry.page, in_page)) return false;
  std::memcpy(&value, entry.page->data.data() + in_page, sizeof(T));
  return true;
}
template <Word T>
inline bool store_cached(PageCache& cache, Address address, const T& value) {
  const PageCache::Entry& entry = cache.entry_of(address.raw);
  const std::uint64_t offset = address.raw - entry.begin;
  const std::uint64_t in_page = address.raw % kPageBytes;
  if (offset >= entry.storable || offset + sizeof(T) > entry.storable) return false;
  if (address.raw % sizeof(T) != 0) return false;
  std::memcpy(entry.page->data.data() + in_page, &value, sizeof(T));
  set_written<T>(*entry.page, in_page);
  return true;
}

}  // namespace assay::machine
