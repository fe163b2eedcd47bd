// Scores once, decisions as often as one likes. Decides SPEC ATT-8.2 and ATT-8.3.
#include "model/attention/calibration_decisions.hpp"

#include <algorithm>
#include <memory>

#include "model/attention/host_executor.hpp"
#include "model/attention/parallel.hpp"

namespace assay::attention {
namespace {

// Notes the maximum of every row and tile in the order in which they are voted on.
class NotingExecutor : public HostExecutor {
 public:
  static constexpr bool kSettlesSkips = false;  // no maximum may be spared
  explicit NotingExecutor(std::vector<F32>& noted) : noted_(noted) {}
  F32 maximum(const F32* row, int count, numerics::NanRule rule) const {
    noted_.push_back(HostExecutor::maximum(row, count, rule));
    return noted_.back();
  }

 private:
  std::vector<F32>& noted_;
};

bool hides(const UnitLayout& layout, std::int32_t tile, int kv_tile) {
  for (int i = 0; i < layout.rows(); ++i) {
    const Range keys = layout.row(i).keys;
    if (std::max(keys.begin, tile * kv_tile) < std::min(keys.end, (tile + 1) * kv_tile))
      return false;
  }
  return true;
}

// The emulator's own unit, made to skip every tile that is asked about: then nothing is computed
// behind the maxima but for the first tiles.
template <class T>
UnitMaxima maxima_of(const Emulator& emulator, const Unit& unit) {
  UnitView view = emulator.view(unit);
  view.lambda.enabled = true;
  const UnitLayout layout(view);
  UnitMaxima out;
  out.rows = static_cast<std::size_t>(layout.rows());
  std::vector<ForcedTile> forced;
  for (int piece = 0; piece < layout.segments(); ++piece) {
    const Segment segment = layout.segment(piece);
    for (int n = 0; n < segment.count(); ++n) {
      const int at = view.skip.backward ? segment.count() - 1 - n : n;
      const std::int32_t tile = segment.begin + at * segment.step;
      out.visits.push_back({tile, n, hides(layout, tile, view.tile.kv_tile)});
      forced.push_back({tile, true});
    }
  }
  view.forced = forced.data();
  view.forced_count = static_cast<int>(forced.size());
  UnitScratch<T> scratch;
  const auto block = std::make_unique_for_overwrite<std::byte[]>(
      scratch.place(view, layout.rows(), layout.segments(), nullptr));
  scratch.place(view, layout.rows(), layout.segments(), block.get());
  UnitSpace space(layout, view.v_dim);
  const UnitOutput output = space.output();
  out.local.reserve(out.rows * out.visits.size());
  const NotingExecutor executor(out.local);
  UnitRun<T, NotingExecutor>(view, layout, scratch, output, executor).run();
  CONTRACT(out.local.size() == out.rows * out.visits.size(), out.local.size(), out.rows,
           out.visits.size());
  return out;
}

}  // namespace

TileCounts& TileCounts::operator+=(const TileCounts& other) {
  visited += other.visited;
  asked += other.asked;
  skipped += other.skipped;
  partly_zeroed += other.partly_zeroed;
  hidden += other.hidden;
  return *this;
}

DecisionReplay::DecisionReplay(Emulator emulator, const Problem& problem)
    : emulator_(std::move(emulator)),
      problem_(&problem),
      scale_(scale_of(problem, emulator_.resolved().softmax)),
      units_(emulator_.units().size()) {}

Expected<DecisionReplay> DecisionReplay::make(const Profile& profile, const Problem& problem,
                                              int threads) {
  if (profile.skip.dense_only)
    return unsupported("profile " + std::string(profile.name) +
                       " cannot skip, so there is nothing to calibrate");
  ASSAY_TRY(Emulator emulator, Emulator::make(profile, problem));
  DecisionReplay made(std::move(emulator), problem);
  const Emulator& e = made.emulator_;
  parallel_for(static_cast<std::int64_t>(e.units().size()), threads, [&](std::int64_t i, int) {
    const Unit& unit = e.units()[static_cast<std::size_t>(i)];
    made.units_[static_cast<std::size_t>(i)] = problem.dtype == Dtype::kF8E4m3
                                                   ? maxima_of<std::uint8_t>(e, unit)
                                                   : maxima_of<std::uint16_t>(e, unit);
  });
  return made;
}

Lambda DecisionReplay::lambda(std::size_t request, const Threshold& threshold) const {
  const SkipRule& rule = emulator_.resolved().skip;
  std::int32_t length = problem_->requests[request].kv_len;
  if (rule.lambda_length == LambdaLength::kBatchMax)
    for (const Request& r : problem_->requests) length = std::max(length, r.kv_len);
  Threshold given = threshold;
  if (given.kind == Threshold::Kind::kScaleFactor && rule.lambda_length == LambdaLength::kNone)
    given = {Threshold::Kind::kLambda, given.value / static_cast<float>(length)};
  return lambda_of(rule, given, length, scale_, emulator_.resolved().softmax.flush);
}

// The vote of SPEC ATT-4.4 on stored maxima. Without groups that decide alone, one row that keeps
// the tile is enough, and the row that kept the last tile is asked first.
template <class OnTile>
void DecisionReplay::replay(const UnitMaxima& unit, const Lambda& lambda,
                            const OnTile& on_tile) const {
  const SkipRule& rule = emulator_.resolved().skip;
  const Softmax& soft = emulator_.resolved().softmax;
  const std::size_t group =
      rule.zeroing_rows == 0 ? unit.rows : static_cast<std::size_t>(rule.zeroing_rows);
  std::vector<F32> running(unit.rows);
  bool started = false;
  std::size_t keeper = 0;
  const auto agrees = [&](const F32* local, std::size_t i) {
    F32 g = running[i];
    if (rule.reference == Reference::kInclusive) g = numerics::max_of(local[i], g, soft.max_nan);
    return row_may_skip(rule, lambda, scale_, local[i], g, soft.flush);
  };
  for (std::size_t v = 0; v < unit.visits.size(); ++v) {
    const UnitMaxima::Visit& visit = unit.visits[v];
    const F32* const local = unit.local.data() + v * unit.rows;
    if (visit.place == 0) {
      std::fill(running.begin(), running.end(), rule.initial_max);
      started = false;
    }
    TileDecision out;
    out.tile = visit.tile;
    out.asked = lambda.enabled && visit.place >= rule.kept_first;
    out.decision = Decision::kKept;
    if (out.asked) {
      bool all = true;
      if (rule.zeroing_rows == 0) {
        all = keeper >= unit.rows || agrees(local, keeper);
        for (std::size_t i = 0; all && i < unit.rows; ++i) {
          all = agrees(local, i);
          if (!all) keeper = i;
        }
      } else {
        out.zeroed.set();
        for (std::size_t i = 0; i < unit.rows; ++i) {
          if (agrees(local, i)) continue;
          all = false;
          out.zeroed.reset(i / group);
        }
        for (std::size_t g = (unit.rows + group - 1) / group; g < out.zeroed.size(); ++g)
          out.zeroed.reset(g);
      }
      if (all) out.decision = Decision::kSkipped;
      if (all) out.zeroed.reset();
      if (out.zeroed.any()) out.decision = Decision::kPartlyZeroed;
    }
    on_tile(out, visit.hidden);
    const bool skipped = out.decision == Decision::kSkipped;
    if (skipped && rule.max_on_skip == MaxOnSkip::kKeep) continue;
    for (std::size_t i = 0; i < unit.rows; ++i) {
      if (!skipped && out.zeroed.any() && out.zeroed.test(i / group)) continue;
      const bool takes_it = !skipped && !started && running[i].bits == kMinusInfinity.bits;
      running[i] = takes_it ? local[i] : new_maximum(rule, soft, scale_, local[i], running[i]);
    }
    if (!skipped) started = true;
  }
}

std::vector<TileDecision> DecisionReplay::decide(std::size_t unit, const Lambda& lambda) const {
  std::vector<TileDecision> out;
  replay(units_[unit], lambda, [&](const TileDecision& tile, bool) { out.push_back(tile); });
  return out;
}

TileCounts DecisionReplay::count(const Threshold& threshold) const {
  TileCounts counts;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const Lambda lambda = this->lambda(emulator_.units()[i].request, threshold);
    replay(units_[i], lambda, [&](const TileDecision& tile, bool hidden) {
      ++counts.visited;
      counts.asked += tile.asked;
      counts.skipped += tile.decision == Decision::kSkipped;
      counts.partly_zeroed += tile.decision == Decision::kPartlyZeroed;
      counts.hidden += hidden;
    });
  }
  return counts;
}

}  // namespace assay::attention
