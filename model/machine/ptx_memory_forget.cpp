// What a history may forget: writes that everybody who runs has gone past, and the oldest of too
// many (SPEC MAC-6.2, MAC-6.16). See ptx_memory_history.hpp.
#include "model/machine/ptx_memory_history.hpp"

namespace assay::machine {

void History::drop_write(HistoryIndex write) {
  WriteRecord& dropped = writes_[write];
  for (HistoryIndex r = dropped.reads; r != 0; --num_records_) {
    const HistoryIndex next = reads_[r].next;
    reads_[r].next = free_read_;
    free_read_ = r;
    r = next;
  }
  dropped.heads = {};
  dropped.reads = 0;
  dropped.older = free_write_;
  free_write_ = write;
  --num_records_;
}

void History::drop_older_than(HistoryIndex location, HistoryIndex write) {
  HistoryIndex w = writes_[write].older;
  writes_[write].older = 0;
  while (w != 0) {
    const HistoryIndex older = writes_[w].older;
    drop_write(w);
    --this->location(location).count;
    w = older;
  }
}

void History::drop_chain(HistoryIndex newest) {
  for (HistoryIndex w = newest; w != 0;) {
    const HistoryIndex older = writes_[w].older;
    drop_write(w);
    w = older;
  }
}

void History::trim(HistoryIndex location, const VectorClock& floor, std::uint32_t most) {
  bool passed = false;  // everybody has seen a newer write
  std::uint32_t kept = 0;
  HistoryIndex newer = 0;
  Location& at = this->location(location);
  for (HistoryIndex w = at.newest; w != 0;) {
    WriteRecord& write = writes_[w];
    const HistoryIndex older = write.older;
    bool settled = floor.has(write.by);
    bool seen = settled && !write.hidden;
    for (HistoryIndex r = write.reads; r != 0; r = reads_[r].next) {
      settled = settled && floor.has({reads_[r].id, reads_[r].last});
      seen = seen || (!write.hidden && reads_[r].first <= floor.of(reads_[r].id));
    }
    if ((passed && settled) || kept == most) {
      unlink(newer, w);
      --at.count;
    } else {
      write.hidden = write.hidden || passed;
      passed = passed || seen;
      ++kept;
      newer = w;
    }
    w = older;
  }
}

void History::clear() {
  for (std::size_t p = 1; p < num_pages_; ++p) pages_[p]->page->history = 0;
  num_pages_ = 1;
  writes_.resize(1);
  reads_.resize(1);
  small_.clear();
  splits_.clear();
  free_write_ = free_read_ = 0;
  num_records_ = 0;
}

}  // namespace assay::machine
