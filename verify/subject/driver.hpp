// Runs rounds on a subject and checks every byte it wrote. It owns the output buffers (poisoned,
// between canaries), stands in for the experts, asks model/moe what was legal and hands both to the
// checks. It decides SPEC VER-1; what is wrong is decided in checks/.
//
//   auto driver = Driver::make(subject, setup);          // Expected: a setup that is no legal
//   group Outcome outcome = *driver->run(rounds);              // Expected: rounds that are no
//   legal request if (outcome.state == Outcome::State::kMismatch)
//   outcome.mismatches.front().sentence ...
//
// The subject's group lives as long as the driver: epochs and counters carry over from run to run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/core/expected.hpp"
#include "model/moe/experts.hpp"
#include "verify/compare/mismatch.hpp"
#include "verify/subject/coverage.hpp"
#include "verify/subject/round.hpp"
#include "verify/subject/subject.hpp"

namespace assay::verify {

struct Outcome {
  enum class State : std::uint8_t { kConforms, kMismatch, kUnsupported };
  State state = State::kConforms;
  // One per check and round that found something, in the order of rounds and checks; at most
  // DriverOptions::mismatches_max. Each says how much of its output is wrong.
  std::vector<Mismatch> mismatches;
  std::int64_t mismatching_rounds = 0;
  std::string unsupported;  // the subject's reason
  Coverage coverage;
  // Wall time: inside the subject without its calls of experts, in experts, in everything else
  // here.
  double subject_seconds = 0;
  double experts_seconds = 0;
  double check_seconds = 0;
};

// What an experts callback gets; `round` counts within the run.
struct ExpertsCall {
  std::int32_t round;
  RankId rank;
  std::int32_t max_tokens_per_rank;
  std::span<const moe::ReceivedPayload> payloads;  // in wire order, as the subject wrote them
  std::span<const std::int32_t> recv_counters;     // clamped to 0..max
  std::span<std::byte> expert_out;                 // [ep, max, h]; arrives all NaN
};
// May be called from different threads at once.
using Experts = std::function<void(const ExpertsCall&)>;

struct DriverOptions {
  std::int32_t mismatches_max = 16;
  Experts experts;  // empty: model/moe's stand-in
};

class Driver {
 public:
  static Expected<Driver> make(const Subject& subject, const GroupSetup& setup,
                               DriverOptions options = {});
  Driver(Driver&&) noexcept;
  Driver& operator=(Driver&&) noexcept;
  ~Driver();

  // One call of the subject's run. After kMismatch the group may be in any state: a caller that
  // wants to go on should make a new driver when the check was "progress".
  Expected<Outcome> run(std::span<const Round> rounds);
  Expected<Outcome> run(const Round& round) { return run(std::span(&round, 1)); }

  const GroupSetup& setup() const;

 private:
  struct Impl;
  explicit Driver(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace assay::verify
