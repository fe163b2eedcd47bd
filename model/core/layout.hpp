// A buffer's layout, declared once: from a list of regions come offsets, sizes, addresses for host
// and device, the table for people, and the digest that ranks compare. Decides how regions are
// placed (SPEC COR-4); which regions there are is decided where a Layout is declared.
//
//   ASSAY_TRY(const Layout layout, Layout::declare("workspace", {{"ep", 8}, {"max", 128}, {"k",
//   4}}, {
//       {"flags", 8, {"ep"}, 128, "flag word of each source"},
//       {"target_rank", 4, {"max", "k"}, 128, "-1 where nothing was sent"}}));
//   const RegionPlan<2> target_rank = layout.plan<2>("target_rank");   // into a kernel's
//   parameters Address a = target_rank.address(window.of(rank), token, pick);     // in its body
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/core/expected.hpp"
#include "model/core/ops.hpp"
#include "model/core/platform.hpp"

namespace assay {

// What a kernel needs to know of a region (SPEC COR-4.3): where it begins and how far apart its
// elements are. Plain data, so it can be a kernel parameter. Indices are not checked here: a wrong
// kernel must be able to compute a wrong address, which is then found as a mismatch.
template <std::size_t kAxes>
struct RegionPlan {
  std::uint64_t offset_bytes = 0;
  std::uint64_t stride_bytes[kAxes == 0 ? 1 : kAxes] = {};

  // Bytes from the start of the buffer to element [index...]; with fewer indices than axes, to the
  // first element of that row or block. An index is an integer or an id; all arithmetic is 64-bit.
  template <class... Index>
  ASSAY_HD constexpr std::uint64_t at(Index... index) const {
    static_assert(sizeof...(Index) <= kAxes, "more indices than axes");
    std::uint64_t bytes = offset_bytes;
    std::size_t axis = 0;
    ((bytes += number(index) * stride_bytes[axis++]), ...);
    static_cast<void>(axis);
    return bytes;
  }
  template <class... Index>
  ASSAY_HD constexpr Address address(Address buffer, Index... index) const {
    return buffer.at(at(index...));
  }

 private:
  template <class Index>
  ASSAY_HD static constexpr std::uint64_t number(Index index) {
    if constexpr (requires { index.value(); })
      return static_cast<std::uint64_t>(index.value());
    else
      return static_cast<std::uint64_t>(index);
  }
};

class Layout {
 public:
  struct Extent {  // a named axis; every region that has it has this size
    std::string name;
    std::uint64_t size;
  };
  struct Region {
    std::string name;
    std::uint64_t element_bytes;
    std::vector<std::string> axes;  // slowest first; none: one element
    std::uint64_t alignment_bytes;  // of the region's start; a power of two
    std::string meaning;            // one sentence; not part of the digest
  };
  struct Placed : Region {
    std::vector<std::uint64_t> sizes;         // [axes]
    std::vector<std::uint64_t> stride_bytes;  // [axes]
    std::uint64_t offset_bytes = 0;
    std::uint64_t bytes = 0;
    std::uint64_t end_bytes() const { return offset_bytes + bytes; }
  };

  // Places the regions in the order given, each at the next multiple of its alignment (SPEC
  // COR-4.1, COR-4.2). Errors: a name or axis that appears twice, an axis that is not declared, an
  // element of no bytes, an alignment that is no power of two, sizes that do not fit 64 bits.
  static Expected<Layout> declare(std::string name, std::vector<Extent> axes,
                                  std::vector<Region> regions);

  const std::string& name() const { return name_; }
  std::span<const Placed> regions() const { return regions_; }
  const Placed& region(std::string_view name) const;  // CONTRACT: it exists
  std::uint64_t offset_bytes(std::string_view region_name) const {
    return region(region_name).offset_bytes;
  }
  std::uint64_t extent(std::string_view axis) const;  // CONTRACT: it exists
  // A multiple of alignment_bytes(), so that buffers can stand one after another.
  std::uint64_t total_bytes() const { return total_bytes_; }
  std::uint64_t alignment_bytes() const { return alignment_bytes_; }

  // CONTRACT: the region exists and has kAxes axes.
  template <std::size_t kAxes>
  RegionPlan<kAxes> plan(std::string_view region_name) const {
    const Placed& placed = region(region_name);
    CONTRACT(placed.axes.size() == kAxes, region_name, placed.axes.size(), kAxes);
    RegionPlan<kAxes> plan;
    plan.offset_bytes = placed.offset_bytes;
    for (std::size_t axis = 0; axis < kAxes; ++axis) {
      plan.stride_bytes[axis] = placed.stride_bytes[axis];
    }
    return plan;
  }

  // Equal for two layouts only if (up to 2^-32) every name, size, alignment and order is equal. Two
  // ranks that exchange it know whether they mean the same bytes.
  std::uint32_t digest() const { return digest_; }

  // The byte map, padding included (SPEC COR-4.5), as a Markdown table or as aligned columns.
  std::string markdown() const;
  std::string text() const;

 private:
  std::vector<std::array<std::string, 6>> rows() const;

  std::string name_;
  std::vector<Extent> axes_;
  std::vector<Placed> regions_;
  std::uint64_t total_bytes_ = 0;
  std::uint64_t alignment_bytes_ = 1;
  std::uint32_t digest_ = 0;
};

}  // namespace assay
