// What loads, stores, atomics and waits may choose from.
#include "model/machine/ptx_memory.hpp"

#include <cstring>

namespace assay::machine {

namespace {

// Writes of one location that are remembered; older ones are no longer offered (SPEC MAC-6.16).
constexpr std::uint32_t kMostWrites = 64;
// From here on a store looks whether old writes can be forgotten.
constexpr std::uint32_t kWritesBeforeTrim = 4;

constexpr Reach reach_of(Order order, Scope scope) {
  if (order == Order::kWeak) return Reach::kNone;
  switch (scope) {
    case Scope::kNone:
      return Reach::kNone;
    case Scope::kCta:
    case Scope::kCluster:
      return Reach::kCta;
    case Scope::kGpu:
      return Reach::kGpu;
    case Scope::kSys:
      return Reach::kSys;
  }
  return Reach::kNone;
}
constexpr bool acquires(Order order) {
  return order == Order::kAcquire || order == Order::kAcqRel || order == Order::kSc;
}

constexpr std::uint32_t kElementOfVec16 = 4;
constexpr std::uint32_t element_bytes(std::uint32_t bytes) {
  return bytes == 16 ? kElementOfVec16 : bytes;
}

}  // namespace

PtxMemory::PtxMemory(Memory& memory, Scheduler& scheduler, Boundary boundary)
    : memory_(memory), scheduler_(scheduler), boundary_(boundary), places_(1), kernel_names_(1) {}

// ---- the operations ----------------------------------------------------------------------------

// Every element of an access is an operation of its own (SPEC MAC-6.7).
MaybeFault PtxMemory::load(const MemoryEvent& event, std::byte* value) {
  Memory::Located at;
  if (MaybeFault fault = locate(event, "load", at)) return fault;
  const std::uint32_t bytes = element_bytes(event.bytes);
  if (MaybeFault fault; event.bytes == 16 && event.order != Order::kAcquire &&
                        load_quad(element(event, "load", at, 0, bytes), value, fault))
    return fault;
  for (std::uint32_t offset = 0; offset < event.bytes; offset += bytes) {
    std::uint64_t word = 0;
    if (MaybeFault fault = load_element(element(event, "load", at, offset, bytes), word))
      return fault;
    std::memcpy(value + offset, &word, bytes);
  }
  return nullptr;
}

MaybeFault PtxMemory::store(const MemoryEvent& event, const std::byte* value) {
  Memory::Located at;
  if (MaybeFault fault = locate(event, "store", at)) return fault;
  const std::uint32_t bytes = element_bytes(event.bytes);
  if (MaybeFault fault; event.bytes == 16 && event.order != Order::kRelease &&
                        store_quad(element(event, "store", at, 0, bytes), value, fault))
    return fault;
  for (std::uint32_t offset = 0; offset < event.bytes; offset += bytes) {
    std::uint64_t word = 0;
    std::memcpy(&word, value + offset, bytes);
    if (MaybeFault fault = store_element(element(event, "store", at, offset, bytes), word))
      return fault;
  }
  return nullptr;
}

// An atomic reads a write that no other atomic has read, and lands directly behind it; a
// compare-and-swap that fails is a strong read (SPEC MAC-6.6).
MaybeFault PtxMemory::rmw(const MemoryEvent& event, Rmw op, std::uint64_t operand,
                          std::uint64_t compare, std::uint64_t& old) {
  Memory::Located at;
  if (MaybeFault fault = locate(event, "atomic", at)) return fault;
  const Element element = this->element(event, "atomic", at, 0, event.bytes);
  History::Overlap parts = touch(element);
  if (MaybeFault fault = find_race(element, parts, Does::kRead)) return fault;
  if (!parts.exact) {
    // Only a write may make one location of several: it alone is ordered with, or in a race with,
    // whoever comes to one of them.
    const std::uint64_t held = read_word(element.page, element.raw % kPageBytes, event.bytes);
    if (op == Rmw::kCompareAndSwap && held != compare) return load_mixed(element, parts, old);
    history_.reshape(element.page, element.raw, event.bytes);
    parts = touch(element);
    collect_readable(element.actor, parts.locations[0]);
  }
  const HistoryIndex location = parts.locations[0];
  const auto fails = [&](HistoryIndex write) {
    return op == Rmw::kCompareAndSwap && history_.write(write).value != compare;
  };
  HistoryIndex newer = 0;
  std::size_t kept = 0;
  for (const HistoryIndex candidate : candidates_) {
    const bool taken = newer != 0 && history_.write(newer).follows_its_read;
    if (!taken || fails(candidate)) candidates_[kept++] = candidate;
    newer = candidate;
  }
  candidates_.resize(kept);
  const HistoryIndex chosen = choose_write(Choice::kReadFrom, element, candidates_);
  if (history_.write(chosen).unwritten) return never_written(element);
  old = history_.write(chosen).value;
  take(element, chosen);
  if (fails(chosen)) return nullptr;
  if (MaybeFault fault = find_race(element, parts, Does::kWrite)) return fault;
  const std::uint64_t mask =
      event.bytes == 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << (8 * event.bytes)) - 1;
  const std::uint64_t value = (op == Rmw::kAdd ? old + operand : operand) & mask;
  perform_write(element, location, chosen, value, true);
  if (history_.location(location).count >= kWritesBeforeTrim) trim(location);
  return nullptr;
}

// The thread takes one of the readable writes that end the wait. While there is none it has polled:
// a store that races with its polls must know of them.
MaybeFault PtxMemory::await(const MemoryEvent& event, const Await& await, Look look,
                            bool& satisfied, std::uint64_t& seen) {
  satisfied = false;
  Memory::Located at;
  if (MaybeFault fault = locate(event, "wait", at)) return fault;
  const Element element = this->element(event, "wait", at, 0, event.bytes);
  const History::Overlap parts = touch(element);
  if (look == Look::kTake)
    if (MaybeFault fault = find_race(element, parts, Does::kRead)) return fault;
  if (!parts.exact) {
    seen = read_word(element.page, element.raw % kPageBytes, event.bytes);
    satisfied = satisfies(await, seen);
    return look == Look::kLook ? nullptr : load_mixed(element, parts, seen);
  }
  if (look == Look::kLook) collect_readable(element.actor, parts.locations[0]);
  if (history_.write(candidates_.front()).unwritten) return never_written(element);
  seen = history_.write(candidates_.front()).value;
  std::size_t kept = 0;
  const HistoryIndex oldest = candidates_.back();
  for (const HistoryIndex candidate : candidates_) {
    const WriteRecord& write = history_.write(candidate);
    if (look == Look::kTake && write.unwritten) return never_written(element);
    if (!write.unwritten && satisfies(await, write.value)) candidates_[kept++] = candidate;
  }
  candidates_.resize(kept);
  satisfied = kept != 0;
  if (look == Look::kLook) return nullptr;
  if (!satisfied) {
    const Stamp stamp = now(element.actor);
    history_.add_read(oldest, ReadRecord{element.access, stamp.id, kNoWitness, stamp.tick, 0});
    return nullptr;
  }
  const HistoryIndex chosen = choose_write(Choice::kReadFrom, element, candidates_);
  seen = history_.write(chosen).value;
  take(element, chosen);
  return nullptr;
}

// ---- one element -------------------------------------------------------------------------------

MaybeFault PtxMemory::locate(const MemoryEvent& event, const char* verb, Memory::Located& at) {
  ++since_floor_;
  at = memory_.locate(event.rank, event.address, event.bytes);
  if (at.trouble == Trouble::kNone) return nullptr;
  return std::make_unique<Fault>(Fault{trouble_sentence(memory_, event, verb, at.trouble)});
}

PtxMemory::Element PtxMemory::element(const MemoryEvent& event, const char* verb,
                                      const Memory::Located& at, std::uint32_t offset,
                                      std::uint32_t bytes) {
  Actor& actor = actors_[event.slot];
  AccessRecord access;
  access.place = actor.place;
  access.alias = at.allocation->alias;
  access.site = event.site;
  access.order = event.order;
  access.reach = reach_of(event.order, event.scope);
  access.bytes = static_cast<std::uint8_t>(bytes);
  const Address address = event.address.at(offset);
  const std::uint64_t raw = address.raw + at.allocation->alias_offset;
  access.at = static_cast<std::uint8_t>(raw % 16);
  return Element{actor, *at.page, raw, address, verb, access};
}

// The locations of the element's bytes, all of which have one from here on.
History::Overlap PtxMemory::touch(const Element& element) {
  const History::Overlap parts = history_.overlap(element.page, element.raw, element.access.bytes);
  if (parts.exact) return parts;
  if (parts.count > 0) history_.split_quad(element.page, element.raw);
  history_.fill_gaps(element.page, element.raw, element.access.bytes);
  return history_.overlap(element.page, element.raw, element.access.bytes);
}

// A quad is four elements about which there is nothing to choose. `words` is the first of them.
// False if there is, or if the words have histories of their own: then it takes four elements.
bool PtxMemory::load_quad(const Element& words, std::byte* value, MaybeFault& fault) {
  History::Overlap quad;
  if (!history_.find_quad(words.page, words.raw, quad)) return false;
  fault = find_race(words, quad, Does::kRead);
  if (fault != nullptr) return true;
  if (candidates_.size() > 1 && words.access.reach != Reach::kNone) return false;
  const HistoryIndex read = candidates_.front();
  if (history_.write(read).unwritten) {
    fault = never_written(words);
    return true;
  }
  ask_about_quad(Choice::kReadFrom, words);
  std::memcpy(value, &history_.write(read).value, 8);
  std::memcpy(value + 8, &history_.write(read).upper, 8);
  take(words, read, 4);
  return true;
}

bool PtxMemory::store_quad(const Element& words, const std::byte* value, MaybeFault& fault) {
  History::Overlap quad;
  if (!history_.find_quad(words.page, words.raw, quad)) return false;
  fault = find_race(words, quad, Does::kWrite);
  if (fault != nullptr) return true;
  const bool is_weak = words.access.reach == Reach::kNone;
  if (candidates_.size() > 1 && !is_weak) return false;
  ask_about_quad(Choice::kPlaceWrite, words);
  const HistoryIndex location = quad.locations[0];
  std::uint64_t lower = 0;
  std::uint64_t upper = 0;
  std::memcpy(&lower, value, 8);
  std::memcpy(&upper, value + 8, 8);
  const HistoryIndex newest = history_.location(location).newest;
  const HistoryIndex added = perform_write(words, location, newest, lower, false);
  history_.write(added).upper = upper;
  std::memcpy(words.page.data.data() + words.raw % kPageBytes, value, 16);
  mark_written(words.page, words.raw % kPageBytes, 16);
  if (is_weak)
    history_.drop_older_than(location, added);
  else if (history_.location(location).count >= kWritesBeforeTrim)
    trim(location);
  return true;
}

// Searches hear of every element, also where there is one alternative.
void PtxMemory::ask_about_quad(Choice kind, const Element& words) {
  if (words.access.reach == Reach::kNone) return;
  written_at_.assign(1, history_.write(candidates_.front()).written_at);
  for (std::uint32_t w = 0; w < 4; ++w)
    scheduler_.choose_write(WriteChoice{kind, words.address.at(w * 4), 4, written_at_});
}

MaybeFault PtxMemory::load_element(const Element& element, std::uint64_t& value) {
  const History::Overlap parts = touch(element);
  if (MaybeFault fault = find_race(element, parts, Does::kRead)) return fault;
  if (!parts.exact) return load_mixed(element, parts, value);
  const HistoryIndex chosen = choose_write(Choice::kReadFrom, element, candidates_);
  if (history_.write(chosen).unwritten) return never_written(element);
  value = history_.write(chosen).value;
  take(element, chosen);
  return nullptr;
}

// Everything that has written these bytes is before this load, so it returns what memory holds.
MaybeFault PtxMemory::load_mixed(const Element& element, const History::Overlap& parts,
                                 std::uint64_t& value) {
  const std::uint32_t bytes = element.access.bytes;
  if (!all_written(element.page, element.raw % kPageBytes, bytes)) return never_written(element);
  value = read_word(element.page, element.raw % kPageBytes, bytes);
  const Stamp stamp = now(element.actor);
  for (std::uint32_t p = 0; p < parts.count; ++p)
    history_.add_read(history_.location(parts.locations[p]).newest,
                      ReadRecord{element.access, stamp.id, kNoWitness, stamp.tick, 0});
  if (element.access.reach == Reach::kNone) return nullptr;
  if (acquires(element.access.order)) acquire_location(element);
  candidates_.assign(1, history_.location(parts.locations[0]).newest);
  choose_write(Choice::kReadFrom, element, candidates_);
  return nullptr;
}

// A store may land directly behind its thread's view or behind anything newer, only not between an
// atomic and the write that the atomic has read (SPEC MAC-6.5).
MaybeFault PtxMemory::store_element(const Element& element, std::uint64_t value) {
  const History::Overlap parts = touch(element);
  if (MaybeFault fault = find_race(element, parts, Does::kWrite)) return fault;
  const HistoryIndex location =
      parts.exact ? parts.locations[0]
                  : history_.reshape(element.page, element.raw, element.access.bytes);
  if (element.access.reach == Reach::kNone) {
    // Whoever has not got this write before it races with it, so nothing older can be read again.
    const HistoryIndex newest = history_.location(location).newest;
    const HistoryIndex added = perform_write(element, location, newest, value, false);
    history_.drop_older_than(location, added);
    return nullptr;
  }
  if (!parts.exact) collect_readable(element.actor, location);
  drop_taken();
  const HistoryIndex after = choose_write(Choice::kPlaceWrite, element, candidates_);
  perform_write(element, location, after, value, false);
  if (history_.location(location).count >= kWritesBeforeTrim) trim(location);
  return nullptr;
}

// Fills candidates_ with the writes that the actor may read, newest first: up to the newest of
// which it knows, because its write or one of its readers is before the actor (SPEC MAC-6.4).
void PtxMemory::collect_readable(const Actor& actor, HistoryIndex location) {
  candidates_.clear();
  for (HistoryIndex w = history_.location(location).newest; w != 0;) {
    const WriteRecord& write = history_.write(w);
    if (!write.hidden) candidates_.push_back(w);
    if (!write.hidden && (actor.clock.has(write.by) || is_witnessed(actor, write))) return;
    w = write.older;
  }
  CONTRACT(!candidates_.empty(), "a location without a write");
}

// Only writes that no atomic has read stay in candidates_.
void PtxMemory::drop_taken() {
  std::size_t kept = 0;
  HistoryIndex newer = 0;
  for (const HistoryIndex candidate : candidates_) {
    if (newer == 0 || !history_.write(newer).follows_its_read) candidates_[kept++] = candidate;
    newer = candidate;
  }
  candidates_.resize(kept);
}

// The newest comes first, so choosing 0 throughout is sequentially consistent (SPEC MAC-6.1).
HistoryIndex PtxMemory::choose_write(Choice kind, const Element& element,
                                     const std::vector<HistoryIndex>& candidates) {
  if (element.access.reach == Reach::kNone) return candidates.front();
  written_at_.clear();
  for (const HistoryIndex candidate : candidates)
    written_at_.push_back(history_.write(candidate).written_at);
  return candidates[scheduler_.choose_write(
      WriteChoice{kind, element.address, element.access.bytes, written_at_})];
}

// The read has returned `write`: everybody who comes after this read knows of that write, and a
// release that the write carries is acquired now or later (SPEC MAC-6.4, MAC-6.8). A quad has four
// elements, of which `element` is the first.
void PtxMemory::take(const Element& element, HistoryIndex write, std::uint32_t num_elements) {
  const Stamp stamp = now(element.actor);
  history_.add_read(write, ReadRecord{element.access, stamp.id, stamp.tick, stamp.tick, 0});
  if (element.access.reach == Reach::kNone) return;
  const WriteRecord& read = history_.write(write);
  if (read.heads && morally_strong(read.access, element.access))
    note_acquirable(element, num_elements, read.heads);
  if (acquires(element.access.order)) acquire_location(element);
}

// The newest write of a location is what the host sees.
HistoryIndex PtxMemory::perform_write(const Element& element, HistoryIndex location,
                                      HistoryIndex after, std::uint64_t value, bool is_atomic) {
  WriteRecord write;
  write.value = value;
  write.written_at = scheduler_.step();
  write.access = element.access;
  write.by = now(element.actor);  // before heads_of_write, whose release hands this write on
  write.is_atomic = write.follows_its_read = is_atomic;
  if (element.access.reach != Reach::kNone) write.heads = heads_of_write(element);
  if (is_atomic) write.heads = pass_on(element, std::move(write.heads), history_.write(after));
  if (after == history_.location(location).newest) {
    const std::uint64_t in_page = element.raw % kPageBytes;
    std::memcpy(element.page.data.data() + in_page, &value, element.access.bytes);
    mark_written(element.page, in_page, element.access.bytes);
  }
  return history_.add_write(location, after, std::move(write));
}

void PtxMemory::trim(HistoryIndex location) {
  history_.trim(location, floor_, kMostWrites);
  if (history_.location(location).count < kWritesBeforeTrim) return;
  // A new floor costs a look at every clock; so often it costs a few operations per operation.
  if (since_floor_ < 256 + actors_.size() * (next_id_ / 64 + 1)) return;
  compute_floor();
  history_.trim(location, floor_, kMostWrites);
}

}  // namespace assay::machine
