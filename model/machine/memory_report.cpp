// How an address and an illegal access are put into words.
#include <fmt/format.h>

#include "model/machine/memory_model.hpp"

namespace assay::machine {

std::string trouble_sentence(const Memory& memory, const MemoryEvent& event, const char* verb,
                             Trouble trouble) {
  const std::string access =
      fmt::format("{} of {} bytes at {:#x}", verb, event.bytes, event.address.raw);
  switch (trouble) {
    case Trouble::kNone:
      break;
    case Trouble::kOutOfBounds:
      return access + " is out of bounds: " + memory.describe_miss(event.address, event.bytes);
    case Trouble::kMisaligned:
      return fmt::format("{} is misaligned by {}: {}", access, event.address.raw % event.bytes,
                         memory.describe(event.address));
    case Trouble::kNeverWritten:
      return fmt::format("{} reads what nobody has written: {}", access,
                         memory.describe(event.address));
    case Trouble::kForeign:
      return fmt::format("{} reaches local memory of another rank: {}", access,
                         memory.describe(event.address));
  }
  CONTRACT(false, "a sentence for no trouble");
  return access;
}

std::string Memory::describe(Address address) const {
  const Allocation* allocation = allocation_before(address.raw);
  if (allocation == nullptr)
    return fmt::format("{:#x}, which is below every allocation", address.raw);
  const NamedPart* part = part_at(address);
  return fmt::format(
      "'{}'{} of rank {} + {} (of {} bytes{})", allocation->name,
      allocation->released ? ", released," : "", allocation->rank.value(),
      address.raw - allocation->first.raw, allocation->bytes,
      part == nullptr ? "" : fmt::format("; {} + {}", part->name, address.raw - part->first.raw));
}

std::string Memory::place_name(Address address) const {
  const Allocation* allocation = allocation_before(address.raw);
  const NamedPart* part = part_at(address);
  if (part != nullptr && allocation != nullptr)
    return fmt::format("{} of rank {} + {}", part->name, allocation->rank.value(),
                       address.raw - part->first.raw);
  const std::string text = describe(address);
  return text.substr(0, text.find(" (of "));
}

// Parts may overlap, as the rows of rounds do: the first that was named wins.
const NamedPart* Memory::part_at(Address address) const {
  if (parts_ == nullptr) return nullptr;
  for (const NamedPart& part : *parts_)
    if (address.raw >= part.first.raw && address.raw - part.first.raw < part.bytes) return &part;
  return nullptr;
}

std::string Memory::describe_miss(Address address, std::uint64_t bytes) const {
  const Allocation* before = allocation_before(address.raw);
  const Allocation* after = before == nullptr
                                ? (allocations_.empty() ? nullptr : &allocations_.front())
                            : before == &allocations_.back() ? nullptr
                                                             : before + 1;
  if (before == nullptr && after == nullptr) return "there is no allocation at all";
  if (before != nullptr && before->released && before->contains(address.raw))
    return "it is in " + describe(address);
  const auto size_of = [](const Allocation& a) {
    return fmt::format("'{}' of rank {} ({} bytes)", a.name, a.rank.value(), a.bytes);
  };
  if (before != nullptr && before->contains(address.raw))
    return fmt::format("it ends {} bytes beyond {}",
                       address.raw + bytes - (before->first.raw + before->bytes), size_of(*before));
  const std::uint64_t behind =
      before == nullptr ? ~std::uint64_t{0} : address.raw - (before->first.raw + before->bytes);
  const std::uint64_t ahead = after == nullptr ? ~std::uint64_t{0} : after->first.raw - address.raw;
  if (behind <= ahead)
    return fmt::format("it starts {} bytes behind the end of {}", behind, size_of(*before));
  return fmt::format("it starts {} bytes before {}", ahead, size_of(*after));
}

}  // namespace assay::machine
