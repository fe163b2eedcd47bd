// What fences, release and acquire patterns, barriers and kernel boundaries order.
#include <algorithm>
#include <tuple>

#include "model/machine/ptx_memory.hpp"

namespace assay::machine {

namespace {

constexpr bool acquires(Order order) {
  return order == Order::kAcquire || order == Order::kAcqRel || order == Order::kSc;
}
constexpr bool releases(Order order) {
  return order == Order::kRelease || order == Order::kAcqRel || order == Order::kSc;
}

}  // namespace

// ---- moral strength ----------------------------------------------------------------------------

// The scope that two threads need to include each other (PTX ISA 9.1, 8.5).
Reach PtxMemory::distance(std::uint32_t place, std::uint32_t other) const {
  if (place == other) return Reach::kNone;
  const ThreadPlace& a = places_[place].at;
  const ThreadPlace& b = places_[other].at;
  if (a.rank != b.rank) return Reach::kSys;
  return a.grid == b.grid && a.cta == b.cta ? Reach::kCta : Reach::kGpu;
}

// PTX ISA 9.1, 8.7, for memory operations of two threads on overlapping bytes (SPEC MAC-6.3).
bool PtxMemory::morally_strong(const AccessRecord& a, const AccessRecord& b) const {
  if (a.reach == Reach::kNone || b.reach == Reach::kNone) return false;
  if (a.bytes != b.bytes || a.alias != b.alias) return false;
  return std::min(a.reach, b.reach) >= distance(a.place, b.place);
}

// ---- release and acquire -----------------------------------------------------------------------

// The actor's clock as it is now; its tick ends here (clock.hpp).
SharedSnapshot PtxMemory::hand_out(Actor& actor) {
  SharedSnapshot snapshot = SharedSnapshot::make(Snapshot{actor.clock, now(actor)});
  tick(actor);
  return snapshot;
}

// A release pattern and an acquire pattern synchronise if the first operation of the one and the
// last of the other are morally strong (PTX ISA 9.1, 8.9.4; SPEC MAC-6.8).
void PtxMemory::acquire(Actor& actor, const ReleaseHead& head, Reach reach) {
  if (std::min(head.reach, reach) >= distance(head.place, actor.place))
    join(actor.clock, *head.before);
}

// An acquire operation closes the pattern of every strong read that its thread has performed on the
// location, not only of its own (PTX ISA 9.1, 8.8, acquire pattern 2).
void PtxMemory::acquire_location(const Element& element) {
  Actor& actor = element.actor;
  for (auto seen = actor.acquirable.rbegin(); seen != actor.acquirable.rend(); ++seen)
    if (seen->address == element.raw && seen->bytes == element.access.bytes)
      acquire(actor, seen->head, element.access.reach);
}

// A strong read has seen these releases: an acquire may follow (PTX ISA 9.1, 8.8, acquire patterns
// 1 to 3). It is kept here and not with the write, which may be forgotten before.
void PtxMemory::note_acquirable(const Element& first, std::uint32_t num_elements,
                                const ReleaseHeads& heads) {
  Actor& actor = first.actor;
  const std::uint32_t bytes = first.access.bytes;
  auto& all = actor.acquirable;
  for (const ReleaseHead& head : *heads) {
    if (actor.clock.has(head.before->owner)) continue;
    if (head.reach < distance(head.place, actor.place)) continue;  // no acquire can change that
    for (std::uint32_t e = 0; e < num_elements; ++e)
      all.push_back({first.raw + e * bytes, bytes, head});
  }
  if (all.size() < actor.acquirable_limit) return;
  // A poll sees the same again and again, and some releases have been acquired meanwhile.
  std::erase_if(all, [&](const auto& seen) { return actor.clock.has(seen.head.before->owner); });
  const auto key = [](const auto& seen) {
    const Stamp owner = seen.head.before->owner;
    return std::tuple(owner.id, owner.tick, seen.address, seen.bytes);
  };
  std::sort(all.begin(), all.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
  all.erase(std::unique(all.begin(), all.end(),
                        [&](const auto& a, const auto& b) { return key(a) == key(b); }),
            all.end());
  actor.acquirable_limit = std::max<std::size_t>(64, 2 * all.size());
}

void PtxMemory::fence(const MemoryEvent& event) {
  const Reach reach = event.scope == Scope::kSys   ? Reach::kSys
                      : event.scope == Scope::kGpu ? Reach::kGpu
                                                   : Reach::kCta;
  fence(actors_[event.slot], event.order, reach);
}

void PtxMemory::fence(Actor& actor, Order order, Reach reach) {
  if (acquires(order)) {
    for (auto seen = actor.acquirable.rbegin(); seen != actor.acquirable.rend(); ++seen)
      acquire(actor, seen->head, reach);
    std::erase_if(actor.acquirable,
                  [&](const auto& seen) { return actor.clock.has(seen.head.before->owner); });
  }
  if (order == Order::kSc) fence_sc(actor, reach);
  if (!releases(order)) return;
  const ReleaseHead head{hand_out(actor), reach, actor.place};
  if (order == Order::kSc) publish_sc(actor, *head.before, reach);
  std::vector<ReleaseHead> heads{head};
  if (actor.fences)
    for (const ReleaseHead& wider : *actor.fences)
      if (wider.reach > reach) heads.insert(heads.begin(), wider);
  actor.fences = ReleaseHeads::make(std::move(heads));
  std::erase_if(actor.releases, [&](const auto& old) { return old.head.reach <= reach; });
}

// Fence-SC order is the order in which the fences are performed: a later one is after every earlier
// one whose scope and its own include both threads (PTX ISA 9.1, 8.9.3 and 8.9.4; SPEC MAC-6.9).
void PtxMemory::fence_sc(Actor& actor, Reach reach) {
  const ThreadPlace& at = places_[actor.place].at;
  actor.clock.join(sc_of_cta_[{at.grid, at.cta}]);
  if (reach >= Reach::kGpu) actor.clock.join(sc_of_rank_[at.rank.value()]);
  if (reach >= Reach::kSys) actor.clock.join(sc_everywhere_);
}

void PtxMemory::publish_sc(Actor& actor, const Snapshot& snapshot, Reach reach) {
  const ThreadPlace& at = places_[actor.place].at;
  sc_of_cta_[{at.grid, at.cta}].join(snapshot.clock);
  if (reach >= Reach::kGpu) sc_of_rank_[at.rank.value()].join(snapshot.clock);
  if (reach >= Reach::kSys) sc_everywhere_.join(snapshot.clock);
}

// What a strong write hands to whoever observes it: its own release, the releases that its thread
// has performed on this location, and the thread's release fences (PTX ISA 9.1, 8.8, release
// patterns 1 to 3; SPEC MAC-6.8).
ReleaseHeads PtxMemory::heads_of_write(const Element& element) {
  Actor& actor = element.actor;
  const std::uint32_t bytes = element.access.bytes;
  if (releases(element.access.order)) {
    const ReleaseHead head{hand_out(actor), element.access.reach, actor.place};
    std::erase_if(actor.releases, [&](const auto& old) {
      return old.address == element.raw && old.bytes == bytes && old.head.reach <= head.reach;
    });
    actor.releases.push_back({element.raw, bytes, head});
  }
  if (actor.releases.empty()) return actor.fences;
  std::vector<ReleaseHead> heads;
  if (actor.fences) heads = *actor.fences;
  for (const auto& release : actor.releases) {
    if (release.address != element.raw || release.bytes != bytes) continue;
    std::erase_if(heads, [&](const auto& old) { return is_superseded(old, release.head); });
    heads.push_back(release.head);
  }
  return ReleaseHeads::make(std::move(heads));
}

// Observation order goes through atomics: whoever observes the atomic's write observes the write
// that the atomic has read (PTX ISA 9.1, 8.9.2; SPEC MAC-6.6).
ReleaseHeads PtxMemory::pass_on(const Element& element, ReleaseHeads own,
                                const WriteRecord& read) const {
  if (!read.heads || !morally_strong(read.access, element.access)) return own;
  if (!own) return read.heads;
  std::vector<ReleaseHead> heads;
  for (const ReleaseHead& old : *read.heads) {
    const bool superseded = std::any_of(own->begin(), own->end(),
                                        [&](const auto& head) { return is_superseded(old, head); });
    if (!superseded) heads.push_back(old);
  }
  heads.insert(heads.end(), own->begin(), own->end());
  return ReleaseHeads::make(std::move(heads));
}

// Whoever could acquire `old` can acquire `by`, which hands on at least as much. Without this a
// counter that is only ever added to would carry a release of every thread that has ever added.
bool PtxMemory::is_superseded(const ReleaseHead& old, const ReleaseHead& by) const {
  if (by.reach < old.reach || !by.before->clock.has(old.before->owner)) return false;
  switch (distance(old.place, by.place)) {
    case Reach::kNone:
    case Reach::kCta:
      return true;
    case Reach::kGpu: {
      // Within the old one's CTA, an acquire of CTA scope takes only the old one.
      const ThreadPlace& at = places_[old.place].at;
      return running_threads_.count({at.grid, at.cta}) == 0;
    }
    case Reach::kSys:
      break;
  }
  return false;
}

// bar.sync orders everything before it in any thread of the group before everything after it (PTX
// ISA 9.1, 8.9.4; SPEC MAC-6.10).
void PtxMemory::barrier(std::span<const ThreadSlot> threads) {
  VectorClock all;
  for (const ThreadSlot slot : threads) all.join(actors_[slot].clock);
  for (const ThreadSlot slot : threads) {
    actors_[slot].clock = all;
    tick(actors_[slot]);
  }
}

}  // namespace assay::machine
