// Placement, digest and printing of layouts. See layout.hpp.
#include "model/core/layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "model/core/digest.hpp"
#include "model/core/text.hpp"

namespace assay {
namespace {

bool add_overflows(std::uint64_t a, std::uint64_t b, std::uint64_t& sum) {
  return __builtin_add_overflow(a, b, &sum);
}

// `bytes` rounded up to a multiple of a power of two; true when that does not fit.
bool align_overflows(std::uint64_t bytes, std::uint64_t alignment, std::uint64_t& aligned) {
  if (add_overflows(bytes, alignment - 1, aligned)) return true;
  aligned &= ~(alignment - 1);
  return false;
}

const Layout::Extent* find_axis(std::span<const Layout::Extent> axes, std::string_view name) {
  const auto found = std::find_if(axes.begin(), axes.end(),
                                  [&](const Layout::Extent& axis) { return axis.name == name; });
  return found == axes.end() ? nullptr : &*found;
}

std::string shape_with_names(const Layout::Placed& region) {
  std::string text;
  for (std::size_t axis = 0; axis < region.axes.size(); ++axis) {
    text += fmt::format("{}{}={}", axis == 0 ? "" : ", ", region.axes[axis], region.sizes[axis]);
  }
  return "[" + text + "]";
}

// The region at the first multiple of its alignment from `end` on.
Expected<Layout::Placed> place_region(Layout::Region&& region, std::span<const Layout::Extent> axes,
                                      std::uint64_t end) {
  Layout::Placed placed;
  static_cast<Layout::Region&>(placed) = std::move(region);
  if (placed.element_bytes == 0) {
    return bad_input(fmt::format("region {} has elements of 0 bytes", placed.name));
  }
  if (!std::has_single_bit(placed.alignment_bytes)) {
    return bad_input(fmt::format("region {} is aligned to {} bytes; allowed are powers of two",
                                 placed.name, placed.alignment_bytes));
  }
  for (const std::string& axis : placed.axes) {
    const Layout::Extent* extent = find_axis(axes, axis);
    if (extent == nullptr) {
      return bad_input(
          fmt::format("region {} has an axis {} that is not declared", placed.name, axis));
    }
    placed.sizes.push_back(extent->size);
  }
  bool overflow = align_overflows(end, placed.alignment_bytes, placed.offset_bytes);
  placed.bytes = placed.element_bytes;
  placed.stride_bytes.resize(placed.axes.size());
  for (std::size_t axis = placed.axes.size(); axis-- > 0;) {
    placed.stride_bytes[axis] = placed.bytes;
    overflow |= __builtin_mul_overflow(placed.bytes, placed.sizes[axis], &placed.bytes);
  }
  std::uint64_t region_end = 0;
  overflow |= add_overflows(placed.offset_bytes, placed.bytes, region_end);
  if (overflow) {
    return bad_input(fmt::format("region {} {} of {} bytes does not fit 64-bit offsets",
                                 placed.name, shape_with_names(placed), placed.element_bytes));
  }
  return placed;
}

}  // namespace

Expected<Layout> Layout::declare(std::string name, std::vector<Extent> axes,
                                 std::vector<Region> regions) {
  Layout layout;
  layout.name_ = std::move(name);
  const std::string place = "layout " + layout.name_;
  Digest digest;
  digest.add(layout.name_).add(std::uint64_t{axes.size()});
  for (Extent& axis : axes) {
    if (find_axis(layout.axes_, axis.name) != nullptr) {
      return bad_input(fmt::format("{}: axis {} is declared twice", place, axis.name));
    }
    digest.add(axis.name).add(axis.size);
    layout.axes_.push_back(std::move(axis));
  }
  std::uint64_t end = 0;
  for (Region& region : regions) {
    const auto same_name = [&](const Placed& other) { return other.name == region.name; };
    if (std::any_of(layout.regions_.begin(), layout.regions_.end(), same_name)) {
      return bad_input(fmt::format("{}: region {} is declared twice", place, region.name));
    }
    auto placed = place_region(std::move(region), layout.axes_, end);
    if (!placed) return placed.error().within(place);
    digest.add(placed->name).add(placed->element_bytes).add(placed->alignment_bytes);
    digest.add(std::uint64_t{placed->axes.size()});
    for (const std::string& axis : placed->axes) digest.add(axis);
    layout.alignment_bytes_ = std::max(layout.alignment_bytes_, placed->alignment_bytes);
    end = placed->end_bytes();
    layout.regions_.push_back(*std::move(placed));
  }
  if (align_overflows(end, layout.alignment_bytes_, layout.total_bytes_)) {
    return bad_input(fmt::format("{}: {} bytes, aligned to {}, do not fit 64-bit offsets", place,
                                 end, layout.alignment_bytes_));
  }
  layout.digest_ = digest.add(layout.total_bytes_).value();
  return layout;
}

const Layout::Placed& Layout::region(std::string_view name) const {
  const auto found = std::find_if(regions_.begin(), regions_.end(),
                                  [&](const Placed& region) { return region.name == name; });
  CONTRACT(found != regions_.end(), name_, name);
  return *found;
}

std::uint64_t Layout::extent(std::string_view axis) const {
  const Extent* found = find_axis(axes_, axis);
  CONTRACT(found != nullptr, name_, axis);
  return found->size;
}

// offset, bytes, region, element bytes, axes, meaning; padding has a row of its own, so that the
// bytes of all rows add up to the total.
std::vector<std::array<std::string, 6>> Layout::rows() const {
  std::vector<std::array<std::string, 6>> rows;
  std::uint64_t end = 0;
  const auto pad_to = [&](std::uint64_t offset) {
    if (offset == end) return;
    rows.push_back({std::to_string(end), std::to_string(offset - end), "(padding)", "", "", ""});
  };
  for (const Placed& region : regions_) {
    pad_to(region.offset_bytes);
    rows.push_back({std::to_string(region.offset_bytes), std::to_string(region.bytes), region.name,
                    std::to_string(region.element_bytes),
                    region.axes.empty() ? "" : shape_with_names(region), region.meaning});
    end = region.end_bytes();
  }
  pad_to(total_bytes_);
  return rows;
}

std::string Layout::markdown() const {
  std::string out = fmt::format(
      "**{}**: {} bytes, aligned to {}, digest {:08x}\n\n"
      "| offset | bytes | region | element | axes | meaning |\n"
      "|---:|---:|---|---:|---|---|\n",
      name_, total_bytes_, alignment_bytes_, digest_);
  for (const auto& row : rows()) out += fmt::format("| {} |\n", joined(row, " | "));
  return out;
}

std::string Layout::text() const {
  std::vector<std::array<std::string, 6>> table = rows();
  table.insert(table.begin(), {"offset", "bytes", "region", "element", "axes", "meaning"});
  std::array<std::size_t, 6> width{};
  for (const auto& row : table) {
    for (std::size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  }
  std::string out = fmt::format("{}: {} bytes, aligned to {}, digest {:08x}\n", name_, total_bytes_,
                                alignment_bytes_, digest_);
  for (const auto& row : table) {
    std::string line =
        fmt::format("{:>{}}  {:>{}}  {:<{}}  {:>{}}  {:<{}}  {}", row[0], width[0], row[1],
                    width[1], row[2], width[2], row[3], width[3], row[4], width[4], row[5]);
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

}  // namespace assay
