// Bounds on scores: that they hold, that they are used, and that a run with them has the bits and
// the records of a run without.
#include "model/attention/score_bounds.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "model/attention/attention_testing.hpp"
#include "model/attention/host_executor.hpp"

namespace {

using namespace assay;
using namespace assay::attention;
using namespace assay::attention::testing;

// The host's executor as it would be without bounds.
class PlainExecutor : public HostExecutor {
 public:
  static constexpr bool kSettlesSkips = false;
};

template <class Executor>
UnitResult run_unit(const Unit& unit, const UnitView& view, std::int64_t& settled) {
  const UnitLayout layout(view);
  UnitScratch<std::uint16_t> scratch;
  std::vector<std::byte> memory(scratch.place(view, layout.rows(), layout.segments(), nullptr));
  scratch.place(view, layout.rows(), layout.segments(), memory.data());
  UnitSpace space(layout, view.v_dim);
  const UnitOutput output = space.output();
  const Executor executor;
  UnitRun<std::uint16_t, Executor>(view, layout, scratch, output, executor).run();
  settled += executor.settled();
  return std::move(space).result(unit, layout);
}

bool same(const UnitResult& a, const UnitResult& b) {
  if (a.out != b.out || a.tiles.size() != b.tiles.size()) return false;
  for (std::size_t i = 0; i < a.tiles.size(); ++i) {
    const TileTrace &x = a.tiles[i], &y = b.tiles[i];
    if (x.decision != y.decision || x.asked != y.asked || x.near_tie != y.near_tie) return false;
    if (x.row != y.row || x.local_max.bits != y.local_max.bits) return false;
    if (x.running_max.bits != y.running_max.bits || x.margin_log2 != y.margin_log2) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("a run with bounds on scores has the records of one without, and uses them",
          "[ATT-5.11]") {
  for (const Profile& profile : profiles()) {
    if (profile.skip.dense_only) continue;
    std::int64_t settled = 0, none = 0, skipped = 0;
    prop(std::string(profile.name), [&] {
      Case c = *cases(profile, {90, 1200, 1, 2});
      if (c.dtype == Dtype::kF8E4m3) c.dtype = Dtype::kF16;
      c.lambda = *rc::gen::element(0.9f, 0.3f, 0.05f, 1e-3f, 1e-20f, 1.5f);
      c.contrast = *rc::gen::element(0.0f, 0.5f, 1.0f, 3.0f, 8.0f);
      c.spread = *rc::gen::element(0.1f, 0.3f, 1.0f, 8.0f);
      const auto built = build(c);
      Problem& p = built->problem;
      p.scale *= *rc::gen::element(1.0f, 1.0f, 0.01f, 30.0f);
      const auto emulator = Emulator::make(profile, p);
      if (emulator->units().empty()) return;
      const Unit unit = *rc::gen::elementOf(emulator->units());
      const UnitView view = emulator->view(unit);
      const UnitResult with = run_unit<HostExecutor>(unit, view, settled);
      const UnitResult without = run_unit<PlainExecutor>(unit, view, none);
      RC_ASSERT(same(with, without));
      for (const TileTrace& t : without.tiles) skipped += t.decision == Decision::kSkipped;
    });
    CAPTURE(profile.name, settled, skipped);
    REQUIRE(none == 0);
    const bool leaves_a_trace =
        profile.skip.max_on_skip != MaxOnSkip::kKeep || profile.skip.zeroing_rows != 0;
    REQUIRE((leaves_a_trace ? settled == 0 : settled > 3));
  }
}

TEST_CASE("approximate scores are within their bound, which is not idle", "[ATT-5.11]") {
  double worst = 0;
  prop("16-bit operands of any size", [&] {
    UnitView view;
    const bool f16 = *rc::gen::arbitrary<bool>();
    view.dtype = f16 ? Dtype::kF16 : Dtype::kBf16;
    view.head_dim = 16 * *rc::gen::inRange(1, 20);
    view.instruction = numerics::find_instruction(
        f16 ? "wgmma.k16.f32.f16.f16" : "wgmma.k16.f32.bf16.bf16", numerics::Arch::kSm90a);
    view.arithmetic = view.instruction->arithmetic;
    const auto dim = static_cast<std::size_t>(view.head_dim);
    std::mt19937 random(*rc::gen::arbitrary<unsigned>());
    std::normal_distribution<float> normal;
    // Sizes from subnormal (of f16) to large, and rows whose terms cancel.
    const float q_size = std::ldexp(1.0f, *rc::gen::inRange(-24, 12));
    const float k_size = std::ldexp(1.0f, *rc::gen::inRange(-24, 12));
    const bool alike = *rc::gen::arbitrary<bool>();
    std::vector<std::uint16_t> q(dim), k(4 * dim);
    std::vector<float> q_wide(dim * 32), k_wide(4 * dim), approx(4 * 32), row_max(32), q_row(dim);
    const auto bits = [&](float x) { return static_cast<std::uint16_t>(encode(view.dtype, x)); };
    for (std::size_t d = 0; d < dim; ++d) {
      q[d] = bits(alike ? q_size : normal(random) * q_size);
      q_row[d] = q_wide[d * 32] = decode_out(view.dtype, q[d]);
    }
    for (std::size_t i = 0; i < k.size(); ++i) {
      k[i] = bits((alike ? 1 + normal(random) * 0.01f : normal(random)) * k_size);
      k_wide[i] = decode_out(view.dtype, k[i]);
    }
    approximate_scores(q_wide.data(), 32, k_wide.data(), 4, view.head_dim, approx.data(),
                       row_max.data());
    const double error =
        score_error(view, static_cast<double>(largest_norm(q_row.data(), 1, view.head_dim)),
                    static_cast<double>(largest_norm(k_wide.data(), 4, view.head_dim)));
    for (std::size_t j = 0; j < 4; ++j) {
      const F32 exact =
          numerics::dot(*view.instruction, q.data(), &k[j * dim], view.head_dim, F32{0});
      const double distance = std::abs(as_double(exact) - static_cast<double>(approx[j * 32]));
      RC_ASSERT(distance <= error);
      RC_ASSERT(row_max[0] >= approx[j * 32]);
      worst = std::max(worst, distance / error);
    }
  });
  REQUIRE(worst > 0.005);
}

TEST_CASE("scores that differ by roundings alone are told apart exactly", "[ATT-5.11]") {
  // Sums of the same terms in another order: 4 keys of a tile for equal queries, or 16 queries for
  // one key. All other keys of the tile are far below.
  const Profile& profile = profile_named("assay-prefill-sm90");
  std::int64_t settled = 0, none = 0;
  for (const bool keys_vary : {true, false}) {
    prop(keys_vary ? "keys vary" : "queries vary", [&] {
      constexpr int kDim = 64, kRows = 16, kKeys = 640;
      std::mt19937 random(*rc::gen::arbitrary<unsigned>());
      std::normal_distribution<float> normal(1.0f, 1.0f);
      std::vector<float> terms(kDim);
      for (float& x : terms) x = std::ldexp(normal(random), -static_cast<int>(random() % 14));
      const auto shuffled = [&] {
        std::shuffle(terms.begin(), terms.end(), random);
        return terms;
      };
      Case c;
      c.head_dim = kDim;
      c.q_lens = {kRows};
      c.kv_lens = {kKeys};
      c.lambda = 0.5f;
      const auto built = build(c);
      const std::vector<float> ones(kDim, 1.0f);
      const auto fill = [&](Tensor& t, int row, const std::vector<float>& x, float by) {
        for (int d = 0; d < kDim; ++d)
          t.set(static_cast<std::size_t>(row * kDim + d) * 2, by * x[static_cast<std::size_t>(d)]);
      };
      for (int i = 0; i < kRows; ++i) fill(built->q, i, keys_vary ? ones : shuffled(), 1);
      for (int j = 0; j < kKeys; ++j) {
        const bool top = j % 128 < (keys_vary ? 4 : 1);
        if (j < 128 || !top)
          fill(built->k, j, ones, j < 128 ? 0.0f : -30.0f);
        else
          fill(built->k, j, keys_vary ? shuffled() : ones, -4);
      }
      const auto emulator = Emulator::make(profile, built->problem);
      const Unit& unit = emulator->units()[0];
      const UnitView view = emulator->view(unit);
      const UnitResult with = run_unit<HostExecutor>(unit, view, settled);
      RC_ASSERT(same(with, run_unit<PlainExecutor>(unit, view, none)));
    });
  }
  REQUIRE(settled > 500);
}

TEST_CASE("numbers that have no bounds are computed", "[ATT-5.11]") {
  const Profile& profile = profile_named("assay-prefill-sm90");
  Case c;
  c.q_lens = {64};
  c.kv_lens = {1024};
  c.lambda = 0.05f;
  c.contrast = 8;
  for (const std::uint16_t bits : {0x7F80, 0xFF80, 0x7FC1, 0x7F00}) {  // Inf, NaN, 2^127
    const auto built = build(c);
    const auto emulator = Emulator::make(profile, built->problem);
    const UnitView view = emulator->view(emulator->units()[0]);
    std::int64_t settled = 0, none = 0;
    run_unit<HostExecutor>(emulator->units()[0], view, settled);
    REQUIRE(settled >= 3);
    // In a tile that would be skipped, and in a query.
    for (Tensor* t : {&built->k, &built->q}) {
      const std::size_t row = t == &built->k ? 128 + 17 : 20;
      std::memcpy(&t->bytes[row * static_cast<std::size_t>(c.head_dim) * 2 + 6], &bits, 2);
      const UnitResult with = run_unit<HostExecutor>(emulator->units()[0], view, settled);
      const UnitResult without = run_unit<PlainExecutor>(emulator->units()[0], view, none);
      REQUIRE(with.out == without.out);
      REQUIRE(decisions(with) == decisions(without));
    }
  }
}
