// The outputs that a kernel gave, and one emulated unit held against them: which elements, rows and
// tiles differ, and where first. Internal to judge.cpp and ties.cpp. Decides what is compared (SPEC
// VER-21.1); nothing here is tolerated or explained.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "verify/attention/judge.hpp"

namespace assay::verify {

struct OutputParts {
  bool out = true;
  bool lse = true;
  bool decision = true;
};

// How one unit differs. Places are indices into the given tensors.
struct UnitDifference {
  std::int64_t out = 0, lse = 0, cells = 0;  // how many are wrong
  std::uint64_t first_out = 0, first_lse = 0;
  Values out_values, lse_values;
  std::int32_t first_tile = 0;
  std::uint8_t got_cell = 0, expected_cell = 0;
  std::optional<attention::TileTrace> trace;  // of the first wrong tile, if it was visited
  UlpHistogram ulp;                           // of all elements of the unit

  bool any() const { return out + lse + cells > 0; }
};

class Given {
 public:
  Given(const attention::Problem& problem, const AttentionOutputs& outputs);

  const attention::Problem& problem() const { return problem_; }
  const AttentionOutputs& outputs() const { return outputs_; }
  // Error unless the outputs have the sizes that problem and units ask for.
  Status check_sizes(const attention::Emulator& emulator) const;

  // What the mask says; 0 beyond its last tile.
  std::uint8_t cell(const attention::Unit& unit, std::int32_t tile) const;
  UnitDifference compare(const attention::UnitResult& result, OutputParts parts) const;
  // Cells of units that do not exist (a request shorter than the longest) must be 0.
  struct Stray {
    std::int64_t count = 0;  // of cells that are not
    attention::Unit unit;    // of the first
    std::int32_t tile = 0;
    std::uint8_t cell = 0;
  };
  Stray stray_cells(const attention::Emulator& emulator) const;

  struct Row {
    std::size_t request = 0;
    std::int64_t row = 0;
    int head = 0;
  };
  Row row_at(std::uint64_t index) const;  // of [total rows, q_heads]
  ElementFormat format() const;
  std::int64_t tiles() const { return outputs_.decision ? outputs_.decision->extents[3] : 0; }

 private:
  void compare_rows(const attention::UnitResult& result, OutputParts parts,
                    UnitDifference& difference) const;
  void compare_cells(const attention::UnitResult& result, UnitDifference& difference) const;

  const attention::Problem& problem_;
  const AttentionOutputs& outputs_;
  std::vector<std::int64_t> first_row_;  // [requests + 1]
};

// [requests, unit heads, units of a head] of the decisions that an emulator makes.
std::array<int, 3> unit_extents(const attention::Emulator& emulator);

void count_tiles(const std::vector<attention::TileTrace>& tiles, attention::Counters& counters);

}  // namespace assay::verify
