// For the tests of decode_flow.hpp: recorders that turn each role of a small decode block into a
// program of waits, arrivals, copies, writes and reads. Beside what the code computes, every step
// says what the test itself counted: how often a barrier must have completed, what a buffer must
// hold. Host only.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/kernels/attention/decode_flow.hpp"
#include "model/core/testing.hpp"

namespace assay::attention_kernels::decode_testing {

// Two warps stand for the four of scores, who have to agree, and one for the four of values.
constexpr int kTeam = 2, kAdders = 1, kQueryStages = 2, kKeyStages = 2, kEntries = 2, kItems = 3;

enum Barrier : int {
  kQueriesFull = 0,
  kQueriesFree = kQueriesFull + kQueryStages,
  kKeysFull = kQueriesFree + kQueryStages,
  kKeysFree = kKeysFull + kKeyStages,
  kEntryFull = kKeysFree + kKeyStages,
  kEntryFree = kEntryFull + kEntries,
  kValuesFull = kEntryFree + kEntries,
  kItemFull = kValuesFull + kEntries,
  kItemFree = kItemFull + kItems,
  kVote = kItemFree + kItems,
  kBarriers = kVote + 1,
};
enum Buffer : int {
  kQueries = 0,
  kKeys = kQueries + kQueryStages,
  kValues = kKeys + kKeyStages,
  kProbabilities = kValues + kEntries,          // of each warp
  kMaxima = kProbabilities + kEntries * kTeam,  // two, of each warp
  kItem = kMaxima + 2 * kTeam,
  kBuffers = kItem + kItems,
};
enum Role {
  kKeysRole,
  kValuesRole,
  kFirstScorer,
  kFirstAdder = kFirstScorer + kTeam,
  kRoles = kFirstAdder + kAdders
};

inline int arrivals_of(int barrier) {
  if (barrier == kVote) return kTeam;
  if (barrier >= kItemFree) return kTeam + kAdders + 1;
  if (barrier >= kValuesFull) return 1;
  if (barrier >= kEntryFree) return kAdders;
  if (barrier >= kEntryFull) return kTeam;
  if (barrier >= kKeysFree) return kTeam;
  if (barrier >= kKeysFull) return 1;
  return barrier >= kQueriesFree ? kTeam : 1;
}

struct Step {
  enum Kind { kWait, kArrive, kLoad, kWrite, kRead, kReadEnd };
  Kind kind;
  int at = 0;           // barrier or buffer
  unsigned parity = 0;  // of kWait, as the code computed it
  int completions = 0;  // of kWait: how often the barrier must have completed
  int content = 0;
  int barrier = 0;  // of kLoad
};
using Program = std::vector<Step>;

// What could be wrong with the text, to see that the search notices.
enum class Fault {
  kNone,
  kKeysNotAwaited,     // copies over keys that are still read
  kKeysReleasedEarly,  // before they are read
  kQueriesNotAwaited,
  kEntryNotAwaited,     // P over what is still read
  kValuesUnheard,       // copies without waiting for an entry
  kEntryReleasedEarly,  // before the product has read it
  kOneMaximaBuffer,
};

struct Scenario {
  std::vector<DecodeItem> items;
  std::vector<std::vector<bool>> keeps;  // [item][tile - begin]
  bool asks = true;                      // whether tiles may be skipped
  bool takes_queries = true;
};
inline int content_of(int item, int tile) { return 1 + item * 100 + (tile + 3); }
constexpr int kWork = -3;  // in place of a tile: queries, or the item itself

struct Recorder {
  const Scenario& scenario;
  Fault fault;
  int role;
  Program program = {};
  int item = 0;
  int queries_done = 0, keys_done = 0, entries_done = 0, votes_done = 0;
  int first_entry = 0;  // of the item

  int warp() const { return role - kFirstScorer; }
  void wait(int barrier, unsigned parity, int completions) {
    program.push_back({Step::kWait, barrier, parity, completions});
  }
  void arrive(int barrier) { program.push_back({Step::kArrive, barrier}); }
  void load(int buffer, int barrier, int content) {
    program.push_back({Step::kLoad, buffer, 0, 0, content, barrier});
  }
  void write(int buffer, int content) { program.push_back({Step::kWrite, buffer, 0, 0, content}); }
  void read(int buffer, int content) { program.push_back({Step::kRead, buffer, 0, 0, content}); }
  void read_end(int buffer) { program.push_back({Step::kReadEnd, buffer}); }

  // An item's n-th entry: a kept tile, or the end of a chunk or of the piece.
  std::int32_t entry_of(int n) const {
    const DecodeItem& work = scenario.items[static_cast<std::size_t>(item)];
    for (std::int32_t tile = work.tiles.begin; tile < work.tiles.end; ++tile) {
      if (keeps(tile) && n-- == 0) return tile;
      const bool last = tile + 1 == work.tiles.end;
      if ((last || tile % 32 == 31) && n-- == 0) return last ? kEndOfPiece : kEndOfChunk;
    }
    return kEndOfPiece;
  }
  bool keeps(std::int32_t tile) const {
    const DecodeItem& work = scenario.items[static_cast<std::size_t>(item)];
    return !scenario.asks || scenario.keeps[static_cast<std::size_t>(item)]
                                           [static_cast<std::size_t>(tile - work.tiles.begin)];
  }

  // Keys' warp.
  template <class Place>
  void wait_queries_free(const Place& at) {
    CHECK(static_cast<int>(at.stage) == queries_done % kQueryStages);
    if (fault == Fault::kQueriesNotAwaited) return;
    wait(kQueriesFree + static_cast<int>(at.stage), at.parity ^ 1, queries_done / kQueryStages);
  }
  template <class Place>
  void load_queries(const Place& at, const DecodeItem&) {
    load(kQueries + static_cast<int>(at.stage), kQueriesFull + static_cast<int>(at.stage),
         content_of(item, kWork));
    ++queries_done;
  }
  template <class Place>
  void wait_keys_free(const Place& at) {
    CHECK(static_cast<int>(at.stage) == keys_done % kKeyStages);
    if (fault == Fault::kKeysNotAwaited) return;
    wait(kKeysFree + static_cast<int>(at.stage), at.parity ^ 1, keys_done / kKeyStages);
  }
  template <class Place>
  void load_keys(const Place& at, const DecodeItem&, int tile) {
    load(kKeys + static_cast<int>(at.stage), kKeysFull + static_cast<int>(at.stage),
         content_of(item, tile));
    ++keys_done;
  }

  // Values' warp.
  bool may_skip_tiles() const { return scenario.asks; }
  template <class Place>
  void wait_entry(const Place& at) {
    CHECK(static_cast<int>(at.stage) == entries_done % kEntries);
    if (fault == Fault::kValuesUnheard && role == kValuesRole) return;
    wait(kEntryFull + static_cast<int>(at.stage), at.parity, entries_done / kEntries + 1);
  }
  template <class Place>
  std::int32_t entry_tile(const Place& at) {
    const std::int32_t tile = entry_of(entries_done - first_entry);
    if (fault == Fault::kValuesUnheard && role == kValuesRole) return tile;
    const int header = kProbabilities + static_cast<int>(at.stage) * kTeam;  // with warp 0's part
    read(header, content_of(item, tile));
    read_end(header);
    return tile;
  }
  template <class Place>
  void wait_entry_free(const Place& at) {
    CHECK(static_cast<int>(at.stage) == entries_done % kEntries);
    if (fault == Fault::kEntryNotAwaited && role != kValuesRole) return;
    wait(kEntryFree + static_cast<int>(at.stage), at.parity ^ 1, entries_done / kEntries);
  }
  template <class Place>
  void pass_values(const Place& at) {
    const std::int32_t end = entry_of(entries_done - first_entry);
    CHECK(end < 0);
    write(kValues + static_cast<int>(at.stage), content_of(item, end));
    arrive(kValuesFull + static_cast<int>(at.stage));
    ++entries_done;
  }
  template <class Place>
  void load_values(const Place& at, const DecodeItem&, int tile) {
    CHECK(tile == entry_of(entries_done - first_entry));
    load(kValues + static_cast<int>(at.stage), kValuesFull + static_cast<int>(at.stage),
         content_of(item, tile));
    ++entries_done;
  }

  // Scores' warps.
  template <class Place>
  void wait_queries(const Place& at) {
    wait(kQueriesFull + static_cast<int>(at.stage), at.parity, queries_done / kQueryStages + 1);
  }
  bool takes_queries() const { return scenario.takes_queries; }
  template <class Place>
  void take_queries(const Place& at) {
    read(kQueries + static_cast<int>(at.stage), content_of(item, kWork));
  }
  template <class Place>
  void release_queries(const Place& at) {
    CHECK(static_cast<int>(at.stage) == queries_done % kQueryStages);
    read_end(kQueries + static_cast<int>(at.stage));
    arrive(kQueriesFree + static_cast<int>(at.stage));
    ++queries_done;
  }
  template <class Place>
  void wait_keys(const Place& at) {
    wait(kKeysFull + static_cast<int>(at.stage), at.parity, keys_done / kKeyStages + 1);
  }
  std::int32_t tile = 0;
  template <class Queries, class Place>
  void compute_scores(const Queries&, const Place& at) {
    if (fault == Fault::kKeysReleasedEarly) arrive(kKeysFree + static_cast<int>(at.stage));
    read(kKeys + static_cast<int>(at.stage), content_of(item, tile));
  }
  template <class Place>
  void release_keys(const Place& at) {
    read_end(kKeys + static_cast<int>(at.stage));
    if (fault != Fault::kKeysReleasedEarly) arrive(kKeysFree + static_cast<int>(at.stage));
    ++keys_done;
  }
  bool decide(const DecodeItem&, std::int32_t which) {
    CHECK(which == tile);
    const int buffer = fault == Fault::kOneMaximaBuffer ? 0 : votes_done % 2;
    write(kMaxima + buffer * kTeam + warp(), content_of(item, which));
    arrive(kVote);
    wait(kVote, static_cast<unsigned>(votes_done % 2), votes_done + 1);
    for (int w = 0; w < kTeam; ++w) read(kMaxima + buffer * kTeam + w, content_of(item, which));
    for (int w = 0; w < kTeam; ++w) read_end(kMaxima + buffer * kTeam + w);
    ++votes_done;
    ++tile;
    return keeps(which);
  }
  template <class Place>
  void publish(const Place& at, std::int32_t which) {
    CHECK(which == entry_of(entries_done - first_entry));
    write(kProbabilities + static_cast<int>(at.stage) * kTeam + warp(), content_of(item, which));
    arrive(kEntryFull + static_cast<int>(at.stage));
    ++entries_done;
  }
  template <class Place>
  void publish_end(const Place& at, std::int32_t end) {
    publish(at, end);
  }

  // Values' team.
  template <class Place>
  void correct(const Place&) {}
  template <class Place>
  void wait_values(const Place& at) {
    wait(kValuesFull + static_cast<int>(at.stage), at.parity, entries_done / kEntries + 1);
  }
  template <class Place>
  void add_product(const Place& at) {
    const int stage = static_cast<int>(at.stage);
    const int content = content_of(item, entry_of(entries_done - first_entry));
    if (fault == Fault::kEntryReleasedEarly) arrive(kEntryFree + stage);
    read(kValues + stage, content);
    for (int w = 0; w < kTeam; ++w) read(kProbabilities + stage * kTeam + w, content);
  }
  template <class Place>
  void finish_chunk(const Place& at, const DecodeItem&, bool last) {
    CHECK(last == (entry_of(entries_done - first_entry) == kEndOfPiece));
    add_product(at);
  }
  template <class Place>
  void release_entry(const Place& at) {
    const int stage = static_cast<int>(at.stage);
    read_end(kValues + stage);
    for (int w = 0; w < kTeam; ++w) read_end(kProbabilities + stage * kTeam + w);
    if (fault != Fault::kEntryReleasedEarly) arrive(kEntryFree + stage);
    ++entries_done;
  }
};

// The programs, with the exchange of work around them that decode_sm90.cuh has.
inline std::vector<Program> programs_of(const Scenario& scenario, Fault fault) {
  std::vector<Program> programs;
  for (int role = 0; role < kRoles; ++role) {
    Recorder io{scenario, fault, role};
    RingPlace<kQueryStages> queries;
    RingPlace<kKeyStages> keys;
    RingPlace<kEntries> entries;
    RingPlace<kItems> slot;
    for (int i = 0; i < static_cast<int>(scenario.items.size()); ++i) {
      const DecodeItem& item = scenario.items[static_cast<std::size_t>(i)];
      const int stage = static_cast<int>(slot.stage);
      io.item = i;
      io.tile = item.tiles.begin;
      io.first_entry = io.entries_done;
      if (role == kKeysRole) {
        io.wait(kItemFree + stage, slot.parity ^ 1, i / kItems);
        io.write(kItem + stage, content_of(i, kWork));
        io.arrive(kItemFull + stage);
        slot.advance();
        fetch_decode_keys(io, item, queries, keys);
        continue;
      }
      io.wait(kItemFull + stage, slot.parity, i / kItems + 1);
      io.read(kItem + stage, content_of(i, kWork));
      if (role == kValuesRole) {
        io.read_end(kItem + stage);
        io.arrive(kItemFree + stage);
        slot.advance();
        fetch_decode_values(io, item, entries);
        continue;
      }
      if (role < kFirstAdder)
        score_tiles(io, item, queries, keys, entries);
      else
        add_values(io, item, entries);
      io.read_end(kItem + stage);
      io.arrive(kItemFree + stage);
      slot.advance();
    }
    programs.push_back(io.program);
  }
  return programs;
}

}  // namespace assay::attention_kernels::decode_testing
