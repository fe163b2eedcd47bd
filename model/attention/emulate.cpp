// Which units there are, and what they compute. Decides SPEC ATT-5.1 to ATT-5.7; one unit's work is
// unit_run.hpp.
#include "model/attention/emulate.hpp"

#include <algorithm>

#include "model/attention/parallel.hpp"
#include "model/attention/unit_run.hpp"

namespace assay::attention {
namespace {

int unit_heads(const Problem& p, const SkipRule& rule) {
  return rule.packing == Packing::kHeadRows ? p.q_heads : p.kv_heads;
}

int units_per_head(const Problem& p, const Resolved& r, const Request& request) {
  const int rows = request.q_len * (r.skip.packing == Packing::kHeadRows ? 1 : p.group());
  const int units = r.skip.padding_rows == PaddingRows::kVote ? r.tile.schedule_units : 1;
  const int block = r.tile.unit_rows * units;
  return (rows + block - 1) / block * units;
}

void count(const UnitResult& unit, Counters& counters) {
  for (const TileTrace& tile : unit.tiles) {
    ++counters.visited;
    counters.asked += tile.asked;
    counters.skipped += tile.decision == Decision::kSkipped;
    counters.partly_zeroed += tile.decision == Decision::kPartlyZeroed;
    counters.near_ties += tile.near_tie;
  }
}

}  // namespace

Expected<Emulator> Emulator::make(const Profile& profile, const Problem& problem) {
  ASSAY_CHECK(check(problem));
  Emulator e;
  e.problem_ = &problem;
  ASSAY_TRY(e.resolved_, resolve(profile, problem));
  e.scale_ = scale_of(problem, e.resolved_.softmax);
  const SkipRule& rule = e.resolved_.skip;
  std::int32_t longest = 0;
  for (const Request& r : problem.requests) longest = std::max(longest, r.kv_len);
  for (std::size_t i = 0; i < problem.requests.size(); ++i) {
    const Request& r = problem.requests[i];
    const std::int32_t length = rule.lambda_length == LambdaLength::kBatchMax ? longest : r.kv_len;
    e.lambdas_.push_back(lambda_of(rule, r.threshold, length, e.scale_, e.resolved_.softmax.flush));
    e.first_unit_.push_back(e.units_.size());
    const int units = units_per_head(problem, e.resolved_, r);
    for (int head = 0; head < unit_heads(problem, rule); ++head)
      for (int index = 0; index < units; ++index) e.units_.push_back({i, head, index});
  }
  return e;
}

int Emulator::packed_row_of(int q_head, std::int32_t row) const {
  const int group = problem_->group();
  return resolved_.skip.packing == Packing::kHeadRows ? row : row * group + q_head % group;
}

std::size_t Emulator::unit_of(std::size_t request, int q_head, std::int32_t row) const {
  const Problem& p = *problem_;
  const bool head_rows = resolved_.skip.packing == Packing::kHeadRows;
  const int head = head_rows ? q_head : q_head / p.group();
  const int packed = packed_row_of(q_head, row);
  const int units = units_per_head(p, resolved_, p.requests[request]);
  return first_unit_[request] +
         static_cast<std::size_t>(head * units + packed / resolved_.tile.unit_rows);
}

UnitResult Emulator::run(const Unit& unit) const {
  const UnitInput input{*problem_, resolved_, scale_, lambdas_[unit.request], unit};
  if (problem_->dtype == Dtype::kF8E4m3) return UnitRun<std::uint8_t>(input).run();
  return UnitRun<std::uint16_t>(input).run();
}

Expected<Emulation> emulate(const Profile& profile, const Problem& problem,
                            const EmulateOptions& options) {
  ASSAY_TRY(const Emulator emulator, Emulator::make(profile, problem));
  Emulation result;
  result.grade = emulator.resolved().grade;
  result.lse_form = emulator.resolved().softmax.lse;
  result.q_heads = problem.q_heads;
  result.v_dim = problem.v_dim;
  const auto dim = static_cast<std::size_t>(problem.v_dim);
  const std::int64_t total = problem.first_row(problem.requests.size());
  result.lse.resize(static_cast<std::size_t>(total * problem.q_heads));
  result.out.resize(result.lse.size() * dim);
  result.units.resize(emulator.units().size());
  std::vector<std::int64_t> first_row;
  for (std::size_t i = 0; i < problem.requests.size(); ++i)
    first_row.push_back(problem.first_row(i));
  parallel_for(
      static_cast<std::int64_t>(result.units.size()), options.threads, [&](std::int64_t at, int) {
        const auto index = static_cast<std::size_t>(at);
        UnitResult unit = emulator.run(emulator.units()[index]);
        for (std::size_t i = 0; i < unit.rows.size(); ++i) {
          const UnitRow& row = unit.rows[i];
          const std::int64_t global = first_row[unit.unit.request] + row.token;
          const auto place = static_cast<std::size_t>(global * problem.q_heads + row.q_head);
          result.lse[place] = row.lse;
          std::copy_n(unit.out.begin() + static_cast<std::ptrdiff_t>(i * dim), dim,
                      result.out.begin() + static_cast<std::ptrdiff_t>(place * dim));
        }
        unit.rows = {};
        unit.out = {};
        result.units[index] = std::move(unit);
      });
  for (const UnitResult& unit : result.units) count(unit, result.counters);
  return result;
}

DecisionMap decision_map(const Emulator& emulator, const Emulation& emulation) {
  DecisionMap map;
  map.extents[0] = static_cast<int>(emulator.requests());
  for (std::size_t i = 0; i < emulation.units.size(); ++i) {
    const Unit& unit = emulator.units()[i];
    map.extents[1] = std::max(map.extents[1], unit.head + 1);
    map.extents[2] = std::max(map.extents[2], unit.index + 1);
    for (const TileTrace& tile : emulation.units[i].tiles)
      map.extents[3] = std::max(map.extents[3], tile.tile + 1);
  }
  std::size_t cells = 1;
  for (const int extent : map.extents) cells *= static_cast<std::size_t>(extent);
  map.cells.resize(cells);
  for (std::size_t i = 0; i < emulation.units.size(); ++i) {
    const Unit& unit = emulator.units()[i];
    std::size_t row = unit.request;
    row = row * static_cast<std::size_t>(map.extents[1]) + static_cast<std::size_t>(unit.head);
    row = row * static_cast<std::size_t>(map.extents[2]) + static_cast<std::size_t>(unit.index);
    for (const TileTrace& tile : emulation.units[i].tiles)
      map.cells[row * static_cast<std::size_t>(map.extents[3]) +
                static_cast<std::size_t>(tile.tile)] = static_cast<std::uint8_t>(tile.decision);
  }
  return map;
}

Kept kept_pairs(const Emulator& emulator, const Emulation& emulation) {
  return
      [&emulator, &emulation](std::size_t request, int q_head, std::int32_t row, std::int32_t key) {
        const Resolved& r = emulator.resolved();
        const std::size_t at = emulator.unit_of(request, q_head, row);
        const std::int32_t tile = key / r.tile.kv_tile;
        for (const TileTrace& t : emulation.units[at].tiles) {
          if (t.tile != tile) continue;
          if (t.decision != Decision::kPartlyZeroed) return t.decision == Decision::kKept;
          const int in_unit = emulator.packed_row_of(q_head, row) % r.tile.unit_rows;
          return !t.zeroed.test(static_cast<std::size_t>(in_unit / r.skip.zeroing_rows));
        }
        return false;
      };
}

}  // namespace assay::attention
