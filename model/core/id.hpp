// Strong ids: a rank is not an expert is not a slot. An id can be compared, printed and advanced by
// one, nothing else; arithmetic needs value(). Absence is std::optional on the host; the wire's -1
// exists only where bytes are encoded (SPEC COR-1.1).
#pragma once

#include <cstdint>
#include <functional>

#include "model/core/platform.hpp"

namespace assay {

template <class Tag, class Rep = std::int32_t>
class Id {
 public:
  using rep = Rep;
  constexpr Id() = default;
  ASSAY_HD explicit constexpr Id(Rep value) : value_(value) {}

  ASSAY_HD constexpr Rep value() const { return value_; }
  ASSAY_HD constexpr Id next() const { return Id(static_cast<Rep>(value_ + 1)); }

  friend ASSAY_HD constexpr bool operator==(Id a, Id b) { return a.value_ == b.value_; }
  friend ASSAY_HD constexpr bool operator!=(Id a, Id b) { return a.value_ != b.value_; }
  friend ASSAY_HD constexpr bool operator<(Id a, Id b) { return a.value_ < b.value_; }
  friend ASSAY_HD constexpr bool operator<=(Id a, Id b) { return a.value_ <= b.value_; }

 private:
  Rep value_ = 0;
};

using RankId = Id<struct RankTag>;              // one GPU of the expert-parallel group
using ExpertId = Id<struct ExpertTag>;          // global, as the router names it
using PhysicalExpertId = Id<struct PhysicalTag>;  // a replica's place; equals ExpertId without EPLB
using LocalExpertId = Id<struct LocalTag>;      // position among one rank's experts
using TokenId = Id<struct TokenTag>;            // index among one rank's own tokens
using SlotId = Id<struct SlotTag>;              // row within one (destination, source) block
using TopKIndex = Id<struct TopKTag>;           // position in a token's list of picks
using Epoch = Id<struct EpochTag, std::uint32_t>;  // phase counter of a workspace, wraps

}  // namespace assay

template <class Tag, class Rep>
struct std::hash<assay::Id<Tag, Rep>> {
  std::size_t operator()(assay::Id<Tag, Rep> id) const { return std::hash<Rep>{}(id.value()); }
};
