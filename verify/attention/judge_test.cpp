// The judge: what a profile gives conforms, any changed bit is found at its place, weaker grades
// are judged by decisions and bounds, and a comparison that proves nothing is known.
#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "verify/attention/judge_testing.hpp"

namespace assay::verify::testing {
namespace {

TEST_CASE("what a profile gives conforms under it, by bits or as far as its grade goes",
          "[VER-21.1][VER-21.3]") {
  std::set<std::string_view> seen;
  std::int64_t skipped = 0, within_grade = 0;
  prop("any profile, any problem", [&] {
    const Profile& profile = any_profile([](const Profile&) { return true; });
    Case c = *cases(profile, {90, 500, 2, 2, true});
    if (profile.skip.dense_only) c.lambda = -1;
    const auto built = build(c);
    if (!Emulator::make(profile, built->problem)) return;
    const Written w = written_by(profile, built->problem);
    const AttentionJudgement own = judged(profile, built->problem, w);
    RC_LOG() << sentences(own);
    RC_ASSERT(own.mismatches.empty());
    RC_ASSERT(own.ties.empty());
    // Where every row is without keys, or the bound as wide as the values, nothing can be judged.
    const bool nothing = own.reason.find("no element of out") != std::string::npos;
    RC_ASSERT(own.verdict == (bits_claimed(profile) ? AttentionVerdict::kBitEqual
                              : nothing             ? AttentionVerdict::kNotJudged
                                                    : AttentionVerdict::kWithinGrade));
    within_grade += own.verdict == AttentionVerdict::kWithinGrade;
    const AttentionJudgement blind = judged(profile, built->problem, w, Mask::kLeftOut);
    RC_ASSERT(blind.verdict ==
              (bits_claimed(profile) ? AttentionVerdict::kBitEqual : AttentionVerdict::kNotJudged));
    RC_ASSERT(blind.reason.empty() == bits_claimed(profile));
    seen.insert(profile.name);
    skipped += own.counters.skipped;
  });
  REQUIRE(seen.size() == profiles().size());
  REQUIRE(skipped > 100);
  REQUIRE(within_grade > 20);
}

TEST_CASE("one changed bit is found in its output at its place", "[VER-21.1]") {
  std::map<std::string, int> caught;
  prop("any bit of any output", [&] {
    const Profile& profile = any_profile(bits_claimed);
    const auto built = build(*cases(profile, {90, 500, 2, 2, true}));
    const Problem& p = built->problem;
    Written w = written_by(profile, p);
    const bool has_lse = run(profile, p).lse_form != LseForm::kNone;
    const int kind = *rc::gen::inRange(0, 3);
    const std::size_t size = kind == 0   ? w.out.size()
                             : kind == 1 ? w.lse.size()
                                         : w.map.cells.size();
    if (size == 0 || (kind == 1 && !has_lse)) return;
    const std::size_t place = *rc::gen::inRange<std::size_t>(0, size);
    if (kind == 0)
      w.out[place] = static_cast<std::uint16_t>(w.out[place] ^ 1u << *rc::gen::inRange(0, 16));
    if (kind == 1) w.lse[place].bits ^= 1u << *rc::gen::inRange(0, 32);
    if (kind == 2) w.map.cells[place] ^= 4;  // a value that no decision has, so never a near-tie
    const AttentionJudgement judgement = judged(profile, p, w);
    RC_LOG() << sentences(judgement);
    RC_ASSERT(judgement.verdict == AttentionVerdict::kWrong);
    RC_ASSERT(judgement.mismatches.size() == 1u);
    const Mismatch& m = judgement.mismatches.front();
    RC_ASSERT(m.wrong == 1);
    if (kind == 2) {
      RC_ASSERT(m.check == "attention.decision");
      const auto index = ((at(m, "request") * w.map.extents[1] + at(m, "head")) * w.map.extents[2] +
                          at(m, "unit")) *
                             w.map.extents[3] +
                         at(m, "tile");
      RC_ASSERT(index == static_cast<std::int64_t>(place));
    } else {
      RC_ASSERT(m.check == (kind == 0 ? "attention.out" : "attention.lse"));
      const std::int64_t row =
          p.first_row(static_cast<std::size_t>(at(m, "request"))) + at(m, "row");
      std::int64_t index = row * p.q_heads + at(m, "head");
      if (kind == 0) index = index * p.v_dim + at(m, "element");
      RC_ASSERT(index == static_cast<std::int64_t>(place));
      RC_ASSERT(at(m, "row") < p.requests[static_cast<std::size_t>(at(m, "request"))].q_len);
      RC_ASSERT(load_element(m.values->format,
                             kind == 0 ? reinterpret_cast<const std::byte*>(&w.out[place])
                                       : reinterpret_cast<const std::byte*>(&w.lse[place]),
                             0) == m.values->got);
    }
    ++caught[m.check];
  });
  REQUIRE(caught.size() == 3);
  for (const auto& [check, times] : caught) REQUIRE(times > 5);
}

TEST_CASE("threads decide nothing", "[VER-21.1]") {
  const Profile& profile = profile_named("assay-prefill-sm90");
  const auto built = build(skipping_case());
  Written w = written_by(profile, built->problem);
  w.out[777] ^= 1;
  w.out[4000] ^= 1;
  const AttentionJudgement one = judged(profile, built->problem, w);
  AttentionJudgeOptions options;
  options.threads = 3;
  const auto three = judge_attention(profile, built->problem, {w.out, w.lse, &w.map}, options);
  REQUIRE(three.has_value());
  REQUIRE(sentences(*three) == sentences(one));
  REQUIRE(three->mismatches.front().where == one.mismatches.front().where);
  REQUIRE(three->mismatches.front().wrong == 2);
  REQUIRE(three->counters.skipped == one.counters.skipped);
}

TEST_CASE("decisions are judged where bits are not known, and outputs by the bound", "[VER-21.3]") {
  int profiles_seen = 0;
  for (const Profile& profile : profiles()) {
    if (bits_claimed(profile) || profile.skip.dense_only) continue;
    CAPTURE(profile.name);
    Case c = skipping_case();
    if (profile.skip.packing == Packing::kGroupRows) c.q_lens = {4, 3};
    const auto built = build(c);
    const Problem& p = built->problem;
    const Written right = written_by(profile, p);
    // Other roundings: every element an ulp away, which no bits profile would let pass.
    Written other = right;
    for (std::uint16_t& bits : other.out) bits = static_cast<std::uint16_t>(bits ^ 1u);
    REQUIRE(judged(profile, p, other).verdict == AttentionVerdict::kWithinGrade);
    Written far = right;
    far.out[5 * 16 + 3] = 0x4180;  // 16 in BF16
    const AttentionJudgement beyond = judged(profile, p, far);
    REQUIRE(beyond.verdict == AttentionVerdict::kWrong);
    REQUIRE(beyond.mismatches.front().clause == "ATT-3.6");
    REQUIRE(at(beyond.mismatches.front(), "element") == 3);
    REQUIRE(beyond.mismatches.front().wrong == 1);
    REQUIRE(judged(profile, p, far, Mask::kLeftOut).verdict == AttentionVerdict::kWrong);
    // Decisions that the vote does not give, one at a time.
    int kept = 0;
    for (std::size_t i = 0; i < right.map.cells.size(); i += 5) {
      if (right.map.cells[i] == 3) continue;
      Written flipped = right;
      flipped.map.cells[i] = flipped.map.cells[i] == 2 ? 1 : 2;
      const AttentionJudgement wrong = judged(profile, p, flipped);
      CAPTURE(i, sentences(wrong));
      REQUIRE(wrong.verdict == AttentionVerdict::kWrong);
      REQUIRE(wrong.mismatches.front().check == "attention.decision");
      kept += flipped.map.cells[i] == 2;
    }
    REQUIRE(kept > 0);
    ++profiles_seen;
  }
  REQUIRE(profiles_seen == 11);
}

// Key 5 of request 0 is kept by all 100 rows; its value, or what gives its score, is no number.
TEST_CASE("rows whose truth is NaN or infinite are not judged, and others are", "[VER-21.13]") {
  const Profile& profile = profile_named("modelopt-triton");
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
    for (const bool in_value : {true, false}) {
      const auto built = build(skipping_case());
      const std::size_t bytes = 2, key = 5;
      if (in_value) built->v.set((key * 16 + 3) * bytes, bad);
      if (!in_value) built->k.set((key * 64 + 9) * bytes, bad);
      Written w = written_by(profile, built->problem);
      const AttentionJudgement own = judged(profile, built->problem, w);
      CAPTURE(bad, in_value, sentences(own), own.notes);
      CHECK(own.verdict == AttentionVerdict::kWithinGrade);
      const std::string note = "200 rows not judged: their scores or values are not finite";
      CHECK(std::find(own.notes.begin(), own.notes.end(), note) != own.notes.end());
      w.out[w.out.size() - 1] = 0x4180;  // 16 in BF16, in a row of request 1
      CHECK(judged(profile, built->problem, w).verdict == AttentionVerdict::kWrong);
    }
}

TEST_CASE("outputs of another size are refused with the sizes", "[VER-21.1]") {
  const Profile& profile = profile_named("assay-prefill-sm90");
  const auto built = build(skipping_case());
  const Written w = written_by(profile, built->problem);
  const auto refused = [&](const AttentionOutputs& outputs, const std::string& words) {
    const auto result = judge_attention(profile, built->problem, outputs);
    REQUIRE(!result.has_value());
    CAPTURE(result.error().sentence);
    REQUIRE(result.error().sentence.find(words) != std::string::npos);
  };
  refused({std::span(w.out).first(5), {}, nullptr}, "out has 5 elements");
  refused({w.out, std::span(w.lse).first(3), nullptr}, "lse has 3 elements");
  DecisionMap map = w.map;
  map.extents[2] += 1;
  refused({w.out, {}, &map}, "decision is [2, 2, 3, ");
  map = w.map;
  map.cells.pop_back();
  refused({w.out, {}, &map}, "cells");
}

TEST_CASE("a judgement knows when it proves nothing about skipping", "[VER-21.5]") {
  const Profile& profile = profile_named("assay-prefill-sm90");
  const auto told = [&](Case c) {
    const auto built = build(c);
    return judged(profile, built->problem, written_by(profile, built->problem)).vacuous;
  };
  Case c = skipping_case();
  REQUIRE(told(c).empty());
  c.lambda = -1;
  REQUIRE(told(c).empty());
  c.lambda = 1e-30f;
  REQUIRE(told(c).find("was skipped") != std::string::npos);
  c.lambda = 0.02f;
  c.kv_lens = {128, 100};
  REQUIRE(told(c).find("none of 8 visited tiles was asked") != std::string::npos);
  c.kv_lens = {256, 200};
  c.contrast = 60;
  REQUIRE(told(c).find("all 8 tiles that were asked were skipped") != std::string::npos);
}

}  // namespace
}  // namespace assay::verify::testing
