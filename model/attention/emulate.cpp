// Which units there are, and what they compute. Decides SPEC ATT-5.1 to ATT-5.7; one unit's work is
// unit_run.hpp.
#include "model/attention/emulate.hpp"

#include <algorithm>
#include <memory>

#include "model/attention/host_executor.hpp"
#include "model/attention/parallel.hpp"

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

template <class T>
UnitResult run_unit(const Unit& unit, const UnitView& view) {
  const UnitLayout layout(view);
  UnitScratch<T> scratch;
  const auto block = std::make_unique_for_overwrite<std::byte[]>(
      scratch.place(view, layout.rows(), layout.segments(), nullptr));
  scratch.place(view, layout.rows(), layout.segments(), block.get());
  UnitSpace space(layout, view.v_dim);
  const UnitOutput output = space.output();
  const HostExecutor executor;
  UnitRun<T, HostExecutor>(view, layout, scratch, output, executor).run();
  return std::move(space).result(unit, layout);
}

}  // namespace

UnitSpace::UnitSpace(const UnitLayout& layout, int v_dim)
    : lse_(static_cast<std::size_t>(layout.valid_rows())),
      out_(lse_.size() * static_cast<std::size_t>(v_dim)),
      records_(static_cast<std::size_t>(layout.visits())) {}

UnitResult UnitSpace::result(const Unit& unit, const UnitLayout& layout) && {
  UnitResult result;
  result.unit = unit;
  result.out = std::move(out_);
  for (std::size_t i = 0; i < lse_.size(); ++i) {
    const UnitLayout::Row row = layout.row(static_cast<int>(i));
    result.rows.push_back({row.token, row.q_head, lse_[i]});
  }
  for (const TileRecord& r : records_) {
    TileTrace& t = result.tiles.emplace_back(TileTrace{r.tile,
                                                       r.decision,
                                                       r.asked,
                                                       r.near_tie,
                                                       r.row,
                                                       r.local_max,
                                                       r.running_max,
                                                       r.margin_log2,
                                                       {}});
    for (std::size_t g = 0; g < t.zeroed.size(); ++g) t.zeroed[g] = r.zeroes(static_cast<int>(g));
  }
  return result;
}

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

UnitView Emulator::view(const Unit& unit, const RunOptions& options) const {
  return view_of({*problem_, resolved_, scale_, lambdas_[unit.request], unit, options});
}

UnitResult Emulator::run(const Unit& unit, const RunOptions& options) const {
  const UnitView v = view(unit, options);
  return problem_->dtype == Dtype::kF8E4m3 ? run_unit<std::uint8_t>(unit, v)
                                           : run_unit<std::uint16_t>(unit, v);
}

EmulationParts::EmulationParts(const Emulator& emulator) : emulator_(emulator) {
  const Problem& p = emulator.problem();
  result_.grade = emulator.resolved().grade;
  result_.lse_form = emulator.resolved().softmax.lse;
  result_.q_heads = p.q_heads;
  result_.v_dim = p.v_dim;
  std::int64_t rows = 0;
  for (const Request& request : p.requests) {
    first_row_.push_back(rows);
    rows += request.q_len;
  }
  result_.lse.resize(static_cast<std::size_t>(rows * p.q_heads));
  result_.out.resize(result_.lse.size() * static_cast<std::size_t>(p.v_dim));
  result_.units.resize(emulator.units().size());
}

void EmulationParts::add(std::size_t index, UnitResult unit) {
  const auto dim = static_cast<std::size_t>(result_.v_dim);
  for (std::size_t i = 0; i < unit.rows.size(); ++i) {
    const UnitRow& row = unit.rows[i];
    const std::int64_t global = first_row_[unit.unit.request] + row.token;
    const auto place = static_cast<std::size_t>(global * result_.q_heads + row.q_head);
    result_.lse[place] = row.lse;
    std::copy_n(unit.out.begin() + static_cast<std::ptrdiff_t>(i * dim), dim,
                result_.out.begin() + static_cast<std::ptrdiff_t>(place * dim));
  }
  unit.rows = {};
  unit.out = {};
  result_.units[index] = std::move(unit);
}

Emulation EmulationParts::finish() && {
  for (const UnitResult& unit : result_.units) count(unit, result_.counters);
  return std::move(result_);
}

Expected<Emulation> emulate(const Profile& profile, const Problem& problem,
                            const EmulateOptions& options) {
  ASSAY_TRY(const Emulator emulator, Emulator::make(profile, problem));
  EmulationParts parts(emulator);
  const std::vector<Unit>& units = emulator.units();
  parallel_for(static_cast<std::int64_t>(units.size()), options.threads, [&](std::int64_t at, int) {
    const auto index = static_cast<std::size_t>(at);
    parts.add(index, emulator.run(units[index]));
  });
  return std::move(parts).finish();
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
