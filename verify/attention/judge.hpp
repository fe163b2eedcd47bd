// Is what an attention kernel wrote what a profile says? Output bits, LSE and decisions against the
// emulation, unit by unit; a unit that differs is tried again with its near-tie decisions taken the
// other way; what stays wrong gets its first place and the rules that would have produced it.
// Decides SPEC VER-21.1 to VER-21.5. Not decided here: what a profile computes (model/attention),
// which rules a wrong output is tried against (deviations.hpp), where outputs lie in a file
// (model/attention/file_input.hpp).
//
//   ASSAY_TRY(const AttentionJudgement judged, judge_attention(profile, problem, {out, lse,
//   &mask})); if (judged.verdict == AttentionVerdict::kWrong) ... judged.mismatches.front() ...
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/attention/attention.hpp"
#include "verify/compare/mismatch.hpp"

namespace assay::verify {

// What a kernel wrote, rows of all requests one after the other (Problem::first_row).
struct AttentionOutputs {
  std::span<const std::uint16_t> out;  // [total rows, q_heads, v_dim], bits of out_dtype
  // [total rows, q_heads] in the profile's LseForm; empty: not given, and not compared.
  std::span<const F32> lse;
  // [request, unit head, unit, tile] as decision_map() has it; null: not given.
  const attention::DecisionMap* decision = nullptr;
};

struct AttentionJudgeOptions {
  int threads = 1;  // decides nothing
  // Whether a wrong output is tried against other rules: each costs up to one more emulation.
  bool explain = true;
  // Tried as "profile X fits instead"; the profile itself is left out.
  std::span<const attention::Profile> others = attention::profiles();
};

enum class AttentionVerdict : std::uint8_t {
  kBitEqual,       // every compared bit
  kEqualUpToTies,  // every bit, once the named near-tie decisions are taken as the kernel did
  kWithinGrade,    // grade decisions: every decision, and outputs within ATT-3.6's bound
  kWrong,          // mismatches say where
  kOtherProfile,   // wrong here, and all bits are those of another profile (`fitting`)
  kNotJudged,      // the grade leaves nothing to say; `reason` says why
};
std::string_view attention_verdict_name(AttentionVerdict verdict);  // "bit-equal", ...

// A near-tie decision that the kernel took the other way.
struct TieTaken {
  std::size_t request = 0;
  int unit_head = 0;
  int unit = 0;
  std::int32_t tile = 0;
  attention::Decision expected = attention::Decision::kKept;
  attention::Decision taken = attention::Decision::kSkipped;
  float margin_log2 = 0;
};
std::string tie_text(const TieTaken& tie);  // "request 0 head 1 unit 2 tile 3: skipped, ..."

// Scores of which the roundings that a grade does not know can move outputs as far as values lie
// apart (SPEC VER-21.13).
struct ScoresTooLarge {
  double largest = 0;      // sum of |q_i k_i| * scale
  double scale_limit = 0;  // the scale at which one of the rows could be judged, about; 0: none
};

struct AttentionJudgement {
  AttentionVerdict verdict = AttentionVerdict::kNotJudged;
  Grade grade = Grade::kDecisions;
  // At most one for each of decision, out and lse, in this order: a wrong decision explains the
  // bits behind it. Coordinates: request, head, unit, tile for decisions; request, row, head,
  // element for out. The first one carries the diagnoses.
  std::vector<Mismatch> mismatches;
  std::vector<TieTaken> ties;
  // Profiles that reproduce every bit that was given, if the verdict is kOtherProfile.
  std::vector<std::string> fitting;
  std::string reason;
  std::optional<ScoresTooLarge> too_large;  // if that is why no row was judged
  attention::Counters counters;             // of the profile's own emulation
  // Why the comparison would prove little about skipping: a threshold is on and nothing was asked,
  // nothing skipped, or nothing that was asked kept (SPEC VER-21.5). Empty: it proves something.
  std::string vacuous;
  // What was looked at: {"out", elements}, {"lse", rows}, {"decision", cells}.
  std::vector<std::pair<std::string, std::int64_t>> compared;
  std::vector<std::string> notes;  // what was given and not judged, units not judged to the end
};

// Errors: those of Emulator::make, and outputs of another size than the problem's. Both near-tie
// and diagnosis runs are bounded (SPEC VER-21.2, VER-21.4); a bound that was hit is told.
Expected<AttentionJudgement> judge_attention(const attention::Profile& profile,
                                             const attention::Problem& problem,
                                             const AttentionOutputs& outputs,
                                             const AttentionJudgeOptions& options = {});

}  // namespace assay::verify
