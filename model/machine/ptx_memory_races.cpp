// Which accesses may meet without an order between them, and the sentence when they must not.
#include <fmt/format.h>

#include "model/machine/ptx_memory.hpp"

namespace assay::machine {

namespace {

const char* order_name(Order order) {
  switch (order) {
    case Order::kWeak:
      return "weak";
    case Order::kRelaxed:
      return "relaxed";
    case Order::kAcquire:
      return "acquire";
    case Order::kRelease:
      return "release";
    case Order::kAcqRel:
      return "acq_rel";
    case Order::kSc:
      return "sc";
  }
  return "?";
}
const char* reach_name(Reach reach) {
  switch (reach) {
    case Reach::kNone:
      return "none";
    case Reach::kCta:
      return "cta";
    case Reach::kGpu:
      return "gpu";
    case Reach::kSys:
      return "sys";
  }
  return "?";
}

std::string access_sentence(const char* verb, const AccessRecord& access) {
  if (access.reach == Reach::kNone) return fmt::format("weak {} of {} bytes", verb, access.bytes);
  return fmt::format("{} of {} bytes ({}.{})", verb, access.bytes, order_name(access.order),
                     reach_name(access.reach));
}

}  // namespace

// Two conflicting accesses must be in causality order or morally strong (PTX ISA 9.1, 8.7.1;
// SPEC MAC-6.14). Other addresses of the same bytes are ordered by the end of a kernel alone: no
// operation here is a proxy fence (8.9.5; SPEC MAC-6.15).
bool PtxMemory::is_settled(const Element& element, const AccessRecord& other, Stamp last) const {
  if (!element.access.meets(other)) return true;  // two parts of one location
  if (other.alias != element.access.alias) return element.actor.start->clock.has(last);
  return element.actor.clock.has(last) || morally_strong(element.access, other);
}

// Whether one of the write's readers is before the actor.
bool PtxMemory::is_witnessed(const Actor& actor, const WriteRecord& write) {
  for (HistoryIndex r = write.reads; r != 0; r = history_.read(r).next)
    if (history_.read(r).first <= actor.clock.of(history_.read(r).id)) return true;
  return false;
}

// Causality order holds from a write to everything after an operation that has observed it, be it
// through atomics (8.9.5 and 8.9.2): `write` itself has a reader before the actor, or an atomic
// that has read it was observed. `newest_atomic` starts the chain of atomics down to `write`.
bool PtxMemory::is_observed(const Actor& actor, HistoryIndex newest_atomic, HistoryIndex write) {
  bool observed = false;
  for (HistoryIndex w = newest_atomic;; w = history_.write(w).older) {
    observed = observed || is_witnessed(actor, history_.write(w));
    if (w == write) return observed;
    observed = observed && morally_strong(history_.write(w).access,
                                          history_.write(history_.write(w).older).access);
  }
}

// Looks for a race of the element with everything its locations remember, and on the way fills
// candidates_ as collect_readable does, if the location is the element's own.
MaybeFault PtxMemory::find_race(const Element& element, const History::Overlap& parts, Does does) {
  const Actor& actor = element.actor;
  candidates_.clear();
  for (std::uint32_t p = 0; p < parts.count; ++p) {
    bool known = !parts.exact;
    HistoryIndex newest_atomic = 0;
    for (HistoryIndex w = history_.location(parts.locations[p]).newest; w != 0;) {
      const WriteRecord& write = history_.write(w);
      if (newest_atomic == 0) newest_atomic = w;
      if (!is_settled(element, write.access, write.by) &&
          (write.access.alias != element.access.alias || !is_observed(actor, newest_atomic, w)))
        return race(element, write.access, write.is_atomic ? "atomic" : "store");
      if (!known && !write.hidden) {
        candidates_.push_back(w);
        known = actor.clock.has(write.by) || is_witnessed(actor, write);
      }
      if (does == Does::kWrite)
        for (HistoryIndex r = write.reads; r != 0;) {
          const ReadRecord& read = history_.read(r);
          if (!is_settled(element, read.access, {read.id, read.last}))
            return race(element, read.access, "load");
          r = read.next;
        }
      if (!write.follows_its_read) newest_atomic = 0;
      w = write.older;
    }
  }
  return nullptr;
}

MaybeFault PtxMemory::race(const Element& element, const AccessRecord& other,
                           const char* verb) const {
  const AccessRecord& mine = element.access;
  std::string why;
  if (other.alias != mine.alias) {
    why = "they go through two addresses of the same bytes, which only the end of a kernel orders";
  } else {
    why = "nothing orders them, and ";
    if (mine.reach == Reach::kNone || other.reach == Reach::kNone) {
      why += mine.reach != Reach::kNone    ? "the other is weak"
             : other.reach != Reach::kNone ? "this one is weak"
                                           : "both are weak";
    } else if (mine.bytes != other.bytes) {
      why += fmt::format("they are {} bytes against {}", mine.bytes, other.bytes);
    } else {
      const Reach smaller = std::min(mine.reach, other.reach);
      const std::uint32_t left_out = mine.reach <= other.reach ? other.place : mine.place;
      why += fmt::format("scope {} does not include {}", reach_name(smaller),
                         place_sentence(left_out));
    }
  }
  const std::string site =
      other.site == Site::kNone ? "" : fmt::format(" at {}", site_name(other.site));
  return std::make_unique<Fault>(
      Fault{fmt::format("{} in {} is in a data race with the {}{} of {}: {}",
                        access_sentence(element.verb, mine), memory_.describe(element.address),
                        access_sentence(verb, other), site, place_sentence(other.place), why)});
}

std::string PtxMemory::place_sentence(std::uint32_t place) const {
  if (place == 0) return "the host before this run";
  const ThreadPlace& at = places_[place].at;
  if (at.thread == kHostThread)
    return fmt::format("a host node of rank {} stream {}", at.rank.value(), at.stream);
  return fmt::format("rank {} kernel {} cta {} thread {}", at.rank.value(),
                     kernel_names_[places_[place].kernel], at.cta, at.thread);
}

MaybeFault PtxMemory::never_written(const Element& element) const {
  MemoryEvent event;
  event.address = element.address;
  event.bytes = element.access.bytes;
  return std::make_unique<Fault>(
      Fault{trouble_sentence(memory_, event, element.verb, Trouble::kNeverWritten)});
}

}  // namespace assay::machine
