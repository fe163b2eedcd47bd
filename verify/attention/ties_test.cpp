// Near-tie decisions told from wrong ones, and the search among them.
#include <cmath>

#include "verify/attention/judge_testing.hpp"

namespace assay::verify::testing {
namespace {

// 64 equal rows, `tiles` of 128 keys; tile t has one score of levels[t] * scale in nats, V is its
// tile.
std::unique_ptr<Built> levels(const std::vector<float>& level, float scale, float lambda) {
  Case c;
  c.head_dim = 128;  // tiles of 128 keys in every profile asked here
  c.v_dim = 8;
  c.q_lens = {64};  // whole units: nothing pads
  c.kv_lens = {static_cast<int>(level.size()) * 128};
  c.lambda = lambda;
  auto built = build(c);
  built->problem.scale = scale;
  built->q.fill(c.dtype, 64, 1, 128, [](int, int, int d) { return d == 0 ? 1.0f : 0.0f; });
  built->k.fill(c.dtype, c.kv_lens[0], 1, 128, [&](int i, int, int d) {
    return d == 0 ? level[static_cast<std::size_t>(i / 128)] : 0.0f;
  });
  built->v.fill(c.dtype, c.kv_lens[0], 1, 8, [](int i, int, int d) {
    return static_cast<float>(i / 128 + 1) * (d % 2 == 0 ? 1.0f : -0.5f);
  });
  return built;
}

// The outputs of a kernel that took the given tiles the other way.
Written turned(const Profile& profile, const Problem& problem, std::vector<std::int32_t> tiles) {
  Written w = written_by(profile, problem);
  const auto emulator = Emulator::make(profile, problem);
  std::vector<ForcedTile> forced;
  for (const std::int32_t tile : tiles)
    forced.push_back({tile, w.map.cells[static_cast<std::size_t>(tile)] == 1});
  const UnitResult unit = emulator->run(emulator->units()[0], {forced});
  std::copy(unit.out.begin(), unit.out.end(), w.out.begin());
  for (std::size_t i = 0; i < unit.rows.size(); ++i) w.lse[i] = unit.rows[i].lse;
  for (const TileTrace& t : unit.tiles)
    w.map.cells[static_cast<std::size_t>(t.tile)] = static_cast<std::uint8_t>(t.decision);
  return w;
}

// lambda such that a score one below the maximum is within a rounding of the threshold.
const float kNear = std::exp(-1.0f);

TEST_CASE("a near-tie taken the other way is named, with a mask and without", "[VER-21.2]") {
  for (const char* name : {"assay-prefill-sm90", "trtllm-fmha_v2-sm90"}) {
    const Profile& profile = profile_named(name);
    // Tiles 2 and 4 are within roundings of the threshold, 1 and 5 far from it.
    const auto built = levels({0, -8, -1, 0, -1, -9}, 1, kNear);
    for (const std::vector<std::int32_t>& tiles :
         {std::vector<std::int32_t>{2}, {4}, {2, 4}, std::vector<std::int32_t>{}}) {
      const Written w = turned(profile, built->problem, tiles);
      for (const Mask mask : {Mask::kGiven, Mask::kLeftOut}) {
        const AttentionJudgement judgement = judged(profile, built->problem, w, mask);
        CAPTURE(name, tiles, sentences(judgement), mask == Mask::kGiven);
        REQUIRE(judgement.counters.near_ties == 2);
        REQUIRE(judgement.mismatches.empty());
        REQUIRE(judgement.verdict ==
                (tiles.empty() ? AttentionVerdict::kBitEqual : AttentionVerdict::kEqualUpToTies));
        REQUIRE(judgement.ties.size() == tiles.size());
        for (std::size_t i = 0; i < tiles.size(); ++i) {
          REQUIRE(judgement.ties[i].tile == tiles[i]);
          REQUIRE(judgement.ties[i].taken != judgement.ties[i].expected);
          REQUIRE(std::abs(judgement.ties[i].margin_log2) < 1e-5f);
          REQUIRE(tie_text(judgement.ties[i]).find("tile " + std::to_string(tiles[i])) !=
                  std::string::npos);
        }
      }
    }
  }
}

TEST_CASE("a decision far from the threshold taken the other way is wrong, whatever else agrees",
          "[VER-21.2]") {
  const Profile& profile = profile_named("assay-prefill-sm90");
  const auto built = levels({0, -8, -1, 0, -1, -9}, 1, kNear);
  for (const std::vector<std::int32_t>& tiles : {std::vector<std::int32_t>{1}, {5}, {3}, {2, 5}}) {
    const Written w = turned(profile, built->problem, tiles);
    const AttentionJudgement masked = judged(profile, built->problem, w);
    CAPTURE(tiles, sentences(masked));
    REQUIRE(masked.verdict == AttentionVerdict::kWrong);
    REQUIRE(masked.mismatches.front().check == "attention.decision");
    REQUIRE(at(masked.mismatches.front(), "tile") == tiles.back());
    REQUIRE(masked.mismatches.front().wrong == 1);
    REQUIRE(masked.ties.size() == tiles.size() - 1);
    const AttentionJudgement blind = judged(profile, built->problem, w, Mask::kLeftOut);
    REQUIRE(blind.verdict == AttentionVerdict::kWrong);
    REQUIRE(blind.mismatches.front().check != "attention.decision");
  }
  // A mask that says otherwise than the output: the mask is believed, the output wrong.
  Written w = turned(profile, built->problem, {2});
  w.map = written_by(profile, built->problem).map;
  const AttentionJudgement lying = judged(profile, built->problem, w);
  REQUIRE(lying.verdict == AttentionVerdict::kWrong);
  REQUIRE(lying.mismatches.front().check == "attention.out");
}

TEST_CASE("an exact tie is decided by < or <=, not by roundings", "[VER-21.2]") {
  const Profile& profile = profile_named("assay-prefill-sm90");
  const auto built = levels({0, 0, -3, 0}, 1, 1);
  const Written w = turned(profile, built->problem, {1});
  for (const Mask mask : {Mask::kGiven, Mask::kLeftOut})
    REQUIRE(judged(profile, built->problem, w, mask).verdict == AttentionVerdict::kWrong);
  Profile loose = profile;
  loose.skip.strict = false;
  const Written all = written_by(loose, built->problem);
  REQUIRE(tells(judged(profile, built->problem, all, Mask::kGiven, true), "<= rather than <"));
}

TEST_CASE("with lambda 0 no decision is a near-tie", "[VER-21.13]") {
  const Profile& profile = profile_named("assay-prefill-sm90");
  const auto built = levels({0, -3, -9, -30}, 1, 0);
  const Written w = turned(profile, built->problem, {1});
  for (const Mask mask : {Mask::kGiven, Mask::kLeftOut})
    REQUIRE(judged(profile, built->problem, w, mask).verdict == AttentionVerdict::kWrong);
}

TEST_CASE("the search for near-ties without a mask ends and says so", "[VER-21.2]") {
  const Profile& profile = profile_named("assay-prefill-sm90");
  std::vector<float> level(12, -1.0f);
  level[0] = 0;
  const auto built = levels(level, 1, kNear);
  Written w = written_by(profile, built->problem);
  w.out[0] ^= 0x4000;
  const AttentionJudgement judgement = judged(profile, built->problem, w, Mask::kLeftOut);
  REQUIRE(judgement.counters.near_ties == 11);
  REQUIRE(judgement.verdict == AttentionVerdict::kWrong);
  REQUIRE(judgement.notes.size() == 1);
  REQUIRE(judgement.notes[0].find("64 of the combinations") != std::string::npos);
}

TEST_CASE("near-ties are as wide as arithmetic that is not known makes them", "[VER-21.3]") {
  const Profile& profile = profile_named("modelopt-triton");
  const auto built = levels({0, -4, -1, 0}, 1, kNear);
  const Written w = turned(profile, built->problem, {8});  // tiles of 32 keys: 8 to 11 are level -1
  const AttentionJudgement judgement = judged(profile, built->problem, w);
  CAPTURE(sentences(judgement));
  REQUIRE(judgement.verdict == AttentionVerdict::kWithinGrade);
  REQUIRE(judgement.ties.size() == 1);
  const Written wrong = turned(profile, built->problem, {5});
  REQUIRE(judged(profile, built->problem, wrong).verdict == AttentionVerdict::kWrong);
}

}  // namespace
}  // namespace assay::verify::testing
