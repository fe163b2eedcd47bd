// Sequential consistency, the slow way around the page cache, and the sentences of illegal
// accesses.
#include "model/machine/memory_model.hpp"

namespace assay::machine {

namespace {

MaybeFault fault(const Memory& memory, const MemoryEvent& event, const char* verb,
                 Trouble trouble) {
  return std::make_unique<Fault>(Fault{trouble_sentence(memory, event, verb, trouble)});
}

}  // namespace

bool all_written(const Page& page, std::uint64_t in_page, std::uint32_t bytes) {
  switch (bytes) {
    case 1:
      return is_written<std::uint8_t>(page, in_page);
    case 2:
      return is_written<std::uint16_t>(page, in_page);
    case 4:
      return is_written<std::uint32_t>(page, in_page);
    case 8:
      return is_written<std::uint64_t>(page, in_page);
    case 16:
      return is_written<Vec16>(page, in_page);
  }
  CONTRACT(false, "an access has 1, 2, 4, 8 or 16 bytes", bytes);
  return false;
}

void mark_written(Page& page, std::uint64_t in_page, std::uint32_t bytes) {
  switch (bytes) {
    case 1:
      return set_written<std::uint8_t>(page, in_page);
    case 2:
      return set_written<std::uint16_t>(page, in_page);
    case 4:
      return set_written<std::uint32_t>(page, in_page);
    case 8:
      return set_written<std::uint64_t>(page, in_page);
    case 16:
      return set_written<Vec16>(page, in_page);
  }
  CONTRACT(false, "an access has 1, 2, 4, 8 or 16 bytes", bytes);
}

std::uint64_t read_word(const Page& page, std::uint64_t in_page, std::uint32_t bytes) {
  std::uint64_t value = 0;  // little-endian, as every GPU and every host of this project
  std::memcpy(&value, page.data.data() + in_page, bytes);
  return value;
}

MaybeFault SequentialMemory::load(const MemoryEvent& event, std::byte* value) {
  const Memory::Located at = memory_.locate(event.rank, event.address, event.bytes);
  if (at.trouble != Trouble::kNone) return fault(memory_, event, "load", at.trouble);
  const std::uint64_t in_page = event.address.raw % kPageBytes;
  if (!all_written(*at.page, in_page, event.bytes))
    return fault(memory_, event, "load", Trouble::kNeverWritten);
  memory_.cache(event.rank, event.address, at);
  std::memcpy(value, at.page->data.data() + in_page, event.bytes);
  return nullptr;
}

MaybeFault SequentialMemory::store(const MemoryEvent& event, const std::byte* value) {
  const Memory::Located at = memory_.locate(event.rank, event.address, event.bytes);
  if (at.trouble != Trouble::kNone) return fault(memory_, event, "store", at.trouble);
  const std::uint64_t in_page = event.address.raw % kPageBytes;
  memory_.cache(event.rank, event.address, at);
  std::memcpy(at.page->data.data() + in_page, value, event.bytes);
  mark_written(*at.page, in_page, event.bytes);
  return nullptr;
}

MaybeFault SequentialMemory::rmw(const MemoryEvent& event, Rmw op, std::uint64_t operand,
                                 std::uint64_t compare, std::uint64_t& old) {
  const Memory::Located at = memory_.locate(event.rank, event.address, event.bytes);
  if (at.trouble != Trouble::kNone) return fault(memory_, event, "atomic", at.trouble);
  const std::uint64_t in_page = event.address.raw % kPageBytes;
  if (!all_written(*at.page, in_page, event.bytes))
    return fault(memory_, event, "atomic", Trouble::kNeverWritten);
  old = read_word(*at.page, event.address.raw % kPageBytes, event.bytes);
  const std::uint64_t value = op == Rmw::kAdd ? old + operand : old == compare ? operand : old;
  std::memcpy(at.page->data.data() + in_page, &value, event.bytes);
  return nullptr;
}

MaybeFault SequentialMemory::await(const MemoryEvent& event, const Await& await, Look,
                                   bool& satisfied, std::uint64_t& seen) {
  const Memory::Located at = memory_.locate(event.rank, event.address, event.bytes);
  if (at.trouble != Trouble::kNone) return fault(memory_, event, "wait", at.trouble);
  if (!all_written(*at.page, event.address.raw % kPageBytes, event.bytes))
    return fault(memory_, event, "wait", Trouble::kNeverWritten);
  seen = read_word(*at.page, event.address.raw % kPageBytes, event.bytes);
  satisfied = satisfies(await, seen);
  return nullptr;
}

}  // namespace assay::machine
