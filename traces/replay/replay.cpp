// See replay.hpp.
#include "traces/replay/replay.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <new>
#include <optional>
#include <thread>
#include <tuple>

namespace assay::traces {
namespace {

struct Segment {
  std::int32_t layer = 0;  // within the selection, as are the steps
  std::int64_t first_step = 0;
  std::int64_t last_step = 0;  // one past
};

// Rounds per call of the subject (SPEC TRC-3.4): enough for ranks to run ahead of each other, few
// enough for the buffers of all of them to stay near 32 MiB.
std::int64_t rounds_per_run(const Rounds& rounds) {
  const verify::GroupSetup& group = rounds.group();
  const std::int64_t row = group.max_payload_bytes_total + std::int64_t{2} * group.hidden_size;
  const std::int64_t slots =
      std::int64_t{group.ep_size} * group.ep_size * group.max_tokens_per_rank;
  return std::clamp<std::int64_t>((std::int64_t{32} << 20) / (row * slots), 1, 8);
}

std::vector<Segment> segments_of(const Rounds& rounds) {
  std::vector<Segment> segments;
  for (std::int32_t layer = 0; layer < rounds.num_layers(); ++layer) {
    for (std::int64_t step = 0; step < rounds.num_steps(); step += kSegmentSteps)
      segments.push_back({layer, step, std::min(step + kSegmentSteps, rounds.num_steps())});
  }
  return segments;
}

Status add_round(const verify::GroupSetup& group, const verify::Round& round, std::int32_t layer,
                 Statistics& statistics) {
  ASSAY_TRY(const auto placement, moe::Placement::contiguous(group.ep_size, group.num_experts));
  ASSAY_TRY(const auto routing,
            moe::Routing::make(group.top_k, round.max_tokens_per_rank, round.topk_ids));
  ASSAY_TRY(const auto plan, moe::plan_dispatch(placement, routing, moe::SlotRule::kCanonical));
  statistics.add(placement, routing, plan, layer);
  return Done{};
}

Statistics no_statistics(const Rounds& rounds) {
  return Statistics(rounds.group().ep_size, rounds.group().num_experts, rounds.num_layers());
}

// Everything that one thread needs, kept from segment to segment.
struct Worker {
  const Rounds& rounds;
  const verify::Subject& subject;
  const ReplayOptions& options;
  std::vector<verify::Round> batch;

  Expected<ReplayResult> run(const Segment& segment);

 private:
  void note_mismatches(const Segment& segment, std::int64_t run_end,
                       std::vector<verify::Mismatch> mismatches, ReplayResult& result);
};

Expected<ReplayResult> Worker::run(const Segment& segment) {
  ReplayResult result;
  result.statistics = no_statistics(rounds);
  verify::GroupSetup group = rounds.group();
  // A segment's schedules depend on what it is, not on when or by which thread it is run.
  group.seed = mix(rounds.setup().seed, rounds.step_number(segment.first_step),
                   rounds.layer_number(segment.layer));
  ASSAY_TRY(verify::Driver driver, verify::Driver::make(subject, group));
  const std::int64_t batch_max = rounds_per_run(rounds);
  for (std::int64_t step = segment.first_step; step < segment.last_step; step += batch_max) {
    const std::int64_t count = std::min(batch_max, segment.last_step - step);
    batch.resize(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i)
      rounds.fill(step + i, segment.layer, batch[static_cast<std::size_t>(i)]);
    ASSAY_TRY(verify::Outcome outcome, driver.run(batch));
    if (outcome.state == verify::Outcome::State::kUnsupported) {
      result.unsupported = outcome.unsupported;
      return result;
    }
    for (const verify::Round& round : batch)
      ASSAY_CHECK(add_round(rounds.group(), round, segment.layer, result.statistics));
    result.rounds += count;
    result.mismatching_rounds += outcome.mismatching_rounds;
    result.coverage += outcome.coverage;
    result.subject_seconds += outcome.subject_seconds;
    result.experts_seconds += outcome.experts_seconds;
    result.check_seconds += outcome.check_seconds;
    const bool stuck = std::any_of(outcome.mismatches.begin(), outcome.mismatches.end(),
                                   [](const auto& m) { return m.check == "progress"; });
    note_mismatches(segment, step + count, std::move(outcome.mismatches), result);
    if (options.progress) options.progress(count);
    if (stuck) {  // every later round would wait for the same dead group
      result.rounds_not_run = segment.last_step - (step + count);
      break;
    }
  }
  return result;
}

void Worker::note_mismatches(const Segment& segment, std::int64_t run_end,
                             std::vector<verify::Mismatch> mismatches, ReplayResult& result) {
  constexpr std::size_t kPerSegment = 4;  // a report spells out one and lists a few
  for (verify::Mismatch& mismatch : mismatches) {
    if (result.mismatches.size() == kPerSegment) return;
    ReplayMismatch found;
    // The driver counts rounds from the start of its group, which is the start of the segment.
    const std::int64_t number = mismatch.coordinate("round").value_or(0);
    CONTRACT(number >= 0 && number < segment.last_step - segment.first_step, number);
    found.step = rounds.step_number(segment.first_step + number);
    found.layer = rounds.layer_number(segment.layer);
    found.first_step = rounds.step_number(segment.first_step);
    found.last_step = rounds.step_number(run_end - 1);
    std::erase_if(mismatch.where, [](const auto& c) { return c.name == "round"; });
    mismatch.where.insert(mismatch.where.begin(), {{"step", found.step}, {"layer", found.layer}});
    found.mismatch = std::move(mismatch);
    result.mismatches.push_back(std::move(found));
  }
}

void merge(ReplayResult& sum, ReplayResult&& part) {
  sum.rounds += part.rounds;
  sum.mismatching_rounds += part.mismatching_rounds;
  sum.rounds_not_run += part.rounds_not_run;
  for (ReplayMismatch& mismatch : part.mismatches) sum.mismatches.push_back(std::move(mismatch));
  if (sum.unsupported.empty()) sum.unsupported = part.unsupported;
  sum.statistics.merge(part.statistics);
  sum.coverage += part.coverage;
  sum.subject_seconds += part.subject_seconds;
  sum.experts_seconds += part.experts_seconds;
  sum.check_seconds += part.check_seconds;
}

}  // namespace

Expected<ReplayResult> replay(const Rounds& rounds, const verify::Subject& subject,
                              const ReplayOptions& options) {
  const std::vector<Segment> segments = segments_of(rounds);
  std::vector<std::optional<Expected<ReplayResult>>> results(segments.size());
  CONTRACT(options.jobs >= 1, options.jobs);
  const std::size_t jobs = std::min(static_cast<std::size_t>(options.jobs), segments.size());
  std::atomic<std::size_t> next{0};
  std::atomic<bool> no_memory{false};
  const auto work = [&] {
    Worker worker{rounds, subject, options, {}};
    for (std::size_t i = next++; i < segments.size() && !no_memory; i = next++) {
      try {
        results[i] = worker.run(segments[i]);
      } catch (const std::bad_alloc&) {
        // An exception that left the thread would end the process, and words need memory too.
        no_memory = true;
      }
    }
  };
  std::vector<std::thread> threads;
  try {
    for (std::size_t i = 1; i < jobs; ++i) threads.emplace_back(work);
  } catch (const std::exception&) {  // system_error or bad_alloc
    // The machine gives no more threads; those that run share the segments.
  }
  work();
  for (std::thread& thread : threads) thread.join();
  if (no_memory) return unsupported(fmt::format("{} threads need more memory than there is", jobs));

  // In the order of segments, so that sums of reals and the first error do not depend on threads.
  ReplayResult sum;
  sum.statistics = no_statistics(rounds);
  for (auto& result : results) {
    if (!*result) return result->error();
    merge(sum, *std::move(*result));
  }
  // The driver counts rows in its own way; two counts of one thing must agree.
  if (sum.mismatches.empty() && sum.unsupported.empty())
    CONTRACT(sum.coverage.rows == sum.statistics.rows, sum.coverage.rows, sum.statistics.rows);
  std::stable_sort(sum.mismatches.begin(), sum.mismatches.end(), [](const auto& a, const auto& b) {
    return std::tie(a.step, a.layer) < std::tie(b.step, b.layer);
  });
  return sum;
}

Expected<Statistics> statistics_of(const Rounds& rounds) {
  Statistics statistics = no_statistics(rounds);
  verify::Round round;
  for (std::int32_t layer = 0; layer < rounds.num_layers(); ++layer) {
    for (std::int64_t step = 0; step < rounds.num_steps(); ++step) {
      rounds.fill(step, layer, round);
      ASSAY_CHECK(add_round(rounds.group(), round, layer, statistics));
    }
  }
  return statistics;
}

}  // namespace assay::traces
