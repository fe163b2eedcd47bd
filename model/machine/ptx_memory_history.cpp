// Locations, their writes and their reads: see ptx_memory_history.hpp.
#include "model/machine/ptx_memory_history.hpp"

#include <cstring>

#include "model/machine/memory_model.hpp"

namespace assay::machine {

namespace {

constexpr std::uint32_t kQuad = 16;

constexpr std::uint8_t in_quad(std::uint64_t raw) { return static_cast<std::uint8_t>(raw % kQuad); }

std::uint64_t slice(const WriteRecord& write, std::uint64_t offset, std::uint32_t bytes) {
  const std::uint64_t shifted = (offset < 8 ? write.value : write.upper) >> (8 * (offset % 8));
  return bytes == 8 ? shifted : shifted & ((std::uint64_t{1} << (8 * bytes)) - 1);
}

}  // namespace

History::PageHistory& History::history_of(Page& page) {
  if (page.history != 0) return *pages_[page.history];
  if (num_pages_ == pages_.size()) pages_.push_back(std::make_unique<PageHistory>());
  page.history = static_cast<std::uint32_t>(num_pages_);
  PageHistory& history = *pages_[num_pages_++];
  history.page = &page;
  history.by = {};
  history.access = {};
  history.words.fill(Location{});
  return history;
}

// The location of a byte, 0 if it has none.
HistoryIndex History::at_byte(HistoryIndex page, std::uint64_t in_page) const {
  const std::uint64_t word = in_page / 4;
  const Location& here = pages_[page]->words[word];
  const auto index = static_cast<HistoryIndex>(page * kWordsPerPage + word);
  switch (here.kind) {
    case Location::kUntouched:
      return 0;
    case Location::kOwn:
      return index;
    case Location::kContinued:
      return static_cast<HistoryIndex>(page * kWordsPerPage + here.newest);
    case Location::kSplit:
      return splits_[here.newest][in_page % 4];
  }
  return 0;
}

History::Overlap History::overlap(const Page& page, std::uint64_t raw, std::uint32_t bytes) {
  Overlap found;  // `locations` has no initialiser, on purpose
  found.gaps = true;
  if (page.history == 0) return found;
  const std::uint64_t in_page = raw % kPageBytes;
  const Location& first = pages_[page.history]->words[in_page / 4];
  if (first.kind == Location::kOwn && first.bytes == bytes) [[likely]] {
    found.locations[0] = static_cast<HistoryIndex>(page.history * kWordsPerPage + in_page / 4);
    found.count = 1;
    found.exact = true;
    found.gaps = false;
    return found;
  }
  found.gaps = false;
  for (std::uint32_t b = 0; b < bytes; ++b) {
    const HistoryIndex here = at_byte(page.history, in_page + b);
    if (here == 0) {
      found.gaps = true;
    } else if (found.count == 0 || found.locations[found.count - 1] != here) {
      found.locations[found.count++] = here;
    }
  }
  found.exact = found.count == 1 && !found.gaps && location(found.locations[0]).bytes == bytes;
  return found;
}

// Takes the place of whatever the bytes belonged to.
HistoryIndex History::new_location(Page& page, std::uint64_t raw, std::uint32_t bytes) {
  PageHistory& history = history_of(page);
  const std::uint64_t word = raw % kPageBytes / 4;
  Location& here = history.words[word];
  const Location fresh{0, 0, static_cast<std::uint8_t>(bytes), Location::kOwn};
  if (bytes >= 4) {
    here = fresh;
    for (std::uint64_t w = word + 1; w < word + bytes / 4; ++w)
      history.words[w] = Location{static_cast<HistoryIndex>(word), 0, 0, Location::kContinued};
    return static_cast<HistoryIndex>(page.history * kWordsPerPage + word);
  }
  if (here.kind != Location::kSplit) {
    here = Location{static_cast<HistoryIndex>(splits_.size()), 0, 0, Location::kSplit};
    splits_.push_back({});
  }
  const HistoryIndex index = kSmallBit | static_cast<HistoryIndex>(small_.size());
  small_.push_back(fresh);
  for (std::uint32_t b = 0; b < bytes; ++b) splits_[here.newest][raw % 4 + b] = index;
  return index;
}

// What its bytes hold now was there before the run, or was written by the host.
HistoryIndex History::initial_location(Page& page, std::uint64_t raw, std::uint32_t bytes) {
  const HistoryIndex index = new_location(page, raw, bytes);
  const PageHistory& history = history_of(page);
  WriteRecord initial;
  std::memcpy(&initial.value, page.data.data() + raw % kPageBytes, std::min(bytes, 8u));
  if (bytes == kQuad) std::memcpy(&initial.upper, page.data.data() + raw % kPageBytes + 8, 8);
  initial.unwritten = !all_written(page, raw % kPageBytes, bytes);
  initial.by = history.by;
  initial.access = history.access;
  initial.access.bytes = static_cast<std::uint8_t>(bytes == kQuad ? 4 : bytes);
  initial.access.at = in_quad(raw);
  add_write(index, 0, std::move(initial));
  return index;
}

void History::fill_gaps(Page& page, std::uint64_t raw, std::uint32_t bytes) {
  const PageHistory& history = history_of(page);
  const std::uint64_t in_page = raw % kPageBytes;
  bool all_free = true;
  for (std::uint32_t b = 0; b < bytes; ++b)
    all_free = all_free && at_byte(page.history, in_page + b) == 0;
  if (all_free) {
    initial_location(page, raw, bytes);
    return;
  }
  for (std::uint32_t b = 0; b < bytes;) {
    if (at_byte(page.history, in_page + b) != 0) {
      ++b;
      continue;
    }
    const bool whole_word =
        bytes == 8 && history.words[in_page / 4 + b / 4].kind == Location::kUntouched;
    initial_location(page, raw + b, whole_word ? 4 : 1);
    b += whole_word ? 4 : 1;
  }
}

HistoryIndex History::reshape(Page& page, std::uint64_t raw, std::uint32_t bytes) {
  fill_gaps(page, raw, bytes);
  Overlap parts = overlap(page, raw, bytes);
  while (parts.count == 1 && !parts.exact) {
    split(page, parts.locations[0], raw);
    parts = overlap(page, raw, bytes);
  }
  return parts.exact ? parts.locations[0] : merge(page, raw, bytes, parts);
}

bool History::find_quad(Page& page, std::uint64_t raw, Overlap& quad) {
  PageHistory& history = history_of(page);
  const std::uint64_t word = raw % kPageBytes / 4;
  const Location* words = &history.words[word];
  if (words->kind != Location::kOwn || words->bytes != kQuad) {
    for (int w = 0; w < 4; ++w)
      if (words[w].kind != Location::kUntouched) return false;
    // Poison of some words only is not the same history.
    const std::uint8_t* written = &page.written[word / 2];
    if (written[0] != written[1] || (written[0] != 0 && written[0] != 0xFF)) return false;
    initial_location(page, raw, kQuad);
  }
  quad.locations[0] = static_cast<HistoryIndex>(page.history * kWordsPerPage + word);
  quad.count = 1;
  quad.exact = true;
  quad.gaps = false;
  return true;
}

void History::split_quad(Page& page, std::uint64_t raw) {
  const HistoryIndex here = at_byte(page.history, raw % kPageBytes);
  if (here != 0 && location(here).bytes == kQuad) split(page, here, raw);
}

// `raw` is one of its bytes. A part keeps what concerns it, and the records still know that they
// were of more bytes.
void History::split(Page& page, HistoryIndex whole, std::uint64_t raw) {
  const Location old = location(whole);
  const std::uint32_t size = old.bytes == kQuad ? 4 : old.bytes / 2u;
  std::vector<HistoryIndex> newest_first;
  for (HistoryIndex w = old.newest; w != 0; w = writes_[w].older) newest_first.push_back(w);
  for (std::uint32_t offset = 0; offset < old.bytes; offset += size) {
    const std::uint64_t first = raw / old.bytes * old.bytes + offset;
    const HistoryIndex index = new_location(page, first, size);
    AccessRecord part;
    part.bytes = static_cast<std::uint8_t>(size);
    part.at = in_quad(first);
    const auto concerns = [&](AccessRecord& access) {
      if (old.bytes == kQuad) access.at = part.at;
      return access.meets(part);
    };
    for (auto w = newest_first.rbegin(); w != newest_first.rend(); ++w) {
      WriteRecord copy = writes_[*w];
      if (!concerns(copy.access)) continue;
      copy.value = slice(copy, offset, size);
      HistoryIndex read = copy.reads;
      copy.reads = 0;
      const HistoryIndex added = add_write(index, location(index).newest, std::move(copy));
      for (; read != 0; read = reads_[read].next)
        if (ReadRecord record = reads_[read]; concerns(record.access)) add_read(added, record);
    }
  }
  drop_chain(old.newest);
}

// The parts' values together are what was there before; their records stay behind it, hidden. What
// was one write before a split is one again: else accesses of two sizes in turn would double it
// each time.
HistoryIndex History::merge(Page& page, std::uint64_t raw, std::uint32_t bytes,
                            const Overlap& parts) {
  HistoryIndex chain = 0;
  std::uint16_t count = 0;
  for (std::uint32_t p = 0; p < parts.count; ++p) {
    const Location& part = location(parts.locations[p]);
    HistoryIndex newest = part.newest;
    HistoryIndex newer = 0;
    for (HistoryIndex w = part.newest; w != 0;) {
      const HistoryIndex older = writes_[w].older;
      writes_[w].hidden = true;
      if (const HistoryIndex twin = find_twin(chain, writes_[w]); twin != 0) {
        for (HistoryIndex r = writes_[w].reads; r != 0; r = reads_[r].next)
          add_read(twin, ReadRecord(reads_[r]));
        if (newer == 0) newest = older;
        unlink(newer, w);
      } else {
        newer = w;
        ++count;
      }
      w = older;
    }
    if (newer == 0) continue;
    writes_[newer].older = chain;
    writes_[newer].follows_its_read = false;  // what comes now is of other bytes
    chain = newest;
  }
  const HistoryIndex index = new_location(page, raw, bytes);
  location(index).newest = chain;
  location(index).count = count;
  WriteRecord together;
  together.value = read_word(page, raw % kPageBytes, bytes);
  together.unwritten = !all_written(page, raw % kPageBytes, bytes);
  together.access.bytes = static_cast<std::uint8_t>(bytes);
  together.access.at = in_quad(raw);
  add_write(index, chain, std::move(together));
  return index;
}

// Another piece of the same access, or of one of the same kind at the same time.
HistoryIndex History::find_twin(HistoryIndex chain, const WriteRecord& write) const {
  const AccessRecord& access = write.access;
  for (HistoryIndex w = chain; w != 0; w = writes_[w].older) {
    const WriteRecord& other = writes_[w];
    if (other.by.id == write.by.id && other.by.tick == write.by.tick &&
        other.access.place == access.place && other.access.alias == access.alias &&
        other.access.site == access.site && other.access.reach == access.reach &&
        other.access.order == access.order && other.access.bytes == access.bytes &&
        other.access.at == access.at && other.is_atomic == write.is_atomic)
      return w;
  }
  return 0;
}

// Takes a write out from behind `newer` (0: it is the newest).
void History::unlink(HistoryIndex newer, HistoryIndex write) {
  if (newer != 0) {
    // An atomic that has read it goes on following the write that it follows itself.
    writes_[newer].older = writes_[write].older;
    writes_[newer].follows_its_read =
        writes_[newer].follows_its_read && writes_[write].follows_its_read;
  }
  drop_write(write);
}

void History::overwrite_page(Page& page, Stamp by, const AccessRecord& access) {
  PageHistory& history = history_of(page);
  HistoryIndex last = 0;
  for (std::uint64_t in_page = 0; in_page < kPageBytes; ++in_page) {
    const HistoryIndex here = at_byte(page.history, in_page);
    if (here != 0 && here != last) drop_chain(location(here).newest);
    last = here;
  }
  history.words.fill(Location{});
  history.by = by;
  history.access = access;
}

HistoryIndex History::new_write(WriteRecord write) {
  HistoryIndex index = free_write_;
  ++num_records_;
  if (index != 0) {
    free_write_ = writes_[index].older;
    writes_[index] = std::move(write);
    return index;
  }
  writes_.push_back(std::move(write));
  return static_cast<HistoryIndex>(writes_.size() - 1);
}

HistoryIndex History::add_write(HistoryIndex location, HistoryIndex after, WriteRecord write) {
  write.older = after;
  const HistoryIndex added = new_write(std::move(write));
  Location& at = this->location(location);
  ++at.count;
  if (at.newest == after) {
    at.newest = added;
    return added;
  }
  HistoryIndex newer = at.newest;
  while (writes_[newer].older != after) newer = writes_[newer].older;
  writes_[newer].older = added;
  return added;
}

void History::add_read(HistoryIndex write, const ReadRecord& read) {
  for (HistoryIndex r = writes_[write].reads; r != 0; r = reads_[r].next) {
    ReadRecord& known = reads_[r];
    if (known.id != read.id || known.access.place != read.access.place ||
        known.access.reach != read.access.reach || known.access.bytes != read.access.bytes ||
        known.access.at != read.access.at || known.access.alias != read.access.alias)
      continue;
    known.first = std::min(known.first, read.first);
    known.last = std::max(known.last, read.last);
    known.access.site = read.access.site;
    return;
  }
  HistoryIndex index = free_read_;
  ++num_records_;
  if (index != 0) {
    free_read_ = reads_[index].next;
  } else {
    index = static_cast<HistoryIndex>(reads_.size());
    reads_.emplace_back();
  }
  reads_[index] = read;
  reads_[index].next = writes_[write].reads;
  writes_[write].reads = index;
}

}  // namespace assay::machine
