// Every rule that a wrong output is tried against is told when it made the output.
#include <set>

#include "verify/attention/deviations.hpp"
#include "verify/attention/judge_testing.hpp"

namespace assay::verify::testing {
namespace {

constexpr int kTellingKinds = 9;

// Problems in which rules make a difference, each of another kind.
std::unique_ptr<Built> telling_problem(const Profile& profile, int kind) {
  Case c = skipping_case();
  c.head_dim = 80;  // tiles of 128 keys
  c.v_dim = 8;
  c.q_lens = {80, 66}, c.kv_lens = {500, 300};
  c.spread = 0.6f;
  c.seed = static_cast<unsigned>(20 + kind);
  const bool decode = profile.skip.packing == Packing::kGroupRows;
  if (decode) c.q_lens = {5, 9}, c.kv_lens = {2500, 300};
  if (kind == 1) c.mask = MaskKind::kCausal;
  if (kind == 2) c.mask = MaskKind::kWindow, c.mask_size = 300, c.bottom_right = false;
  if (kind == 2) c.dtype = Dtype::kF16, c.v_dim = 32;  // shows an ulp of f32 oftener
  if (kind == 3) c.dtype = Dtype::kF8E4m3, c.head_dim = 96;
  if (kind == 4) c.mask = MaskKind::kChunked, c.mask_size = 256, c.custom = true;
  if (kind == 5) c.q_lens = {9, 9}, c.kv_lens = {400, 400};
  if (kind == 6) c.spread = 0.1f;
  if (kind == 8) c.contrast = 3;  // rows differ in whether they may skip
  auto built = build(c);
  Problem& p = built->problem;
  static const float kSinks[] = {0.7f, 1.3f};
  if (kind == 1) p.sinks = kSinks;
  if (kind == 2) p.q_scale = 1.5f, p.v_scale = 0.75f;
  if (kind == 3) p.k_scale = 0.5f, p.v_scale = 3;
  float lambda = 0.05f;
  if (kind == 0) lambda = 3;
  if (kind == 6) {  // blocks of 128 keys climb by less than ln(3)
    lambda = 3;
    for (int i = 0; i < 500; ++i)
      built->k.set(static_cast<std::size_t>(i) * 80 * 2,
                   static_cast<float>(i / 128) * 0.8f / (4 * p.scale));
  }
  if (kind == 7) {  // every score is 0: every tile a tie
    lambda = 1;
    std::fill(built->q.bytes.begin(), built->q.bytes.end(), std::byte{0});
  }
  if (kind == 8) lambda = 0.1f;
  for (Request& r : p.requests)
    r.threshold = {Threshold::Kind::kScaleFactor, lambda * static_cast<float>(r.kv_len)};
  if (kind == 5) p.requests[1].threshold.value = 0.6f * 400;
  return built;
}

// What changes an f32 by an ulp, which 16-bit outputs seldom show, or needs NaN, subnormals or rows
// that see nothing.
bool seldom_shows(const std::string& sentence) {
  for (const char* words :
       {"1 / sum", "subnormals", "lambda by rcp", "lambda by a correctly", "maxima", "seen nothing",
        "the comparison is", "the logarithm", "difference of rounded", "(m_old - m_new)",
        "v_scale meets", "the first visited tile is skippable"}) {
    if (sentence.find(words) != std::string::npos) return true;
  }
  return false;
}

TEST_CASE("every rule is told when it made the output, and none after a flipped bit",
          "[rules][VER-21.4]") {
  std::set<std::string> found, never;
  for (const Profile& profile : profiles()) {
    if (!bits_claimed(profile)) continue;
    std::set<std::string> found_here;
    for (int kind = 0; kind < kTellingKinds; ++kind) {
      const auto built = telling_problem(profile, kind);
      const Problem& p = built->problem;
      const Written own = written_by(profile, p);
      const bool has_lse = run(profile, p).lse_form != LseForm::kNone;
      for (const AttentionDeviation& rule : attention_deviations(profile, p, 0)) {
        if (found_here.count(rule.sentence) != 0) continue;
        if (!Emulator::make(rule.profile, rule.problem)) continue;
        Written w = written_by(rule.profile, rule.problem);
        if (rule.lse_only) w.out = own.out;
        if (!has_lse) w.lse = own.lse;
        bool same = w.out == own.out;
        for (std::size_t i = 0; i < w.lse.size(); ++i) same &= w.lse[i].bits == own.lse[i].bits;
        never.insert(rule.sentence);
        if (same) continue;
        const AttentionJudgement judgement = judged(profile, p, w, Mask::kLeftOut, true);
        CAPTURE(profile.name, kind, rule.sentence, sentences(judgement));
        REQUIRE(judgement.verdict != AttentionVerdict::kBitEqual);
        REQUIRE((judgement.verdict == AttentionVerdict::kEqualUpToTies ||
                 tells(judgement, rule.sentence)));
        if (judgement.verdict == AttentionVerdict::kEqualUpToTies) continue;
        found_here.insert(rule.sentence);
        found.insert(rule.sentence);
      }
      Written flipped = own;
      flipped.out[flipped.out.size() / 2] ^= 1;
      const AttentionJudgement judgement = judged(profile, p, flipped, Mask::kLeftOut, true);
      CAPTURE(profile.name, kind, sentences(judgement));
      REQUIRE(judgement.mismatches.front().diagnoses.empty());
      REQUIRE(judgement.verdict == AttentionVerdict::kWrong);
    }
  }
  for (const std::string& sentence : found) never.erase(sentence);
  for (const std::string& sentence : never) {
    CAPTURE(sentence);
    REQUIRE(seldom_shows(sentence));
  }
  REQUIRE(found.size() > 60);
}

TEST_CASE("a rule that explains one unit and not the others is not told", "[VER-21.4]") {
  const Profile& profile = profile_named("assay-prefill-sm90");
  const auto built = build(skipping_case());
  Written w = written_by(profile, built->problem);
  Problem dense = built->problem;
  for (Request& r : dense.requests) r.threshold = {};
  const Written all = written_by(profile, dense);
  const auto mixed = [&](std::size_t rows) {
    Written some = w;
    const std::size_t elements = rows * 2 * 16;  // heads, v_dim
    std::copy_n(all.out.begin(), elements, some.out.begin());
    std::copy_n(all.lse.begin(), rows * 2, some.lse.begin());
    return judged(profile, built->problem, some, Mask::kLeftOut, true);
  };
  REQUIRE(tells(mixed(170), "the dense result"));
  for (const std::size_t rows : {64, 100, 164}) {
    const AttentionJudgement some = mixed(rows);
    CAPTURE(rows, sentences(some));
    REQUIRE(some.verdict == AttentionVerdict::kWrong);
    REQUIRE(some.mismatches.front().diagnoses.empty());
  }
}

TEST_CASE("another profile that gives all bits is named", "[VER-21.4]") {
  const auto built = build(skipping_case());
  for (const char* made : {"assay-prefill-sm90", "trtllm-fmha_v2-sm90"}) {
    for (const char* asked : {"assay-prefill-sm90", "trtllm-fmha_v2-sm90", "assay-decode-sm90"}) {
      if (std::string_view(made) == asked) continue;
      Written w = written_by(profile_named(made), built->problem);
      if (std::string_view(made) == "trtllm-fmha_v2-sm90") w.lse.clear();
      const AttentionJudgement judgement =
          judged(profile_named(asked), built->problem, w, Mask::kLeftOut, true);
      CAPTURE(made, asked, sentences(judgement));
      REQUIRE(judgement.verdict == AttentionVerdict::kOtherProfile);
      REQUIRE(judgement.fitting == std::vector<std::string>{made});
      REQUIRE(tells(judgement, std::string("profile ") + made + " fits instead"));
    }
  }
}

}  // namespace
}  // namespace assay::verify::testing
