// A profile run tile by tile in exact arithmetic: output bits, LSE, and the decision of every unit
// and tile with its margin. Decides the order of what a unit does (SPEC ATT-5); how each step
// rounds is softmax.hpp and vote.hpp, what is chosen is the profile.
//
//   ASSAY_TRY(const Profile* profile, find_profile("assay-prefill-sm90"));
//   ASSAY_TRY(Emulation result, emulate(*profile, problem, {.threads = 2}));
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <span>
#include <vector>

#include "model/attention/profile.hpp"
#include "model/attention/truth.hpp"
#include "model/attention/vote.hpp"

namespace assay::attention {

// What became of one tile; the numbers are those of files (SPEC ATT-5.5).
enum class Decision : std::uint8_t { kNotVisited = 0, kKept = 1, kSkipped = 2, kPartlyZeroed = 3 };

// The voting row with the largest margin decided: it kept the tile, or was the last to give in.
struct TileTrace {
  std::int32_t tile = 0;  // keys [tile * kv_tile, (tile + 1) * kv_tile)
  Decision decision = Decision::kNotVisited;
  bool asked = false;       // false: kept without a vote (first tile, or no threshold)
  bool near_tie = false;    // roundings could turn the decision (SPEC ATT-5.6)
  std::int32_t row = 0;     // of the unit
  F32 local_max{0};         // of that row, in the profile's unit of scores
  F32 running_max{0};       // before the tile
  float margin_log2 = 0;    // log2(exp(difference) / lambda); negative: agrees to skip
  std::bitset<128> zeroed;  // of kPartlyZeroed: the groups of zeroing_rows rows that wrote zeros
};

struct Unit {
  std::size_t request = 0;
  int head = 0;   // query head, or key head where a unit packs a group
  int index = 0;  // rows [index * unit_rows, ...) of it
};

struct UnitRow {
  std::int32_t token = 0;
  int q_head = 0;
  F32 lse{0};  // in the profile's LseForm; -inf for a row with nothing; 0 if it has none
};

struct UnitResult {
  Unit unit;
  std::vector<UnitRow> rows;       // those within q_len
  std::vector<std::uint16_t> out;  // [rows, v_dim], bits of out_dtype
  std::vector<TileTrace> tiles;    // visited tiles, in order of visit
};

// How one unit is run other than by its own votes alone: to ask what follows from the decisions
// that a kernel took, which at near-ties may be other ones (SPEC ATT-5.9).
struct ForcedTile {
  std::int32_t tile = 0;
  bool skip = false;  // else kept, without zeroed groups
};
struct RunOptions {
  std::span<const ForcedTile> forced;  // taken instead of the vote where a tile is asked
  double slack_log2 = 0;               // margins within so much more are near-ties too
};

struct UnitView;  // unit_view.hpp

// A profile and a problem made ready. Holds a reference to the problem. Thread-safe.
class Emulator {
 public:
  // Errors: those of check() and resolve().
  static Expected<Emulator> make(const Profile& profile, const Problem& problem);

  const Resolved& resolved() const { return resolved_; }
  const Problem& problem() const { return *problem_; }
  // All units, also those that hold padding rows only if the profile computes them.
  const std::vector<Unit>& units() const { return units_; }
  std::size_t unit_of(std::size_t request, int q_head, std::int32_t row) const;
  // The row's index among those that units of its head are cut from (SPEC ATT-1.3).
  int packed_row_of(int q_head, std::int32_t row) const;
  // Computes one unit. Memory: one tile of keys and values, and the unit's rows.
  UnitResult run(const Unit& unit, const RunOptions& options = {}) const;
  // What run() computes with, for other executors of the same text (SPEC ATT-5.10). Valid as long
  // as this, the problem and the options' tiles are.
  UnitView view(const Unit& unit, const RunOptions& options = {}) const;
  std::size_t requests() const { return lambdas_.size(); }
  const Lambda& lambda(std::size_t request) const { return lambdas_[request]; }

 private:
  Emulator() = default;
  const Problem* problem_ = nullptr;
  Resolved resolved_;
  Scale scale_;
  std::vector<Lambda> lambdas_;
  std::vector<Unit> units_;
  std::vector<std::size_t> first_unit_;  // [request]
};

// How often tiles were visited, asked about, skipped and partly zeroed, near-ties among the asked.
struct Counters {
  std::int64_t visited = 0, asked = 0, skipped = 0, partly_zeroed = 0, near_ties = 0;
};

struct Emulation {
  Grade grade = Grade::kDecisions;
  LseForm lse_form = LseForm::kNone;
  int q_heads = 0;
  int v_dim = 0;
  std::vector<std::uint16_t> out;  // [total rows, q_heads, v_dim], bits of out_dtype
  std::vector<F32> lse;            // [total rows, q_heads]
  std::vector<UnitResult> units;   // rows and out moved out of them
  Counters counters;
};

// Puts units' results, from any threads and in any order, into one emulation. Memory: the outputs,
// and a trace for every tile visited.
class EmulationParts {
 public:
  explicit EmulationParts(const Emulator& emulator);  // must outlive this
  // `index` is that of Emulator::units(); each is added once.
  void add(std::size_t index, UnitResult unit);
  Emulation finish() &&;

 private:
  const Emulator& emulator_;
  std::vector<std::int64_t> first_row_;  // [request]
  Emulation result_;
};

struct EmulateOptions {
  int threads = 1;  // decides no bit (SPEC ATT-5.7)
};
Expected<Emulation> emulate(const Profile& profile, const Problem& problem,
                            const EmulateOptions& options = {});

// The decisions as files hold them: [request, unit head, unit, tile], 0 where nothing was visited.
struct DecisionMap {
  std::array<int, 4> extents{};
  std::vector<std::uint8_t> cells;
};
DecisionMap decision_map(const Emulator& emulator, const Emulation& emulation);

// The pairs that an emulation computed with: for truth(). Both arguments must outlive it.
Kept kept_pairs(const Emulator& emulator, const Emulation& emulation);

}  // namespace assay::attention
