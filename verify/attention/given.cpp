// See given.hpp.
#include "verify/attention/given.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace assay::verify {

using namespace assay::attention;

std::array<int, 3> unit_extents(const Emulator& emulator) {
  std::array<int, 3> extents{static_cast<int>(emulator.requests()), 0, 0};
  for (const Unit& unit : emulator.units()) {
    extents[1] = std::max(extents[1], unit.head + 1);
    extents[2] = std::max(extents[2], unit.index + 1);
  }
  return extents;
}

void count_tiles(const std::vector<TileTrace>& tiles, Counters& counters) {
  for (const TileTrace& tile : tiles) {
    ++counters.visited;
    counters.asked += tile.asked;
    counters.skipped += tile.decision == Decision::kSkipped;
    counters.partly_zeroed += tile.decision == Decision::kPartlyZeroed;
    counters.near_ties += tile.near_tie;
  }
}

Given::Given(const Problem& problem, const AttentionOutputs& outputs)
    : problem_(problem), outputs_(outputs) {
  first_row_.push_back(0);
  for (const Request& r : problem.requests) first_row_.push_back(first_row_.back() + r.q_len);
}

Status Given::check_sizes(const Emulator& emulator) const {
  const auto rows =
      static_cast<std::uint64_t>(first_row_.back()) * static_cast<std::uint64_t>(problem_.q_heads);
  const std::uint64_t elements = rows * static_cast<std::uint64_t>(problem_.v_dim);
  if (outputs_.out.size() != elements)
    return bad_input(fmt::format("out has {} elements; {} rows of {} heads with v_dim {} are {}",
                                 outputs_.out.size(), first_row_.back(), problem_.q_heads,
                                 problem_.v_dim, elements));
  if (!outputs_.lse.empty() && outputs_.lse.size() != rows)
    return bad_input(fmt::format("lse has {} elements; {} rows of {} heads are {}",
                                 outputs_.lse.size(), first_row_.back(), problem_.q_heads, rows));
  if (outputs_.decision == nullptr) return Done{};
  const std::array<int, 4>& got = outputs_.decision->extents;
  const std::array<int, 3> units = unit_extents(emulator);
  if (!std::equal(units.begin(), units.end(), got.begin()) || got[3] < 0)
    return bad_input(
        fmt::format("decision is [{}, {}, {}, {}]; profile {} decides for [{}, {}, {}] requests, "
                    "heads and units of {} rows",
                    got[0], got[1], got[2], got[3], emulator.resolved().profile->name, units[0],
                    units[1], units[2], emulator.resolved().tile.unit_rows));
  std::uint64_t cells = 1;
  for (const int extent : got) cells *= static_cast<std::uint64_t>(extent);
  if (outputs_.decision->cells.size() != cells)
    return bad_input(fmt::format("decision has {} cells; its extents are {}",
                                 outputs_.decision->cells.size(), cells));
  return Done{};
}

std::uint8_t Given::cell(const Unit& unit, std::int32_t tile) const {
  const DecisionMap& map = *outputs_.decision;
  if (tile >= map.extents[3]) return 0;
  std::size_t at = unit.request;
  at = at * static_cast<std::size_t>(map.extents[1]) + static_cast<std::size_t>(unit.head);
  at = at * static_cast<std::size_t>(map.extents[2]) + static_cast<std::size_t>(unit.index);
  return map.cells[at * static_cast<std::size_t>(map.extents[3]) + static_cast<std::size_t>(tile)];
}

ElementFormat Given::format() const {
  return problem_.out_dtype == Dtype::kF16 ? ElementFormat::kF16 : ElementFormat::kBf16;
}

Given::Row Given::row_at(std::uint64_t index) const {
  const auto heads = static_cast<std::uint64_t>(problem_.q_heads);
  const auto row = static_cast<std::int64_t>(index / heads);
  const auto behind = std::upper_bound(first_row_.begin(), first_row_.end(), row);
  const auto request = static_cast<std::size_t>(behind - first_row_.begin()) - 1;
  return {request, row - first_row_[request], static_cast<int>(index % heads)};
}

void Given::compare_rows(const UnitResult& result, OutputParts parts,
                         UnitDifference& difference) const {
  const auto dim = static_cast<std::size_t>(problem_.v_dim);
  const auto note = [](std::int64_t& count, std::uint64_t& first, Values& values,
                       std::uint64_t place, Values now) {
    if (count++ > 0 && first < place) return;
    first = place;
    values = now;
  };
  for (std::size_t i = 0; i < result.rows.size(); ++i) {
    const UnitRow& row = result.rows[i];
    const auto place = static_cast<std::uint64_t>(
        (first_row_[result.unit.request] + row.token) * problem_.q_heads + row.q_head);
    if (parts.lse && outputs_.lse[place].bits != row.lse.bits)
      note(difference.lse, difference.first_lse, difference.lse_values, place,
           {ElementFormat::kF32, outputs_.lse[place].bits, row.lse.bits});
    if (!parts.out) continue;
    const std::uint16_t* const got = outputs_.out.data() + place * dim;
    const std::uint16_t* const expected = result.out.data() + i * dim;
    if (std::memcmp(got, expected, dim * sizeof *got) == 0) {
      difference.ulp.add_equal(static_cast<std::int64_t>(dim));
      continue;
    }
    for (std::size_t d = 0; d < dim; ++d) {
      difference.ulp.add(format(), got[d], expected[d]);
      if (got[d] != expected[d])
        note(difference.out, difference.first_out, difference.out_values, place * dim + d,
             {format(), got[d], expected[d]});
    }
  }
}

void Given::compare_cells(const UnitResult& result, UnitDifference& difference) const {
  std::int32_t end = outputs_.decision->extents[3];
  for (const TileTrace& tile : result.tiles) end = std::max(end, tile.tile + 1);
  std::vector<const TileTrace*> visited(static_cast<std::size_t>(end), nullptr);
  for (const TileTrace& tile : result.tiles) visited[static_cast<std::size_t>(tile.tile)] = &tile;
  for (std::int32_t tile = 0; tile < end; ++tile) {
    const TileTrace* const trace = visited[static_cast<std::size_t>(tile)];
    const auto expected =
        static_cast<std::uint8_t>(trace ? trace->decision : Decision::kNotVisited);
    const std::uint8_t got = cell(result.unit, tile);
    if (got == expected || difference.cells++ > 0) continue;
    difference.first_tile = tile;
    difference.got_cell = got;
    difference.expected_cell = expected;
    if (trace) difference.trace = *trace;
  }
}

UnitDifference Given::compare(const UnitResult& result, OutputParts parts) const {
  UnitDifference difference;
  if (parts.out || parts.lse) compare_rows(result, parts, difference);
  if (parts.decision) compare_cells(result, difference);
  return difference;
}

Given::Stray Given::stray_cells(const Emulator& emulator) const {
  Stray stray;
  // Without tiles there are no cells, and the extents of units may be of any size.
  if (outputs_.decision == nullptr || outputs_.decision->extents[3] == 0) return stray;
  const DecisionMap& map = *outputs_.decision;
  const auto tiles = static_cast<std::size_t>(map.extents[3]);
  const auto heads = static_cast<std::size_t>(map.extents[1]);
  const auto units = static_cast<std::size_t>(map.extents[2]);
  std::vector<bool> exists(map.cells.size() / tiles);
  for (const Unit& unit : emulator.units())
    exists[(unit.request * heads + static_cast<std::size_t>(unit.head)) * units +
           static_cast<std::size_t>(unit.index)] = true;
  for (std::size_t i = 0; i < exists.size(); ++i) {
    if (exists[i]) continue;
    for (std::size_t tile = 0; tile < tiles; ++tile) {
      const std::uint8_t cell = map.cells[i * tiles + tile];
      if (cell == 0 || stray.count++ > 0) continue;
      stray.unit = {i / units / heads, static_cast<int>(i / units % heads),
                    static_cast<int>(i % units)};
      stray.tile = static_cast<std::int32_t>(tile);
      stray.cell = cell;
    }
  }
  return stray;
}

}  // namespace assay::verify
