// Allocations, pages and what was written. Decides which accesses are legal, not their order.
#include "model/machine/memory.hpp"

#include <algorithm>
#include <bit>

namespace assay::machine {

namespace {

constexpr std::uint64_t kFourGiB = std::uint64_t{1} << 32;

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// The slice of [first, first + bytes) within one page, page by page.
template <class F>
void for_each_page(std::uint64_t first, std::uint64_t bytes, F&& each) {
  for (std::uint64_t done = 0; done < bytes;) {
    const std::uint64_t raw = first + done;
    const std::uint64_t here = std::min(bytes - done, kPageBytes - raw % kPageBytes);
    each(raw, done, here);
    done += here;
  }
}

void set_written_range(Page& page, std::uint64_t begin, std::uint64_t count) {
  for (std::uint64_t i = begin; i < begin + count;) {
    if (i % 8 == 0 && begin + count - i >= 8) {
      page.written[i / 8] = 0xFF;
      i += 8;
    } else {
      page.written[i / 8] |= static_cast<std::uint8_t>(1u << (i % 8));
      ++i;
    }
  }
}

// The first byte of the range that was never written, or `count` when there is none.
std::uint64_t first_unwritten(const Page& page, std::uint64_t begin, std::uint64_t count) {
  for (std::uint64_t i = begin; i < begin + count;) {
    if (i % 8 == 0 && begin + count - i >= 8 && page.written[i / 8] == 0xFF) {
      i += 8;
    } else {
      if ((page.written[i / 8] >> (i % 8) & 1) == 0) return i - begin;
      ++i;
    }
  }
  return count;
}

}  // namespace

Memory::Memory(std::int32_t num_ranks)
    : next_base_(kFourGiB), caches_(static_cast<std::size_t>(num_ranks)) {}

Address Memory::add(Allocation allocation, std::uint64_t base) {
  allocation.first = Address{base + allocation.alignment % kFourGiB};
  allocations_.push_back(std::move(allocation));
  const Allocation& added = allocations_.back();
  next_base_ = round_up(added.first.raw + added.bytes, kFourGiB) + kFourGiB;
  return added.first;
}

Address Memory::allocate(RankId rank, const std::string& name, std::uint64_t bytes,
                         std::uint64_t alignment, Fill fill) {
  CONTRACT(rank.value() >= 0 && rank.value() < num_ranks(), name, rank, num_ranks());
  CONTRACT(alignment != 0 && (alignment & (alignment - 1)) == 0, name, alignment);
  Allocation added;
  added.name = name;
  added.bytes = bytes;
  added.alignment = alignment;
  added.rank = rank;
  added.fill = fill;
  return add(std::move(added), next_base_);
}

Window Memory::allocate_window(const std::string& name, std::uint64_t bytes_per_rank,
                               std::uint64_t alignment, Fill fill) {
  CONTRACT(alignment != 0 && (alignment & (alignment - 1)) == 0, name, alignment);
  // A multiple of 4 GiB, as NCCL lays windows out; rank distances then do not survive 32 bits.
  const std::uint64_t stride = round_up(alignment % kFourGiB + bytes_per_rank, kFourGiB) + kFourGiB;
  const std::uint64_t base = next_base_;
  Window window{{}, stride};
  for (std::int32_t r = 0; r < num_ranks(); ++r) {
    Allocation added;
    added.name = name;
    added.bytes = bytes_per_rank;
    added.alignment = alignment;
    added.rank = RankId(r);
    added.is_window = true;
    added.fill = fill;
    const Address first = add(std::move(added), base + static_cast<std::uint64_t>(r) * stride);
    if (r == 0) window.first = first;
  }
  return window;
}

// The alias's first address differs from the original's by a multiple of 4 GiB, so both lie alike
// in their pages.
Address Memory::alias(Address first) {
  const std::size_t index = index_before(first.raw);
  CONTRACT(allocations_[index].first == first && !allocations_[index].released &&
               allocations_[index].alias == 0,
           "not the first address of an allocation", allocations_[index].name);
  allocations_[index].has_alias = true;
  Allocation added;
  added.name = allocations_[index].name + " (alias)";
  added.bytes = allocations_[index].bytes;
  added.alignment = allocations_[index].alignment;
  added.rank = allocations_[index].rank;
  added.is_window = allocations_[index].is_window;
  added.fill = allocations_[index].fill;
  added.alias = ++num_aliases_;
  for (std::uint64_t raw = first.raw; raw < first.raw + added.bytes; raw += kPageBytes)
    forget_in_all_caches(raw);
  const Address second = add(std::move(added), next_base_);
  allocations_.back().alias_offset = first.raw - second.raw;
  return second;
}

Window Memory::alias(Window window) {
  Window second{{}, window.stride_bytes};
  for (std::int32_t r = 0; r < num_ranks(); ++r) {
    // The ranks' aliases must lie at the window's stride, which the next free base need not give.
    const Address first = window.of(RankId(r));
    if (r > 0)
      next_base_ = second.first.raw - first.raw % kFourGiB +
                   static_cast<std::uint64_t>(r) * window.stride_bytes;
    const Address at = alias(first);
    if (r == 0) second.first = at;
    CONTRACT(at == second.of(RankId(r)));
  }
  return second;
}

Address Memory::canonical(Address address) const {
  if (num_aliases_ == 0) return address;
  const Allocation* allocation = allocation_before(address.raw);
  return allocation == nullptr ? address : address.at(allocation->alias_offset);
}

Allocation& Memory::owner(Allocation& allocation) {
  if (allocation.alias == 0) return allocation;
  return allocations_[index_before(allocation.first.raw + allocation.alias_offset)];
}

void Memory::release(Address first) {
  Allocation& allocation = allocations_[index_before(first.raw)];
  CONTRACT(allocation.first == first && !allocation.is_window, "not an allocation's first address",
           allocation.name);
  release_one(allocation);
}

void Memory::release(Window window) {
  for (std::int32_t r = 0; r < num_ranks(); ++r) {
    Allocation& allocation = allocations_[index_before(window.of(RankId(r)).raw)];
    CONTRACT(allocation.first == window.of(RankId(r)) && allocation.is_window,
             "not a window of this machine", allocation.name);
    release_one(allocation);
  }
}

void Memory::release_one(Allocation& allocation) {
  CONTRACT(!allocation.released, "released twice", allocation.name);
  allocation.released = true;
  const std::uint64_t first_page = allocation.first.raw / kPageBytes;
  allocation.pages.drain([&](std::uint64_t index, std::unique_ptr<Page> page) {
    CONTRACT(page->watchers == 0, "released while a thread waits in it", allocation.name);
    forget_in_all_caches((first_page + index) * kPageBytes);
    free_pages_.push_back(std::move(page));
    --num_pages_;
  });
}

Page* Memory::page_of(Allocation& addressed, std::uint64_t raw) {
  Allocation& allocation = owner(addressed);
  const std::uint64_t index = allocation.page_index(raw + addressed.alias_offset);
  if (Page* page = allocation.pages.find(index); page != nullptr) return page;
  std::unique_ptr<Page>& page = allocation.pages.at(index);
  if (free_pages_.empty()) {
    page = std::make_unique<Page>();
  } else {
    page = std::move(free_pages_.back());
    free_pages_.pop_back();
  }
  ++num_pages_;
  const bool zero = allocation.fill == Fill::kZero;
  page->data.fill(zero ? std::byte{0} : kPoisonByte);
  page->written.fill(zero ? 0xFF : 0x00);
  page->watchers = 0;
  page->history = 0;
  return page.get();
}

std::size_t Memory::index_before(std::uint64_t raw) const {
  const auto after = std::upper_bound(
      allocations_.begin(), allocations_.end(), raw,
      [](std::uint64_t value, const Allocation& a) { return value < a.first.raw; });
  CONTRACT(after != allocations_.begin(), "no allocation at or below this address", raw);
  return static_cast<std::size_t>(after - allocations_.begin()) - 1;
}

Allocation* Memory::allocation_before(std::uint64_t raw) {
  if (allocations_.empty() || raw < allocations_.front().first.raw) return nullptr;
  return &allocations_[index_before(raw)];
}
const Allocation* Memory::allocation_before(std::uint64_t raw) const {
  return const_cast<Memory*>(this)->allocation_before(raw);
}

Memory::Located Memory::locate(RankId rank, Address address, std::uint32_t bytes) {
  Allocation* allocation = allocation_before(address.raw);
  Located located{Trouble::kNone, nullptr, allocation};
  if (allocation == nullptr || allocation->released || !allocation->contains(address.raw) ||
      address.raw - allocation->first.raw + bytes > allocation->bytes) {
    located.trouble = Trouble::kOutOfBounds;
  } else if (!allocation->is_window && allocation->rank != rank) {
    located.trouble = Trouble::kForeign;
  } else if (address.raw % bytes != 0) {
    located.trouble = Trouble::kMisaligned;
  } else {
    located.page = page_of(*allocation, address.raw);
  }
  return located;
}

void Memory::cache(RankId rank, Address address, const Located& located) {
  if (caches_closed_) return;
  const std::uint64_t page_begin = address.raw / kPageBytes * kPageBytes;
  const Allocation& allocation = *located.allocation;
  // A page with two addresses has two entries, of which a watcher would clear only one.
  if (allocation.alias != 0 || allocation.has_alias) return;
  PageCache::Entry& entry = cache_of(rank).entry_of(address.raw);
  entry.begin = std::max(page_begin, allocation.first.raw);
  entry.loadable = static_cast<std::uint32_t>(
      std::min(page_begin + kPageBytes, allocation.first.raw + allocation.bytes) - entry.begin);
  entry.storable = located.page->watchers == 0 ? entry.loadable : 0;
  entry.page = located.page;
}

void Memory::forget_in_all_caches(std::uint64_t raw) {
  for (PageCache& cache : caches_) cache.forget(raw);
}

void Memory::add_watcher(Address address) {
  ++page_at(address).watchers;
  forget_in_all_caches(address.raw);
}

void Memory::remove_watcher(Address address) {
  Page& page = page_at(address);
  CONTRACT(page.watchers > 0, address.raw);
  if (--page.watchers == 0) forget_in_all_caches(address.raw);
}

Page& Memory::page_at(Address address) {
  Allocation* allocation = allocation_before(address.raw);
  CONTRACT(allocation != nullptr && allocation->contains(address.raw), address.raw);
  return *page_of(*allocation, address.raw);
}

Allocation& Memory::checked_range(const char* what, Address first, std::uint64_t bytes) {
  Allocation* allocation = allocation_before(first.raw);
  CONTRACT(allocation != nullptr && !allocation->released &&
               first.raw - allocation->first.raw <= allocation->bytes &&
               bytes <= allocation->bytes - (first.raw - allocation->first.raw),
           what, describe(first), bytes);
  return *allocation;
}

void Memory::write(Address to, std::span<const std::byte> bytes) {
  Allocation& allocation = checked_range("host write", to, bytes.size());
  for_each_page(to.raw, bytes.size(), [&](std::uint64_t raw, std::uint64_t done, std::uint64_t n) {
    Page& page = *page_of(allocation, raw);
    std::memcpy(page.data.data() + raw % kPageBytes, bytes.data() + done, n);
    set_written_range(page, raw % kPageBytes, n);
  });
}

void Memory::fill(Address to, std::uint64_t bytes, std::byte value) {
  Allocation& allocation = checked_range("host fill", to, bytes);
  for_each_page(to.raw, bytes, [&](std::uint64_t raw, std::uint64_t, std::uint64_t n) {
    Page& page = *page_of(allocation, raw);
    std::memset(page.data.data() + raw % kPageBytes, static_cast<int>(value), n);
    set_written_range(page, raw % kPageBytes, n);
  });
}

Status Memory::read(Address from, std::span<std::byte> bytes) {
  Allocation& allocation = checked_range("host read", from, bytes.size());
  std::uint64_t missing = bytes.size();
  for_each_page(from.raw, bytes.size(),
                [&](std::uint64_t raw, std::uint64_t done, std::uint64_t n) {
                  const Page& page = *page_of(allocation, raw);
                  std::memcpy(bytes.data() + done, page.data.data() + raw % kPageBytes, n);
                  const std::uint64_t hole = first_unwritten(page, raw % kPageBytes, n);
                  if (hole < n && missing == bytes.size()) missing = done + hole;
                });
  if (missing == bytes.size()) return Done{};
  return bad_input("the host reads " + std::to_string(bytes.size()) + " bytes at " +
                   describe(from) + ", but nobody has written " + describe(from.at(missing)));
}

bool Memory::peek(Address from, std::span<std::byte> bytes) {
  from = canonical(from);
  Allocation& allocation = checked_range("host peek", from, bytes.size());
  bool complete = true;
  for_each_page(from.raw, bytes.size(),
                [&](std::uint64_t raw, std::uint64_t done, std::uint64_t n) {
                  const Page* page = allocation.pages.find(allocation.page_index(raw));
                  if (page == nullptr) {
                    const bool zero = allocation.fill == Fill::kZero;
                    std::memset(bytes.data() + done, zero ? 0 : static_cast<int>(kPoisonByte), n);
                    complete = complete && zero;
                    return;
                  }
                  std::memcpy(bytes.data() + done, page->data.data() + raw % kPageBytes, n);
                  complete = complete && first_unwritten(*page, raw % kPageBytes, n) == n;
                });
  return complete;
}

void Memory::forget(Address from, std::uint64_t bytes) {
  from = canonical(from);
  Allocation& allocation = checked_range("host forget", from, bytes);
  for_each_page(from.raw, bytes, [&](std::uint64_t raw, std::uint64_t, std::uint64_t n) {
    Page* page = allocation.pages.find(allocation.page_index(raw));
    if (page == nullptr && allocation.fill == Fill::kPoison) return;
    if (page == nullptr) page = page_of(allocation, raw);
    const std::uint64_t begin = raw % kPageBytes;
    std::memset(page->data.data() + begin, static_cast<int>(kPoisonByte), n);
    for (std::uint64_t i = begin; i < begin + n;) {
      if (i % 8 == 0 && i + 8 <= begin + n) {
        page->written[i / 8] = 0;
        i += 8;
      } else {
        page->written[i / 8] &= static_cast<std::uint8_t>(~(1u << (i % 8)));
        ++i;
      }
    }
  });
}

std::uint64_t Memory::count_written(Address from, std::uint64_t bytes) {
  from = canonical(from);
  Allocation& allocation = checked_range("host count", from, bytes);
  std::uint64_t count = 0;
  for_each_page(from.raw, bytes, [&](std::uint64_t raw, std::uint64_t, std::uint64_t n) {
    const Page* page = allocation.pages.find(allocation.page_index(raw));
    if (page == nullptr) {
      if (allocation.fill == Fill::kZero) count += n;
      return;
    }
    const auto& written = page->written;
    std::uint64_t i = raw % kPageBytes;
    const std::uint64_t end = i + n;
    for (; i < end && i % 8 != 0; ++i) count += written[i / 8] >> (i % 8) & 1u;
    for (; i + 8 <= end; i += 8) count += static_cast<std::uint64_t>(std::popcount(written[i / 8]));
    for (; i < end; ++i) count += written[i / 8] >> (i % 8) & 1u;
  });
  return count;
}

}  // namespace assay::machine
