// The histories of a weak memory: for every location that threads have touched, its writes in
// coherence order and who has read which. A location is the byte range of one scalar access (PTX
// ISA 9.1, 8.2); a word of a page starts as one location and is split or merged when accesses of
// another size come. Four words whose histories are the same, because only vectors have touched
// them and nothing was to be chosen, are kept as one quad until that changes. Decides the
// bookkeeping; which write may be read is ptx_memory.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "model/core/ops.hpp"
#include "model/machine/clock.hpp"
#include "model/machine/memory.hpp"

namespace assay::machine {

using HistoryIndex = std::uint32_t;  // 0 is nothing

// Who did it, as a race report and moral strength need it.
struct AccessRecord {
  std::uint32_t place = 0;  // 0: before the run
  std::uint32_t alias = 0;  // 0: through the bytes' own address
  Site site = Site::kNone;
  Order order = Order::kWeak;
  Reach reach = Reach::kNone;
  // Of the access itself: its location may be a part of it, or the other way round. Of a quad they
  // are those of its first word.
  std::uint8_t bytes = 0;
  std::uint8_t at = 0;  // modulo 16

  bool meets(const AccessRecord& other) const {
    return at < other.at + other.bytes && other.at < at + bytes;
  }
};

inline constexpr Tick kNoWitness = ~Tick{0};

struct ReadRecord {
  AccessRecord access;
  ClockId id = 0;
  Tick first = 0;  // kNoWitness: it says nothing about which write it has seen
  Tick last = 0;
  HistoryIndex next = 0;
};

struct WriteRecord {
  std::uint64_t value = 0;
  std::uint64_t upper = 0;       // words 2 and 3 of a quad
  std::uint64_t written_at = 0;  // Scheduler::step; 0 is before the run
  ReleaseHeads heads;
  AccessRecord access;
  Stamp by;
  HistoryIndex older = 0;
  HistoryIndex reads = 0;
  bool follows_its_read = false;  // an atomic that has read `older`: nothing comes in between
  bool hidden = false;            // only for races: nobody can read it any more
  bool unwritten = false;         // stands for bytes that nobody has written
  bool is_atomic = false;
};

struct Location {
  HistoryIndex newest = 0;  // of its writes; of a split word the index of its parts
  std::uint16_t count = 0;  // of its writes
  std::uint8_t bytes = 0;
  enum Kind : std::uint8_t {
    kUntouched,
    kOwn,
    kContinued,  // a later word of 8 bytes or of a quad; `newest` is the number of the first
    kSplit,      // a word of locations of 1 and 2 bytes
  } kind = kUntouched;
};

class History {
 public:
  WriteRecord& write(HistoryIndex index) { return writes_[index]; }
  ReadRecord& read(HistoryIndex index) { return reads_[index]; }
  Location& location(HistoryIndex index) {
    return (index & kSmallBit) != 0 ? small_[index & ~kSmallBit]
                                    : pages_[index / kWordsPerPage]->words[index % kWordsPerPage];
  }

  // The locations that an access touches.
  struct Overlap {
    std::array<HistoryIndex, 8> locations;  // `count` of them
    std::uint32_t count = 0;
    bool exact = false;  // there is one, and it is the access's
    bool gaps = false;   // some bytes belong to none
  };
  Overlap overlap(const Page& page, std::uint64_t raw, std::uint32_t bytes);

  // The quad at a multiple of 16; made if nothing has touched its words. False if they have
  // histories of their own.
  bool find_quad(Page& page, std::uint64_t raw, Overlap& quad);
  // From here on its words have.
  void split_quad(Page& page, std::uint64_t raw);

  // Makes locations for the bytes of an access that have none: the access's own if all are free,
  // else whatever fits.
  void fill_gaps(Page& page, std::uint64_t raw, std::uint32_t bytes);
  // The location of an access that writes. Larger ones are split, smaller ones merged; what the old
  // ones hold is kept for races.
  HistoryIndex reshape(Page& page, std::uint64_t raw, std::uint32_t bytes);
  // Everything written to a whole page before this is ordered like `by`.
  void overwrite_page(Page& page, Stamp by, const AccessRecord& access);

  // Puts a new write directly after `after` (0: it is the first).
  HistoryIndex add_write(HistoryIndex location, HistoryIndex after, WriteRecord write);
  void add_read(HistoryIndex write, const ReadRecord& read);
  void drop_older_than(HistoryIndex location, HistoryIndex write);
  // Forgets what nobody can see or race with any more: everybody's clock is at least `floor`.
  // Writes beyond `most` are forgotten in any case.
  void trim(HistoryIndex location, const VectorClock& floor, std::uint32_t most);

  std::size_t num_records() const { return num_records_; }
  void clear();

 private:
  static constexpr std::uint64_t kWordsPerPage = kPageBytes / 4;
  static constexpr HistoryIndex kSmallBit = 0x80000000u;  // an index into small_, not of a word
  struct PageHistory {
    Page* page = nullptr;
    Stamp by;  // of words without a location
    AccessRecord access;
    std::array<Location, kWordsPerPage> words;
  };

  PageHistory& history_of(Page& page);
  HistoryIndex at_byte(HistoryIndex page, std::uint64_t in_page) const;
  HistoryIndex new_location(Page& page, std::uint64_t raw, std::uint32_t bytes);
  HistoryIndex initial_location(Page& page, std::uint64_t raw, std::uint32_t bytes);
  void split(Page& page, HistoryIndex whole, std::uint64_t raw);
  HistoryIndex merge(Page& page, std::uint64_t raw, std::uint32_t bytes, const Overlap& parts);
  HistoryIndex find_twin(HistoryIndex chain, const WriteRecord& write) const;
  void unlink(HistoryIndex newer, HistoryIndex write);
  HistoryIndex new_write(WriteRecord write);
  void drop_write(HistoryIndex write);
  void drop_chain(HistoryIndex newest);

  std::vector<WriteRecord> writes_{1};
  std::vector<ReadRecord> reads_{1};
  std::vector<Location> small_;  // locations of 1 and 2 bytes
  std::vector<std::array<HistoryIndex, 4>> splits_;
  std::vector<std::unique_ptr<PageHistory>> pages_{1};  // by Page::history
  std::size_t num_pages_ = 1;
  HistoryIndex free_write_ = 0, free_read_ = 0;
  std::size_t num_records_ = 0;
};

}  // namespace assay::machine
