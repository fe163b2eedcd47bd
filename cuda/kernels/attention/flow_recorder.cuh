// For the tests of flow.hpp: recorders that turn each role of a small block into a program of
// waits, arrivals, copies and reads. Beside what the code computes, every step says what the test
// itself counted: how often a barrier must have completed, which tile a stage must hold. Host only.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/kernels/attention/flow.hpp"
#include "model/core/testing.hpp"

namespace assay::attention_kernels::testing {

constexpr int kUnits = 2;
constexpr int kKeyStages = 2, kValueStages = 2;
using SmallRings = Rings<kKeyStages, kValueStages>;
using SmallWork = Work<kUnits>;

// Barriers and buffers by number.
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
  kBarriers = kWorkFree + 2,
};
enum Buffer : int {
  kQueries = 0,
  kKeys = kUnits,
  kValues = kKeys + kKeyStages,
  kTransposed = kValues + kValueStages,
  kBuffers = kTransposed + kValueStages
};

struct Step {
  enum Kind {
    kWait,
    kArrive,
    kLoad,
    kRead,
    kReadEnd,
    kReadAny,  // whatever the buffer holds
    kMove      // ends that: the content of `barrier` becomes that of `at`
  };
  Kind kind;
  int at = 0;           // barrier or buffer
  unsigned parity = 0;  // of kWait, as the code computed it
  int completions = 0;  // of kWait: how often the barrier must have completed, counted by the test
  int content = 0;      // of kLoad and kRead: which tile of which work
  int barrier = 0;      // of kLoad
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
};
// The 16-bit kernels, or fp8's with its transposers.
enum class Kind { kPending, kApart };

// Pieces of work with what their units will decide.
struct Scenario {
  std::vector<SmallWork> works;
  std::vector<std::vector<bool>> keeps[kUnits];  // [work][tile - all.begin]
};

inline int content_of(int work, int tile) { return 1 + work * 100 + tile; }

struct Recorder {
  Program program;
  Fault fault = Fault::kNone;
  Kind kind = Kind::kPending;
  const Scenario* scenario = nullptr;
  int unit = 0;
  int work = 0;                        // being done
  int keys_done = 0, values_done = 0;  // stages passed, over all work
  int queries_done[kUnits] = {};

  void wait(int barrier, unsigned parity, int completions) {
    program.push_back({Step::kWait, barrier, parity, completions});
  }
  void arrive(int barrier) { program.push_back({Step::kArrive, barrier}); }
  void load(int buffer, int barrier, int content) {
    program.push_back({Step::kLoad, buffer, 0, 0, content, barrier});
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
    load(kKeys + stage, kKeysFull + stage, content_of(work, which));
    ++keys_done;
  }
  void wait_queries_free(int which, std::uint32_t parity) {
    if (fault == Fault::kQueriesNotAwaited) return;
    wait(kQueriesFree + which, parity ^ 1, queries_done[which]);
  }
  void load_queries(int which, const SmallWork&) {
    load(kQueries + which, kQueriesFull + which, content_of(work, 99));
    ++queries_done[which];
  }

  // Values' warp.
  void wait_values_free(RingPlace<kValueStages> at) {
    wait(kValuesFree + static_cast<int>(at.stage), at.parity ^ 1, values_done / kValueStages);
  }
  int first_value = 0;
  void load_values(RingPlace<kValueStages> at, const SmallWork&, int which) {
    const int stage = static_cast<int>(at.stage);
    load(kValues + stage, kValuesFull + stage, content_of(work, which));
    ++values_done;
  }

  // Units.
  Range all() const { return current().all; }
  void wait_queries(std::uint32_t parity) {
    wait(kQueriesFull + unit, parity, ++queries_done[unit]);
    program.push_back({Step::kRead, kQueries + unit, 0, 0, content_of(work, 99)});
  }
  void take_queries() {}
  void wait_keys(RingPlace<kKeyStages> at) {
    wait(kKeysFull + static_cast<int>(at.stage), at.parity, keys_done / kKeyStages + 1);
  }
  void issue_scores(RingPlace<kKeyStages> at) {
    const int which = current().all.begin + keys_done - first_value;
    program.push_back(
        {Step::kRead, kKeys + static_cast<int>(at.stage), 0, 0, content_of(work, which)});
  }
  void wait_scores() {}
  void wait_scores_alone() {}
  void release_keys(RingPlace<kKeyStages> at) {
    CHECK(static_cast<int>(at.stage) == keys_done % kKeyStages);
    program.push_back({Step::kReadEnd, kKeys + static_cast<int>(at.stage)});
    arrive(kKeysFree + static_cast<int>(at.stage));
    ++keys_done;
  }
  void release_queries() {
    program.push_back({Step::kReadEnd, kQueries + unit});
    arrive(kQueriesFree + unit);
  }
  bool decide(const TileRanges& mine, int which) const {
    CHECK(mine.visited.contains(which));
    return which == mine.visited.begin || bit(scenario->keeps[unit], which);
  }
  void exponentials() {}
  void narrow() {}
  void wait_values(RingPlace<kValueStages> at) {
    CHECK(static_cast<int>(at.stage) == values_done % kValueStages);
    if (fault != Fault::kReleasedUnfilled) await_values(at);
  }
  // Where units find values.
  int values_buffer() const { return kind == Kind::kApart ? kTransposed : kValues; }
  int values_full() const { return kind == Kind::kApart ? kTransposedFull : kValuesFull; }
  int values_free() const { return kind == Kind::kApart ? kTransposedFree : kValuesFree; }
  void await_values(RingPlace<kValueStages> at) {
    wait(values_full() + static_cast<int>(at.stage), at.parity, values_done / kValueStages + 1);
  }
  void add_product(RingPlace<kValueStages> at) { issue_product(at); }
  void issue_product(RingPlace<kValueStages> at) {
    if (fault == Fault::kReleasedUnfilled) await_values(at);  // waits only where it reads
    const int which = current().all.begin + values_done - first_value;
    const int stage = static_cast<int>(at.stage);
    if (fault == Fault::kReleaseTooEarly) arrive(values_free() + stage);
    program.push_back({Step::kRead, values_buffer() + stage, 0, 0, content_of(work, which)});
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
    program.push_back({Step::kReadAny, kValues + stage});
    program.push_back({Step::kMove, kTransposed + stage, 0, 0, 0, kValues + stage});
  }
  void release_fetched(RingPlace<kValueStages> at) {
    arrive(kValuesFree + static_cast<int>(at.stage));
  }
  void publish_transposed(RingPlace<kValueStages> at) {
    arrive(kTransposedFull + static_cast<int>(at.stage));
    ++values_done;
  }
  void release_values(RingPlace<kValueStages> at) {
    const int stage = static_cast<int>(at.stage);
    CHECK(stage == values_done % kValueStages);
    if (product_read) program.push_back({Step::kReadEnd, values_buffer() + stage});
    if (!(fault == Fault::kReleaseTooEarly && product_read)) arrive(values_free() + stage);
    product_read = false;
    ++values_done;
  }
};

enum Role { kKeysRole, kValuesRole, kTransposeRole, kFirstUnit, kRoles = kFirstUnit + kUnits };

// The programs, with the exchange of work around them that prefill_sm90.cuh has.
inline std::vector<Program> programs_of(const Scenario& scenario, Fault fault, Kind kind) {
  std::vector<Program> programs;
  for (int role = 0; role < kRoles; ++role) {
    Recorder io;
    io.fault = fault;
    io.kind = kind;
    if (role == kTransposeRole && kind == Kind::kPending) {
      programs.push_back({});
      continue;
    }
    io.scenario = &scenario;
    io.unit = role - kFirstUnit;
    SmallRings rings;
    std::uint32_t q_parity[kUnits] = {};
    int tiles = 0;  // of the work before
    for (int w = 0; w < static_cast<int>(scenario.works.size()); ++w) {
      const SmallWork& work = scenario.works[static_cast<std::size_t>(w)];
      const int slot = w % 2;
      const unsigned parity = static_cast<unsigned>(w / 2 % 2);
      io.work = w;
      io.first_value = tiles;
      tiles += work.all.count();
      if (role == kKeysRole) {
        io.wait(kWorkFree + slot, parity ^ 1, w / 2);
        io.arrive(kWorkFull + slot);
        fetch_keys(io, work, rings, q_parity);
        continue;
      }
      io.wait(kWorkFull + slot, parity, w / 2 + 1);
      if (role == kValuesRole) {
        io.arrive(kWorkFree + slot);
        fetch_values(io, work, rings);
        continue;
      }
      if (role == kTransposeRole) {
        transpose_values(io, work, rings);
        io.arrive(kWorkFree + slot);
        continue;
      }
      const TileRanges& mine = work.unit[io.unit];
      if (kind == Kind::kApart)
        compute_apart(io, mine, rings, q_parity[0]);
      else
        compute(io, mine, rings, q_parity[0]);
      io.arrive(kWorkFree + slot);
    }
    programs.push_back(io.program);
  }
  return programs;
}

}  // namespace assay::attention_kernels::testing
