// What is before what: vector clocks, and what a release hands to an acquire. Decides the
// representation of causality order (SPEC MAC-6.2) and nothing about which operation orders what.
//
// A thread's events are counted in ticks, and a tick passes only when the thread hands its clock to
// somebody: so an event of tick n is before everything that has this thread at n or more.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace assay::machine {

using ClockId = std::uint32_t;  // one per running thread; passed on along causality order
using Tick = std::uint32_t;

// One event. Tick 0 is before everything.
struct Stamp {
  ClockId id = 0;
  Tick tick = 0;
};

// A pointer to a shared value. Machines are single-threaded, so the count is a plain
// number.
template <class T>
class Shared {
 public:
  Shared() = default;
  static Shared make(T value) {
    Shared made;
    made.box_ = new Box{std::move(value), 1};
    return made;
  }
  Shared(const Shared& other) : box_(other.box_) {
    if (box_ != nullptr) ++box_->count;
  }
  Shared(Shared&& other) noexcept : box_(std::exchange(other.box_, nullptr)) {}
  Shared& operator=(Shared other) noexcept {
    std::swap(box_, other.box_);
    return *this;
  }
  ~Shared() {
    if (box_ != nullptr && --box_->count == 0) delete box_;
  }

  explicit operator bool() const { return box_ != nullptr; }
  const T& operator*() const { return box_->value; }
  const T* operator->() const { return &box_->value; }
  // For a change that no other pointer sees.
  T& change() {
    if (box_->count > 1) *this = make(T(box_->value));
    return box_->value;
  }
  friend bool operator==(const Shared& a, const Shared& b) { return a.box_ == b.box_; }

 private:
  struct Box {
    T value;
    std::uint64_t count;
  };
  Box* box_ = nullptr;
};

// Ticks of all clocks, zero where nothing is known. Kept in pieces that copies share until they
// change: threads of one group differ in a piece or two, and a copy is what every release costs.
class VectorClock {
 public:
  Tick of(ClockId id) const {
    const std::size_t piece = id / kPiece;
    return piece < pieces_.size() && pieces_[piece] ? (*pieces_[piece])[id % kPiece] : 0;
  }
  bool has(Stamp stamp) const { return stamp.tick <= of(stamp.id); }

  void set(ClockId id, Tick tick) {
    const std::size_t piece = id / kPiece;
    if (piece >= pieces_.size()) pieces_.resize(piece + 1);
    if (!pieces_[piece]) pieces_[piece] = Shared<Piece>::make(Piece{});
    pieces_[piece].change()[id % kPiece] = tick;
  }
  // What either has.
  void join(const VectorClock& other) {
    if (other.pieces_.size() > pieces_.size()) pieces_.resize(other.pieces_.size());
    for (std::size_t p = 0; p < other.pieces_.size(); ++p) {
      const Shared<Piece>& theirs = other.pieces_[p];
      if (!theirs || pieces_[p] == theirs) continue;
      if (!pieces_[p] || includes(*theirs, *pieces_[p])) {
        pieces_[p] = theirs;
      } else if (!includes(*pieces_[p], *theirs)) {
        Piece& mine = pieces_[p].change();
        for (std::size_t i = 0; i < kPiece; ++i) mine[i] = std::max(mine[i], (*theirs)[i]);
      }
    }
  }
  // What both have.
  void meet(const VectorClock& other) {
    if (other.pieces_.size() < pieces_.size()) pieces_.resize(other.pieces_.size());
    for (std::size_t p = 0; p < pieces_.size(); ++p) {
      const Shared<Piece>& theirs = other.pieces_[p];
      if (pieces_[p] == theirs) continue;
      if (!theirs || !pieces_[p]) {
        pieces_[p] = {};
        continue;
      }
      Piece& mine = pieces_[p].change();
      for (std::size_t i = 0; i < kPiece; ++i) mine[i] = std::min(mine[i], (*theirs)[i]);
    }
  }
  void clear() { pieces_.clear(); }

 private:
  // Two cache lines: small enough to copy at every release, large enough to keep pointers few.
  static constexpr std::size_t kPiece = 32;
  using Piece = std::array<Tick, kPiece>;
  static bool includes(const Piece& a, const Piece& b) {
    bool all = true;
    for (std::size_t i = 0; i < kPiece; ++i) all &= a[i] >= b[i];
    return all;
  }
  std::vector<Shared<Piece>> pieces_;
};

// A thread's clock at one of its events. Nobody who has `owner` can lack anything of it, because
// the owner's tick ended there.
struct Snapshot {
  VectorClock clock;
  Stamp owner;
};
using SharedSnapshot = Shared<Snapshot>;

inline void join(VectorClock& clock, const Snapshot& snapshot) {
  if (!clock.has(snapshot.owner)) clock.join(snapshot.clock);
}

// How far a strong operation reaches; kNone is a weak one. There are no clusters of several CTAs,
// so cluster scope is CTA scope.
enum class Reach : std::uint8_t { kNone, kCta, kGpu, kSys };

// The first operation of a release pattern (PTX ISA 9.1, 8.8): what it hands on, and to whom.
struct ReleaseHead {
  SharedSnapshot before;
  Reach reach = Reach::kNone;
  std::uint32_t place = 0;  // the thread that performed it
};
using ReleaseHeads = Shared<std::vector<ReleaseHead>>;

}  // namespace assay::machine
