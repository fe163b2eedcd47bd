// The decisions-only pass against the emulator, for every profile; what lambda does to sparsity,
// and where more lambda skips less.
#include "model/attention/calibration_decisions.hpp"

#include <set>

#include "model/attention/attention_testing.hpp"

using namespace assay;
using namespace assay::attention;
using namespace assay::attention::testing;

namespace {

std::vector<const Profile*> skipping_profiles() {
  std::vector<const Profile*> list;
  for (const Profile& profile : profiles())
    if (!profile.skip.dense_only) list.push_back(&profile);
  return list;
}

DecisionReplay replay_of(const Profile& profile, const Problem& problem, int threads = 1) {
  auto made = DecisionReplay::make(profile, problem, threads);
  INFO((made ? std::string() : made.error().sentence));
  REQUIRE(made.has_value());
  return *std::move(made);
}

bool supported(const Profile& profile, const Problem& problem) {
  return Emulator::make(profile, problem).has_value();
}

// Whether the pass and the emulator say the same of every unit and tile.
bool same_trace(const DecisionReplay& replay, const Emulation& emulation) {
  for (std::size_t u = 0; u < emulation.units.size(); ++u) {
    const UnitResult& unit = emulation.units[u];
    const Lambda& lambda = replay.emulator().lambda(unit.unit.request);
    const std::vector<TileDecision> got = replay.decide(u, lambda);
    if (got.size() != unit.tiles.size()) return false;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const TileTrace& want = unit.tiles[i];
      if (got[i].tile != want.tile || got[i].decision != want.decision ||
          got[i].asked != want.asked || got[i].zeroed != want.zeroed)
        return false;
    }
  }
  return true;
}

TileCounts count_at(const DecisionReplay& replay, float lambda) {
  return replay.count({Threshold::Kind::kLambda, lambda});
}

}  // namespace

TEST_CASE("decisions without outputs are the emulator's, for every profile", "[long][ATT-8.1]") {
  for (const Profile* profile : skipping_profiles()) {
    std::set<Decision> seen;
    int compared = 0;
    prop(std::string(profile->name), [&] {
      Case c = *cases(*profile, {90, 300, 2, 2, true});
      const auto built = build(c);
      if (!supported(*profile, built->problem)) return;
      // Computed at one threshold, used at another: scores do not depend on it.
      for (const float factor : {c.lambda, c.lambda * 200}) {
        for (Request& r : built->problem.requests)
          if (c.lambda >= 0)
            r.threshold = {
                factor == c.lambda ? Threshold::Kind::kLambda : Threshold::Kind::kScaleFactor,
                factor};
        const Emulation emulation = run(*profile, built->problem);
        const DecisionReplay replay = replay_of(*profile, built->problem);
        RC_ASSERT(same_trace(replay, emulation));
        TileCounts total;
        if (c.lambda >= 0 && profile->skip.lambda_length != LambdaLength::kNone) {
          total = replay.count(built->problem.requests[0].threshold);
          RC_ASSERT(total.visited == emulation.counters.visited);
          RC_ASSERT(total.asked == emulation.counters.asked);
          RC_ASSERT(total.skipped == emulation.counters.skipped);
          RC_ASSERT(total.partly_zeroed == emulation.counters.partly_zeroed);
        }
        for (const UnitResult& unit : emulation.units)
          for (const Decision d : decisions(unit)) seen.insert(d);
        ++compared;
      }
    });
    INFO(profile->name);
    CHECK(compared >= 50);
    CHECK(seen.count(Decision::kKept) == 1);
    CHECK(seen.count(Decision::kSkipped) == 1);
  }
}

TEST_CASE("one scoring serves every threshold", "[ATT-8.1]") {
  Case c;
  c.q_heads = c.kv_heads = 2;
  c.head_dim = c.v_dim = 64;
  c.q_lens = {130};
  c.kv_lens = {700};
  c.spread = 3;
  c.mask = MaskKind::kCausal;
  for (const Profile* profile : skipping_profiles()) {
    const auto built = build(c);
    if (!supported(*profile, built->problem)) continue;
    const DecisionReplay replay = replay_of(*profile, built->problem, 2);
    for (int i = -12; i <= 4; ++i) {
      const float lambda = std::ldexp(1.0f, i);
      built->problem.requests[0].threshold = {Threshold::Kind::kLambda, lambda};
      const Emulation emulation = run(*profile, built->problem);
      const TileCounts counts = count_at(replay, lambda);
      INFO(profile->name << " lambda " << lambda);
      CHECK(counts.skipped == emulation.counters.skipped);
      CHECK(counts.visited == emulation.counters.visited);
    }
  }
}

TEST_CASE("every piece of split keys has a maximum of its own", "[ATT-8.1]") {
  // Keys of height 10 and 0 in nats. XQA with two splits: even tiles high, odd ones low; the second
  // sub-sequence never sees the high ones, so none of its tiles is below its maximum. Our decode
  // kernel likewise with chunks of 2048 keys, the first high, the second low.
  struct Run {
    const char* profile;
    int kv_len, splits, period;
  };
  for (const Run& r :
       {Run{"trtllm-xqa-sm90", 64 * 8, 2, 64}, {"assay-decode-sm90", 4096, 1, 2048}}) {
    Case c;
    c.kv_lens = {r.kv_len};
    c.lambda = 0.5f;
    c.splits = r.splits;
    const auto built = build(c);
    built->q.fill(Dtype::kBf16, 1, 1, 32, [](int, int, int d) { return d == 0 ? 1.0f : 0.0f; });
    built->k.fill(Dtype::kBf16, r.kv_len, 1, 32, [&](int i, int, int d) {
      return d == 0 && i / r.period % 2 == 0 ? 10.0f : 0.0f;
    });
    built->problem.scale = 1;
    built->problem.requests[0].q.base = built->q.bytes.data();
    built->problem.requests[0].k.base = built->k.bytes.data();
    const DecisionReplay replay = replay_of(profile_named(r.profile), built->problem);
    INFO(r.profile);
    CHECK(count_at(replay, 0.5f).asked > 4);
    CHECK(count_at(replay, 0.5f).skipped == 0);
    CHECK(same_trace(replay, run(profile_named(r.profile), built->problem)));
  }
}

TEST_CASE("the last tile is first where a profile says so", "[ATT-8.1]") {
  Profile backward = profile_named("assay-prefill-sm90");
  backward.skip.backward = true;
  std::int64_t skipped = 0;
  prop("any case", [&] {
    Case c = *cases(backward, {90, 600, 1, 2, false});
    c.lambda = 0.3f;
    const auto built = build(c);
    const Emulation emulation = run(backward, built->problem);
    RC_ASSERT(same_trace(replay_of(backward, built->problem), emulation));
    skipped += emulation.counters.skipped;
  });
  CHECK(skipped > 0);
}

TEST_CASE("up to lambda 1, more lambda never skips less, whatever the profile", "[long][ATT-8.4]") {
  // A skipped tile lies below the running maximum of every row, so that the maximum is the same
  // whether it was skipped or not: votes see the same maxima at every lambda, and grow with it.
  // Where skipped tiles raise the maximum too, this holds above 1 as well.
  for (const Profile* profile : skipping_profiles()) {
    const bool raises = profile->skip.max_on_skip == MaxOnSkip::kRaise &&
                        profile->skip.above_one == LambdaAboveOne::kAllow;
    prop(std::string(profile->name), [&] {
      const auto built = build(*cases(*profile));
      if (!supported(*profile, built->problem)) return;
      const DecisionReplay replay = replay_of(*profile, built->problem);
      std::int64_t before = 0;
      for (int i = -20; i <= (raises ? 12 : 0); ++i) {
        const std::int64_t now = count_at(replay, std::exp2(static_cast<float>(i) / 2)).skipped;
        RC_ASSERT(now >= before);
        before = now;
      }
    });
  }
}

TEST_CASE("above lambda 1 more lambda can skip less, if skipped tiles leave the maximum",
          "[ATT-8.4]") {
  // Heights in nats of four tiles for two kinds of rows in one unit. At lambda 1.65 (0.5 nats) the
  // second tile is kept, and the last two are then near the maxima that it left: two skipped. At 3
  // (1.1 nats) it is skipped although it holds every row's maximum, and each of the last two is far
  // above the old one for one kind of rows: one skipped.
  const float heights[4][2] = {{0, 0}, {1, 1}, {1.2f, 0}, {0, 1.2f}};
  const Profile& profile = profile_named("trtllm-fmha_v2-sm90");
  Case c;
  c.q_lens = {128};  // two units, each with rows of both kinds
  c.kv_lens = {1024};
  const auto built = build(c);
  const int tile = replay_of(profile, built->problem).emulator().resolved().tile.kv_tile;
  built->problem.requests[0].kv_len = 4 * tile;
  REQUIRE(4 * tile <= 1024);
  built->q.fill(Dtype::kBf16, 128, 1, 32, [](int i, int, int d) { return d == i % 2 ? 1.0f : 0; });
  built->k.fill(Dtype::kBf16, 1024, 1, 32, [&](int i, int, int d) {
    return d < 2 && i < 4 * tile ? heights[i / tile][d] : 0;
  });
  built->problem.scale = 1;
  built->problem.requests[0].q.base = built->q.bytes.data();
  built->problem.requests[0].k.base = built->k.bytes.data();
  const DecisionReplay replay = replay_of(profile, built->problem);
  CHECK(count_at(replay, 1.65f).skipped == 2 * 2);
  CHECK(count_at(replay, 3.0f).skipped == 2 * 1);
  const DecisionReplay raised = replay_of(profile_named("modelopt-pytorch"), built->problem);
  CHECK(count_at(raised, 3.0f).skipped >= count_at(raised, 1.65f).skipped);
}

TEST_CASE("tiles behind the diagonal are told apart from skipped ones", "[ATT-8.2]") {
  Case c;
  c.head_dim = 128;
  c.q_lens = {128};
  c.kv_lens = {128};
  c.mask = MaskKind::kCausal;
  const auto built = build(c);
  // Two units share key tiles; 128 keys are one tile, so nothing is hidden.
  const DecisionReplay one = replay_of(profile_named("trtllm-fmha_v2-sm90"), built->problem);
  CHECK(count_at(one, 1e-6f).hidden == 0);
  // With tiles of 64 keys the first unit visits one that it cannot see, and counts it as skipped.
  c.head_dim = 160;
  const auto wide = build(c);
  const DecisionReplay two = replay_of(profile_named("trtllm-fmha_v2-sm90"), wide->problem);
  const TileCounts counts = count_at(two, 1e-6f);
  CHECK(counts.hidden == 1);
  CHECK(counts.skipped == 1);
  CHECK(counts.visited == 4);
  CHECK(counts.asked == 2);
  CHECK(counts.of_visited() == 0.25);
  CHECK(counts.of_asked() == 0.5);
  // Ours does not visit it.
  const DecisionReplay ours = replay_of(profile_named("assay-prefill-sm90"), wide->problem);
  CHECK(count_at(ours, 1e-6f).hidden == 0);
  CHECK(count_at(ours, 1e-6f).visited == 3);
}

TEST_CASE("a profile that does not divide gets its lambda by a division to nearest", "[ATT-8.3]") {
  Case c;
  c.q_lens = {1, 1};
  c.kv_lens = {300, 77};
  const auto built = build(c);
  const DecisionReplay torch = replay_of(profile_named("modelopt-pytorch"), built->problem);
  const Threshold factor{Threshold::Kind::kScaleFactor, 10};
  CHECK(torch.lambda(0, factor).lambda.bits == numerics::from_float(10.0f / 300).bits);
  CHECK(torch.lambda(1, factor).lambda.bits == numerics::from_float(10.0f / 77).bits);
  // The batch's longest, where the profile divides by that.
  const DecisionReplay batch = replay_of(profile_named("flashinfer-cutedsl-sm100"), built->problem);
  CHECK(batch.lambda(1, factor).lambda.bits == batch.lambda(0, factor).lambda.bits);
}

TEST_CASE("a dense kernel has nothing to calibrate", "[ATT-8.3]") {
  Case c;
  const auto built = build(c);
  const auto made = DecisionReplay::make(profile_named("fa3-dense-sm90"), built->problem, 1);
  REQUIRE(!made.has_value());
  CHECK(made.error().kind == ErrorKind::kUnsupported);
}
