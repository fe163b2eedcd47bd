// Start here: replays captured routing. Every (step, layer) of a trace becomes one round of
// dispatch, stand-in experts and combine on a subject, and every byte is compared with the model
// (SPEC TRC-3). Read in this order:
//   token_placement.hpp  on which rank a token lives
//   rounds.hpp           a trace cut into rounds
//   statistics.hpp       what the routing is like
//   replay.hpp           the run over all cores, with results that do not depend on their number
//
//   ASSAY_TRY(const Rounds rounds, Rounds::make(trace, {.ep_size = 8}));
//   ASSAY_TRY(const ReplayResult result, replay(rounds, subject, {}));
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "model/core/expected.hpp"
#include "traces/replay/rounds.hpp"
#include "traces/replay/statistics.hpp"
#include "verify/compare/mismatch.hpp"
#include "verify/subject/driver.hpp"
#include "verify/subject/subject.hpp"

namespace assay::traces {

// A mismatch in the words of a trace: its first coordinates are step and layer.
struct ReplayMismatch {
  std::int32_t step = 0;   // number in the trace
  std::int32_t layer = 0;  // position in the trace
  // From the first step of its segment to the last of the run in which it was found. Replaying this
  // layer over these steps repeats everything that the subject was given up to there, and how.
  std::int32_t first_step = 0;
  std::int32_t last_step = 0;
  verify::Mismatch mismatch;
};

struct ReplayResult {
  std::int64_t rounds = 0;  // that were run
  std::int64_t mismatching_rounds = 0;
  std::int64_t rounds_not_run = 0;         // after a subject that stopped making progress
  std::vector<ReplayMismatch> mismatches;  // ascending by step, layer; the first of each segment
  std::string unsupported;                 // the subject's reason, empty if it served every round
  Statistics statistics;                   // of the rounds that were run
  verify::Coverage coverage;
  double subject_seconds = 0;  // sums over threads
  double experts_seconds = 0;
  double check_seconds = 0;
};

struct ReplayOptions {
  std::int32_t jobs = 1;  // threads, each with a group of its own
  std::function<void(std::int64_t rounds)>
      progress;  // from any thread, with how many more are done
};

// A segment, the unit of work, is one layer over this many steps at most: a group is created for
// it, keeps its epochs and counters through it and ends with it. Segments do not depend on `jobs`,
// so neither does any result (SPEC TRC-3.4).
inline constexpr std::int64_t kSegmentSteps = 64;

// Errors: what the driver refuses. A wrong subject is a result.
Expected<ReplayResult> replay(const Rounds& rounds, const verify::Subject& subject,
                              const ReplayOptions& options);

// The statistics of the same rounds without running anything.
Expected<Statistics> statistics_of(const Rounds& rounds);

}  // namespace assay::traces
