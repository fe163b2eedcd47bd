// A set of bytes of memory, as ranges of addresses. Decides nothing; whoever poisons memory keeps
// in one what is still poison.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>

namespace assay::verify {

class MemoryRanges {
 public:
  void add(const void* begin, std::uint64_t bytes) {
    if (bytes == 0) return;
    std::uintptr_t first = address(begin), end = first + bytes;
    for (auto at = touching(first, 0); at != ranges_.end() && at->first <= end;
         at = ranges_.erase(at)) {
      first = std::min(first, at->first);
      end = std::max(end, at->second);
    }
    ranges_[first] = end;
  }

  void remove(const void* begin, std::uint64_t bytes) {
    if (bytes == 0) return;
    const std::uintptr_t first = address(begin), end = first + bytes;
    for (auto at = touching(first, 1); at != ranges_.end() && at->first < end;) {
      const auto [before, behind] = *at;
      at = ranges_.erase(at);
      if (before < first) ranges_[before] = first;
      if (behind > end) ranges_[end] = behind;
    }
  }

  // Whether all of these bytes are in the set.
  bool covers(const void* begin, std::uint64_t bytes) const {
    if (bytes == 0) return true;
    const std::uintptr_t first = address(begin);
    const auto next = ranges_.upper_bound(first);
    return next != ranges_.begin() && std::prev(next)->second >= first + bytes;
  }

  // Whether any of them is.
  bool overlaps(const void* begin, std::uint64_t bytes) const {
    if (bytes == 0) return false;
    const std::uintptr_t first = address(begin);
    const auto next = ranges_.upper_bound(first);
    return (next != ranges_.begin() && std::prev(next)->second > first) ||
           (next != ranges_.end() && next->first < first + bytes);
  }

 private:
  using Ranges = std::map<std::uintptr_t, std::uintptr_t>;  // begin -> end; no two touch
  static std::uintptr_t address(const void* pointer) {
    return reinterpret_cast<std::uintptr_t>(pointer);
  }
  // The first range that has an end at or behind first + gap.
  Ranges::iterator touching(std::uintptr_t first, std::uintptr_t gap) {
    auto at = ranges_.upper_bound(first);
    if (at != ranges_.begin() && std::prev(at)->second >= first + gap) --at;
    return at;
  }

  Ranges ranges_;
};

}  // namespace assay::verify
