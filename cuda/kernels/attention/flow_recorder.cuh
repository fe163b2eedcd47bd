// For the tests of flow.hpp: recorders that turn each role of a small block, or of a cluster of
// two, into a program of waits, arrivals, copies and reads. Beside what the code computes, every
// step says what the test itself counted: how often a barrier must have completed, which tile a
// stage must hold. Host only.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/kernels/attention/flow.hpp"
#include "model/core/testing.hpp"

namespace assay::attention_kernels::testing {

constexpr int kUnits = 2;
constexpr int kMaxBlocks = 2;  // of a cluster
constexpr int kKeyStages = 2, kValueStages = 2;
using SmallRings = Rings<kKeyStages, kValueStages>;
using SmallWork = Work<kUnits>;

// Barriers and buffers by number, those of block b b times their number later. A stage is filled in
// two parts, by one block or by each of a cluster's.
enum Barrier : int {
  kQueriesFull = 0,
  kQueriesFree = kQueriesFull + kUnits,
  kKeysFull = kQueriesFree + kUnits,
  kKeysFree = kKeysFull + kKeyStages,
  kValuesFull = kKeysFree + kKeyStages,
  kValuesFree = kValuesFull + kValueStages,
  kTransposedFull = kValuesFree + kValueStages,
  kTransposedFree = kTransposedFull + kValueStages,
  kWorkFull = kTransposedFree + kValueStages,
  kWorkFree = kWorkFull + 2,
  kNextFull = kWorkFree + 2,
  kBarriers = kNextFull + 2,
};
enum Buffer : int {
  kQueries = 0,
  kKeys = kUnits,
  kValues = kKeys + 2 * kKeyStages,
  kTransposed = kValues + 2 * kValueStages,
  kNext = kTransposed + kValueStages,
  kWork = kNext + 2,
  kBuffers = kWork + 2
};

struct Step {
  enum Kind {
    kWait,
    kArrive,
    kExpect,  // an arrival, and so many copies that the phase waits for
    kCopy,
    kWrite,  // at once
    kLook,   // likewise
    kRead,
    kReadEnd,
    kReadAny,  // whatever the buffer holds
    kMove      // ends that: the content of `barrier` becomes that of `at`
  };
  Kind kind;
  int at = 0;           // barrier or buffer
  unsigned parity = 0;  // of kWait, as the code computed it
  int completions = 0;  // of kWait: how often the barrier must have completed, counted by the test
  int content = 0;  // of kCopy, kWrite and kRead: which tile of which work; of kExpect: how many
  int barrier = 0;  // of kCopy
};
using Program = std::vector<Step>;

// What could be wrong with the text, to see that the search notices.
enum class Fault {
  kNone,
  kKeysNotAwaited,    // copies over keys that are still read
  kReleasedUnfilled,  // values of a skipped tile are released without waiting for them
  kReleaseTooEarly,   // values released before the product has read them
  kQueriesNotAwaited,
  kTransposedNotAwaited,
  kReleasedAtHome,   // to the block's own copies only
  kSlotNotAwaited,   // the next piece is told, or published, over one that is still needed
  kSlotLeftTooSoon,  // before the end of the work, which looks at it again
};
// Products behind the next scores; products in turn, of three units; and fp8's with transposers.
enum class Kind { kPending, kInTurn, kApart };

// Pieces of work with what their units will decide.
struct Scenario {
  std::vector<SmallWork> works;
  std::vector<std::vector<bool>> keeps[kMaxBlocks * kUnits];  // [work][tile - all.begin]
};

inline int content_of(int work, int tile) { return 1 + work * 100 + tile; }

struct Recorder {
  Program program;
  Fault fault = Fault::kNone;
  Kind kind = Kind::kPending;
  const Scenario* scenario = nullptr;
  int blocks = 1, block = 0;
  int unit = 0;
  int work = 0;                        // being done
  int keys_done = 0, values_done = 0;  // stages passed, over all work
  int queries_done[kUnits] = {};

  static int barrier_of(int which, int barrier) { return which * kBarriers + barrier; }
  static int buffer_of(int which, int buffer) { return which * kBuffers + buffer; }
  void wait(int barrier, unsigned parity, int completions) {
    program.push_back({Step::kWait, barrier_of(block, barrier), parity, completions});
  }
  void arrive_at(int which, int barrier) {
    program.push_back({Step::kArrive, barrier_of(which, barrier)});
  }
  void arrive(int barrier) { arrive_at(block, barrier); }
  void arrive_everywhere(int barrier) {
    for (int b = 0; b < blocks; ++b)
      if (b == block || fault != Fault::kReleasedAtHome) arrive_at(b, barrier);
  }
  void expect(int barrier, int copies) {
    program.push_back({Step::kExpect, barrier_of(block, barrier), 0, 0, copies});
  }
  void copy_to(int which, int buffer, int barrier, int content) {
    program.push_back(
        {Step::kCopy, buffer_of(which, buffer), 0, 0, content, barrier_of(which, barrier)});
  }
  // Both parts of a stage; in a cluster one of them, to both blocks.
  void load(int buffer, int barrier, int content) {
    expect(barrier, 2);
    for (int part = 0; part < 2; ++part)
      for (int b = 0; b < blocks; ++b)
        if (blocks == 1 || part == block) copy_to(b, buffer + part, barrier, content);
  }
  void read(int buffer, int content) {
    program.push_back({Step::kRead, buffer_of(block, buffer), 0, 0, content});
  }
  void read_end(int buffer) { program.push_back({Step::kReadEnd, buffer_of(block, buffer)}); }
  void read_stage(int buffer, int content) {
    for (int part = 0; part < 2; ++part) read(buffer + part, content);
  }
  void read_stage_end(int buffer) {
    for (int part = 0; part < 2; ++part) read_end(buffer + part);
  }
  const SmallWork& current() const { return scenario->works[static_cast<std::size_t>(work)]; }
  bool bit(const std::vector<std::vector<bool>>& table, int at) const {
    return table[static_cast<std::size_t>(work)]
                [static_cast<std::size_t>(at - current().all.begin)];
  }

  // Keys' warp.
  void wait_keys_free(RingPlace<kKeyStages> at) {
    CHECK(static_cast<int>(at.stage) == keys_done % kKeyStages);
    if (fault == Fault::kKeysNotAwaited) return;
    wait(kKeysFree + static_cast<int>(at.stage), at.parity ^ 1, keys_done / kKeyStages);
  }
  void load_keys(RingPlace<kKeyStages> at, const SmallWork&, int which) {
    const int stage = static_cast<int>(at.stage);
    load(kKeys + 2 * stage, kKeysFull + stage, content_of(work, which));
    ++keys_done;
  }
  void wait_queries_free(int which, std::uint32_t parity) {
    if (fault == Fault::kQueriesNotAwaited) return;
    wait(kQueriesFree + which, parity ^ 1, queries_done[which]);
  }
  void load_queries(int which, const SmallWork&) {
    expect(kQueriesFull + which, 1);
    copy_to(block, kQueries + which, kQueriesFull + which, content_of(work, 99));
    ++queries_done[which];
  }

  // Values' warp.
  void wait_values_free(RingPlace<kValueStages> at) {
    wait(kValuesFree + static_cast<int>(at.stage), at.parity ^ 1, values_done / kValueStages);
  }
  int first_value = 0;
  void load_values(RingPlace<kValueStages> at, const SmallWork&, int which) {
    const int stage = static_cast<int>(at.stage);
    load(kValues + 2 * stage, kValuesFull + stage, content_of(work, which));
    ++values_done;
  }

  // Units.
  Range all() const { return current().all; }
  void wait_queries(std::uint32_t parity) {
    wait(kQueriesFull + unit, parity, ++queries_done[unit]);
    read(kQueries + unit, content_of(work, 99));
  }
  void take_queries() {}
  void wait_keys(RingPlace<kKeyStages> at) {
    wait(kKeysFull + static_cast<int>(at.stage), at.parity, keys_done / kKeyStages + 1);
  }
  void issue_scores(RingPlace<kKeyStages> at) {
    const int which = current().all.begin + keys_done - first_value;
    read_stage(kKeys + 2 * static_cast<int>(at.stage), content_of(work, which));
  }
  void wait_scores() {}
  void wait_scores_alone() {}
  void release_keys(RingPlace<kKeyStages> at) {
    CHECK(static_cast<int>(at.stage) == keys_done % kKeyStages);
    read_stage_end(kKeys + 2 * static_cast<int>(at.stage));
    arrive_everywhere(kKeysFree + static_cast<int>(at.stage));
    ++keys_done;
  }
  void release_queries() {
    read_end(kQueries + unit);
    arrive(kQueriesFree + unit);
  }
  bool decide(const TileRanges& mine, int which) const {
    CHECK(mine.visited.contains(which));
    return which == mine.visited.begin || bit(scenario->keeps[block * kUnits + unit], which);
  }
  void exponentials() {}
  void narrow() {}
  void wait_values(RingPlace<kValueStages> at) {
    CHECK(static_cast<int>(at.stage) == values_done % kValueStages);
    if (fault != Fault::kReleasedUnfilled) await_values(at);
  }
  // Where units find values.
  int values_full() const { return kind == Kind::kApart ? kTransposedFull : kValuesFull; }
  void free_values(int stage) {
    if (kind == Kind::kApart)
      arrive(kTransposedFree + stage);
    else
      arrive_everywhere(kValuesFree + stage);
  }
  void await_values(RingPlace<kValueStages> at) {
    wait(values_full() + static_cast<int>(at.stage), at.parity, values_done / kValueStages + 1);
  }
  void add_product(RingPlace<kValueStages> at) { issue_product(at); }
  void issue_product(RingPlace<kValueStages> at) {
    if (fault == Fault::kReleasedUnfilled) await_values(at);  // waits only where it reads
    const int which = current().all.begin + values_done - first_value;
    const int stage = static_cast<int>(at.stage);
    if (fault == Fault::kReleaseTooEarly) free_values(stage);
    if (kind == Kind::kApart)
      read(kTransposed + stage, content_of(work, which));
    else
      read_stage(kValues + 2 * stage, content_of(work, which));
    product_read = true;
  }
  bool product_read = false;
  void wait_product() {}

  // Transposers.
  void wait_fetched(RingPlace<kValueStages> at) {
    wait(kValuesFull + static_cast<int>(at.stage), at.parity, values_done / kValueStages + 1);
  }
  void wait_transposed_free(RingPlace<kValueStages> at) {
    if (fault == Fault::kTransposedNotAwaited) return;
    wait(kTransposedFree + static_cast<int>(at.stage), at.parity ^ 1, values_done / kValueStages);
  }
  void transpose(RingPlace<kValueStages> at) {
    const int stage = static_cast<int>(at.stage);
    for (int part = 0; part < 2; ++part)
      program.push_back({Step::kReadAny, buffer_of(block, kValues + 2 * stage + part)});
    for (int part = 0; part < 2; ++part)
      program.push_back({Step::kMove, buffer_of(block, kTransposed + stage), 0, 0, 0,
                         buffer_of(block, kValues + 2 * stage + part)});
  }
  void release_fetched(RingPlace<kValueStages> at) {
    arrive_everywhere(kValuesFree + static_cast<int>(at.stage));
  }
  void publish_transposed(RingPlace<kValueStages> at) {
    arrive(kTransposedFull + static_cast<int>(at.stage));
    ++values_done;
  }
  void release_values(RingPlace<kValueStages> at) {
    const int stage = static_cast<int>(at.stage);
    CHECK(stage == values_done % kValueStages);
    if (product_read && kind == Kind::kApart) read_end(kTransposed + stage);
    if (product_read && kind != Kind::kApart) read_stage_end(kValues + 2 * stage);
    if (!(fault == Fault::kReleaseTooEarly && product_read)) free_values(stage);
    product_read = false;
    ++values_done;
  }
};

enum Role { kKeysRole, kValuesRole, kTransposeRole, kFirstUnit, kRoles = kFirstUnit + kUnits };

// How the keys' warp learns of a piece of work and publishes it, as run_keys() does.
inline void publish_work(Recorder& io, int slot, unsigned parity) {
  const bool told = io.blocks > 1 && io.block > 0;
  if (told) {
    io.expect(kNextFull + slot, 1);
    io.wait(kNextFull + slot, parity, io.work / 2 + 1);
    io.read(kNext + slot, content_of(io.work, 98));
    io.read_end(kNext + slot);
    io.arrive_at(0, kWorkFree + slot);
  }
  if (io.fault != Fault::kSlotNotAwaited) io.wait(kWorkFree + slot, parity ^ 1, io.work / 2);
  if (io.blocks > 1 && !told)
    io.copy_to(1, kNext + slot, kNextFull + slot, content_of(io.work, 98));
  io.program.push_back(
      {Step::kWrite, Recorder::buffer_of(io.block, kWork + slot), 0, 0, content_of(io.work, 97)});
  io.arrive(kWorkFull + slot);
}

// The program of one role, with the exchange of work around it that prefill_sm90.cuh has.
inline Program program_of(Recorder io, int role) {
  SmallRings rings;
  std::uint32_t q_parity[kUnits] = {};
  int tiles = 0;  // of the work before
  io.unit = role - kFirstUnit;
  for (int w = 0; w < static_cast<int>(io.scenario->works.size()); ++w) {
    const SmallWork& work = io.scenario->works[static_cast<std::size_t>(w)];
    const int slot = w % 2;
    const unsigned parity = static_cast<unsigned>(w / 2 % 2);
    io.work = w;
    io.first_value = tiles;
    tiles += work.all.count();
    if (role == kKeysRole) {
      publish_work(io, slot, parity);
      fetch_keys(io, work, rings, q_parity);
      continue;
    }
    io.wait(kWorkFull + slot, parity, w / 2 + 1);
    if (role == kValuesRole) {  // has a copy
      io.program.push_back(
          {Step::kLook, Recorder::buffer_of(io.block, kWork + slot), 0, 0, content_of(w, 97)});
      io.arrive(kWorkFree + slot);
      fetch_values(io, work, rings);
      continue;
    }
    io.read(kWork + slot, content_of(w, 97));
    if (io.fault == Fault::kSlotLeftTooSoon) io.arrive(kWorkFree + slot);
    if (role == kTransposeRole) {
      transpose_values(io, work, rings);
    } else {
      const TileRanges& mine = work.unit[io.unit];
      if (io.kind == Kind::kPending)
        compute(io, mine, rings, q_parity[0]);
      else
        compute_in_turn(io, mine, rings, q_parity[0]);
    }
    io.read_end(kWork + slot);
    if (io.fault != Fault::kSlotLeftTooSoon) io.arrive(kWorkFree + slot);
  }
  return io.program;
}

// Of every role of every block.
inline std::vector<Program> programs_of(const Scenario& scenario, Fault fault, Kind kind,
                                        int blocks) {
  std::vector<Program> programs;
  for (int block = 0; block < blocks; ++block) {
    for (int role = 0; role < kRoles; ++role) {
      Recorder io;
      io.fault = fault;
      io.kind = kind;
      io.scenario = &scenario;
      io.blocks = blocks;
      io.block = block;
      const bool none = role == kTransposeRole && kind != Kind::kApart;
      programs.push_back(none ? Program{} : program_of(io, role));
    }
  }
  return programs;
}

}  // namespace assay::attention_kernels::testing
