// Looking up a coordinate by name.
#include "verify/compare/mismatch.hpp"

namespace assay::verify {

std::optional<std::int64_t> Mismatch::coordinate(const std::string& name) const {
  for (const Coordinate& place : where)
    if (place.name == name) return place.value;
  return std::nullopt;
}

}  // namespace assay::verify
