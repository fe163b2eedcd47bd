// For tests of the judge: what a subject wrote, to be changed, and what the judge said of it.
// Decides nothing.
#pragma once

#include <string>
#include <vector>

#include "model/attention/attention_testing.hpp"
#include "verify/attention/judge.hpp"

namespace assay::verify::testing {

using namespace assay::attention;
using namespace assay::attention::testing;

// What a subject wrote, to be changed.
struct Written {
  std::vector<std::uint16_t> out;
  std::vector<F32> lse;
  DecisionMap map;
};

inline Written written_by(const Profile& profile, const Problem& problem) {
  const auto emulator = Emulator::make(profile, problem);
  REQUIRE(emulator.has_value());
  Emulation result = run(profile, problem);
  return {std::move(result.out), std::move(result.lse), decision_map(*emulator, result)};
}

enum class Mask { kGiven, kLeftOut };
inline AttentionJudgement judged(const Profile& profile, const Problem& problem,
                                 const Written& written, Mask mask = Mask::kGiven,
                                 bool explain = false) {
  AttentionJudgeOptions options;
  options.explain = explain;
  AttentionOutputs outputs{written.out, written.lse, mask == Mask::kGiven ? &written.map : nullptr};
  auto result = judge_attention(profile, problem, outputs, options);
  INFO((result ? std::string() : result.error().sentence));
  REQUIRE(result.has_value());
  return *std::move(result);
}

inline std::string sentences(const AttentionJudgement& judgement) {
  std::string text = std::string(attention_verdict_name(judgement.verdict)) + "; ";
  for (const Mismatch& m : judgement.mismatches) {
    text += m.check + ": " + m.sentence + "; ";
    for (const std::string& one : m.diagnoses) text += one + "; ";
  }
  return text;
}

inline bool tells(const AttentionJudgement& judgement, const std::string& words) {
  return sentences(judgement).find(words) != std::string::npos;
}

inline bool bits_claimed(const Profile& profile) { return profile.grade <= Grade::kBitsClaimed; }

inline std::int64_t at(const Mismatch& m, const char* name) {
  return m.coordinate(name).value_or(-1);
}

// A case with something to skip, of which a threshold keeps something.
inline Case skipping_case() {
  Case c;
  c.q_heads = 2;
  c.kv_heads = 1;
  c.head_dim = 64;
  c.v_dim = 16;
  c.q_lens = {100, 70};
  c.kv_lens = {700, 400};
  c.lambda = 0.02f;
  c.contrast = 8;
  c.seed = 7;
  return c;
}

}  // namespace assay::verify::testing
