// Properties of emulated attention: what every profile owes, what ours promise, and that a run
// neither depends on threads nor on other requests.
#include "model/attention/emulate.hpp"

#include <cmath>
#include <map>

#include "model/attention/attention_testing.hpp"

namespace {

using namespace assay;
using namespace assay::attention;
using namespace assay::attention::testing;

const char* const kOurs[] = {"assay-prefill-sm90", "assay-decode-sm90"};

// A case that the profile serves: fmha_v2 has no sense for rows without keys.
Case serving(const Profile& profile, Case c) {
  if (profile.name == "trtllm-fmha_v2-sm90") {
    c.bottom_right = true;
    for (std::size_t i = 0; i < c.q_lens.size(); ++i)
      c.kv_lens[i] = std::max({c.kv_lens[i], c.q_lens[i], 1});
  }
  return c;
}

}  // namespace

TEST_CASE("every profile whose bits are claimed stays within its stated bound of the truth",
          "[ATT-3.6][ATT-5.1]") {
  struct Seen {
    std::int64_t skipped = 0;
    double worst = 0;
  };
  std::map<std::string_view, Seen> seen;
  prop("any such profile, any problem", [&] {
    const Profile& profile =
        any_profile([](const Profile& p) { return p.grade <= Grade::kBitsClaimed; });
    const Case c = serving(profile, *cases(profile, {90, 300, 2, 2, true}));
    const auto built = build(c);
    const auto emulator = Emulator::make(profile, built->problem);
    RC_ASSERT(emulator.has_value());
    const Emulation got = run(profile, built->problem);
    const auto expected = truth(built->problem, kept_pairs(*emulator, got));
    RC_ASSERT(expected.has_value());
    seen[profile.name].skipped += got.counters.skipped;
    const int tiles = 300 / emulator->resolved().tile.kv_tile + 1;
    for (std::size_t i = 0; i < expected->rows.size(); ++i) {
      const TruthRow& row = expected->rows[i];
      const double bound = arithmetic_bound(emulator->resolved(), built->problem, row, tiles);
      for (int d = 0; d < c.v_dim; ++d) {
        const std::size_t at = i * static_cast<std::size_t>(c.v_dim) + static_cast<std::size_t>(d);
        const double out = static_cast<double>(decode_out(built->problem.out_dtype, got.out[at]));
        const double error = std::abs(out - expected->out[at]);
        if (!(error <= bound)) RC_FAIL("beyond the bound");
        if (bound > 0) seen[profile.name].worst = std::max(seen[profile.name].worst, error / bound);
      }
      if (got.lse_form == LseForm::kNone) continue;
      const double lse = static_cast<double>(numerics::to_float(got.lse[i]));
      if (std::isinf(row.lse_log2))
        RC_ASSERT(lse == row.lse_log2);
      else
        RC_ASSERT(std::abs(lse - row.lse_log2) <= bound / std::max(row.v_max, 1e-9) * 2 + 1e-4);
    }
  });
  REQUIRE(seen.size() == 3);
  for (const auto& [name, what] : seen) {
    CAPTURE(name, what.skipped, what.worst);
    REQUIRE(what.skipped > 5);
    REQUIRE(what.worst > 0.01);  // the bound is not idle
  }
}

TEST_CASE("values that are all 1 give 1, and one-hot values give shares of the visible keys",
          "[ATT-5.2][ATT-6.2]") {
  for (const char* name : kOurs) {
    const Profile& profile = profile_named(name);
    prop(name, [&] {
      Case c = *cases(profile, {70, 200, 1});
      if (c.dtype == Dtype::kF8E4m3) c.dtype = Dtype::kBf16;
      c.lambda = -1;
      // Equal scores: P is exactly 1 everywhere, so sums and products are exact integers. The last
      // value column is all ones; key i has a one in column i mod the others.
      auto built = build(c);
      std::fill(built->q.bytes.begin(), built->q.bytes.end(), std::byte{0});
      Problem& p = built->problem;
      const int others = c.v_dim - 1;
      for (const Request& r : p.requests)
        for (int i = 0; i < r.kv_len; ++i)
          for (int h = 0; h < c.kv_heads; ++h)
            for (int d = 0; d < c.v_dim; ++d)
              built->v.set(static_cast<std::size_t>(r.v.row(h, i, 2) - built->v.bytes.data()) +
                               static_cast<std::size_t>(2 * d),
                           d == others || i % others == d ? 1.0f : 0.0f);
      const Emulation got = run(profile, p);
      std::size_t at = 0;
      for (const Request& r : p.requests)
        for (int q = 0; q < r.q_len; ++q)
          for (int h = 0; h < c.q_heads; ++h) {
            const Range keys = visible_keys(p.mask_of(r), q, r.kv_len);
            std::vector<int> counts(static_cast<std::size_t>(c.v_dim));
            for (int i = keys.begin; i < keys.end; ++i)
              ++counts[static_cast<std::size_t>(i % others)];
            counts.back() = keys.count();
            const F32 inverse = numerics::div_rn(
                kOne, numerics::from_float(static_cast<float>(keys.count())), false);
            for (int d = 0; d < c.v_dim; ++d, ++at) {
              const float count = static_cast<float>(counts[static_cast<std::size_t>(d)]);
              const F32 share = numerics::mul_rn(numerics::from_float(count), inverse, false);
              const float expected = keys.empty()  ? 0.0f
                                     : d == others ? 1.0f
                                                   : numerics::to_float(share);
              RC_ASSERT(got.out[at] == encode(p.out_dtype, expected));
            }
          }
    });
  }
}

TEST_CASE("a batch gives each request the bits it has alone", "[ATT-5.1][ATT-5.7]") {
  // The batch's longest length, or the neighbours behind a request, are inputs of the others.
  const auto wanted = [](const Profile& profile) {
    return profile.skip.lambda_length != LambdaLength::kBatchMax &&
           profile.skip.padding_fill == PaddingFill::kZero;
  };
  prop("any profile, any problem", [&] {
    const Profile& profile = any_profile(wanted);
    Case c = *cases(profile, {30, 200, 3});
    if (profile.skip.dense_only) c.lambda = -1;
    const auto built = build(c);
    const Emulation together = run(profile, built->problem);
    std::size_t at = 0, row = 0;
    for (std::size_t i = 0; i < built->problem.requests.size(); ++i) {
      Problem single = built->problem;
      single.requests = {built->problem.requests[i]};
      const Emulation alone = run(profile, single, 2);
      for (const std::uint16_t bits : alone.out) RC_ASSERT(bits == together.out[at++]);
      for (const F32 x : alone.lse) RC_ASSERT(x.bits == together.lse[row++].bits);
    }
  });
}

TEST_CASE("threads and single units give the bits of the whole", "[ATT-5.7]") {
  for (const Profile& profile : profiles()) {
    Case c;
    c.q_heads = 4;
    c.kv_heads = 2;
    c.v_dim = 8;
    c.q_lens = {profile.skip.packing == Packing::kGroupRows ? 3 : 150, 1};
    c.kv_lens = {300, 70};
    c.lambda = profile.skip.dense_only ? -1.0f : 0.3f;
    c.contrast = 8;
    c.splits = 3;
    const auto built = build(c);
    const Emulation one = run(profile, built->problem, 1);
    for (const int threads : {2, 5}) {
      const Emulation many = run(profile, built->problem, threads);
      REQUIRE(many.out == one.out);
      REQUIRE(same_lse(many, one));
      for (std::size_t i = 0; i < one.units.size(); ++i)
        REQUIRE(decisions(many.units[i]) == decisions(one.units[i]));
    }
    const auto emulator = Emulator::make(profile, built->problem);
    const std::size_t last = emulator->unit_of(0, 3, c.q_lens[0] - 1);
    const UnitResult unit = emulator->run(emulator->units()[last]);
    const auto dim = static_cast<std::size_t>(c.v_dim);
    for (std::size_t i = 0; i < unit.rows.size(); ++i) {
      const auto place = static_cast<std::size_t>(unit.rows[i].token * 4 + unit.rows[i].q_head);
      for (std::size_t d = 0; d < dim; ++d)
        REQUIRE(unit.out[i * dim + d] == one.out[place * dim + d]);
    }
  }
}

TEST_CASE("lambda 0 has the bits of no threshold", "[ATT-4.3][ATT-4.6]") {
  // With <= a row that sees nothing of a tile agrees even then.
  const auto wanted = [](const Profile& p) { return !p.skip.dense_only && p.skip.strict; };
  prop("any strict profile, any problem", [&] {
    const Profile& profile = any_profile(wanted);
    Case c = *cases(profile, {30, 300, 1});
    c.lambda = 0;
    const auto zero = build(c);
    c.lambda = -1;
    const auto off = build(c);
    const Emulation a = run(profile, zero->problem);
    const Emulation b = run(profile, off->problem);
    RC_ASSERT(a.out == b.out);
    RC_ASSERT(same_lse(a, b));
  });
}

TEST_CASE("tiles made low are skipped, and no others", "[ATT-4.4][ATT-5.5]") {
  for (const Profile& profile : profiles()) {
    if (profile.skip.dense_only) continue;
    const bool decode = profile.skip.packing == Packing::kGroupRows;
    Case c;
    c.q_lens = {decode ? 1 : 128};
    c.kv_lens = {1024};
    c.q_heads = decode ? 64 : 1;  // a whole unit: some profiles let padding vote
    c.head_dim = 96;
    c.lambda = 1e-3f;
    c.spread = 0.1f;
    c.contrast = 30;
    const auto built = build(c);
    const Emulation got = run(profile, built->problem);
    for (const UnitResult& unit : got.units) {
      REQUIRE(!unit.tiles.empty());
      int visits = 0;
      for (const TileTrace& tile : unit.tiles) {
        const auto emulator = Emulator::make(profile, built->problem);
        const int kv_tile = emulator->resolved().tile.kv_tile;
        const bool low = tile.tile * kv_tile / 128 % 2 == 1;
        const bool forced = visits++ < profile.skip.kept_first;
        CAPTURE(profile.name, tile.tile, kv_tile);
        REQUIRE(tile.decision == (low && !forced ? Decision::kSkipped : Decision::kKept));
        REQUIRE(!tile.near_tie);
        if (tile.asked && tile.tile > 0) {
          REQUIRE((tile.margin_log2 < 0) == (tile.decision == Decision::kSkipped));
          if (low) REQUIRE(std::abs(tile.margin_log2 + 30 * 1.4427f - 9.966f) < 5);
        }
      }
    }
    REQUIRE(got.counters.skipped > 0);
  }
}

TEST_CASE("our decode does not depend on the number of splits, XQA's does",
          "[ATT-5.4][ATT-6.4][ATT-7.2]") {
  Case c;
  c.q_heads = 8;
  c.kv_heads = 1;
  c.q_lens = {2};
  c.kv_lens = {5000};
  c.head_dim = 64;
  c.lambda = 0.2f;
  c.contrast = 4;
  const auto differs = [&](const char* name) {
    const Profile& profile = profile_named(name);
    c.splits = 1;
    const auto first = build(c);
    const Emulation one = run(profile, first->problem);
    REQUIRE(one.counters.skipped > 0);
    bool any = false;
    for (const int splits : {2, 3, 8}) {
      c.splits = splits;
      const auto built = build(c);
      const Emulation many = run(profile, built->problem);
      any |= many.out != one.out || many.counters.skipped != one.counters.skipped;
    }
    return any;
  };
  REQUIRE_FALSE(differs("assay-decode-sm90"));
  REQUIRE(differs("trtllm-xqa-sm90"));
}

TEST_CASE("padding neither votes nor leaks in our profiles", "[ATT-4.5][ATT-6.1]") {
  for (const char* name : kOurs) {
    const Profile& profile = profile_named(name);
    prop(name, [&] {
      Case c = *cases(profile, {40, 200, 2});
      if (c.dtype == Dtype::kF8E4m3) c.dtype = Dtype::kF16;
      const auto clean = build(c);
      const Emulation expected = run(profile, clean->problem);
      // The same rows with NaN behind every one of them.
      Problem poisoned = clean->problem;
      std::vector<std::vector<std::uint16_t>> pools;
      for (Request& r : poisoned.requests) {
        const auto copy = [&](Rows& rows, int heads, int dim, int length) {
          const auto stride = static_cast<std::size_t>(heads * dim);
          std::vector<std::uint16_t>& pool = pools.emplace_back(
              static_cast<std::size_t>(length + 300) * stride, std::uint16_t{0x7FFF});
          for (int i = 0; i < length; ++i)
            std::copy_n(rows.row(0, i, 2), stride * 2,
                        reinterpret_cast<std::byte*>(&pool[static_cast<std::size_t>(i) * stride]));
          rows = contiguous_rows(pool.data(), 0, length + 300, heads, dim, 2);
        };
        copy(r.q, c.q_heads, c.head_dim, r.q_len);
        copy(r.k, c.kv_heads, c.head_dim, r.kv_len);
        copy(r.v, c.kv_heads, c.v_dim, r.kv_len);
      }
      const Emulation got = run(profile, poisoned);
      RC_ASSERT(got.out == expected.out);
      RC_ASSERT(same_lse(got, expected));
      RC_ASSERT(got.counters.skipped == expected.counters.skipped);
    });
  }
}

TEST_CASE("soft cap, bias and sinks come out near the truth", "[ATT-3.1][ATT-5.1][ATT-5.2]") {
  // tanh.approx.f32 is off by 2^-11 of 1 at most, so a capped score by 2^-11 of the cap.
  const Profile& fmha = profile_named("trtllm-fmha_v2-sm90");
  prop("any problem", [&] {
    Case c = serving(fmha, *cases(fmha, {40, 200, 1}));
    if (c.dtype == Dtype::kF8E4m3) c.dtype = Dtype::kBf16;
    c.lambda = -1;
    const auto built = build(c);
    Problem& p = built->problem;
    const std::vector<float> slopes(static_cast<std::size_t>(c.q_heads), 0.0625f);
    const std::vector<float> sinks(static_cast<std::size_t>(c.q_heads), 0.5f);
    const int kind = *rc::gen::inRange(0, 4);
    if (kind == 0) p.softcap = 4;
    if (kind == 1) p.alibi_slopes = slopes;
    if (kind >= 2) p.sinks = sinks;
    const Profile& profile = kind == 3 ? profile_named("assay-prefill-sm90") : fmha;
    const Emulation got = run(profile, p);
    RC_ASSERT(got.grade == (kind < 2 ? Grade::kDecisions : Grade::kBitsClaimed));
    const auto expected = truth(p);
    const auto resolved = resolve(profile, p);
    for (std::size_t i = 0; i < expected->rows.size(); ++i) {
      TruthRow row = expected->rows[i];
      row.score_magnitude += 16;  // the bias adds to what is rounded
      const double bound =
          arithmetic_bound(*resolved, p, row, 3) + (kind == 0 ? 4 * 0x1p-10 * row.v_max : 0);
      for (int d = 0; d < c.v_dim; ++d) {
        const std::size_t at = i * static_cast<std::size_t>(c.v_dim) + static_cast<std::size_t>(d);
        const double out = static_cast<double>(decode_out(p.out_dtype, got.out[at]));
        RC_ASSERT(std::abs(out - expected->out[at]) <= bound);
      }
    }
  });
}

TEST_CASE("a chunked prefill at unit edges has the bits of one shot, given lambda",
          "[ATT-1.1][ATT-6.1]") {
  const Profile& profile = profile_named("assay-prefill-sm90");
  std::int64_t skipped = 0;
  prop("any causal problem", [&] {
    Case c = *cases(profile, {1, 1, 1});
    c.mask = MaskKind::kCausal;
    c.q_lens = c.kv_lens = {64 * *rc::gen::inRange(2, 6) + *rc::gen::inRange(1, 64)};
    if (c.lambda == 0) c.lambda = 0.3f;
    const auto built = build(c);
    const Emulation whole = run(profile, built->problem);
    skipped += whole.counters.skipped;
    const int cut = 64 * *rc::gen::inRange(1, c.q_lens[0] / 64 + 1);
    std::size_t at = 0, row = 0;
    for (const int begin : {0, cut}) {
      Problem piece = built->problem;
      Request& r = piece.requests[0];
      r.q_len = begin == 0 ? cut : c.q_lens[0] - cut;
      r.q.base = r.q.row(0, begin, piece.element_bytes());
      r.q.available = r.q_len;
      r.kv_len = r.k.available = r.v.available = begin + r.q_len;
      r.q_offset = begin;
      const Emulation part = run(profile, piece);
      for (const std::uint16_t bits : part.out) RC_ASSERT(bits == whole.out[at++]);
      for (const F32 x : part.lse) RC_ASSERT(x.bits == whole.lse[row++].bits);
    }
  });
  REQUIRE(skipped > 20);
}

TEST_CASE("the decision map has a cell for every unit and tile", "[ATT-5.5]") {
  Case c;
  c.q_heads = 2;
  c.q_lens = {130, 10};
  c.kv_lens = {130, 400};
  c.mask = MaskKind::kCausal;
  c.lambda = 0.02f;
  c.contrast = 8;
  const auto built = build(c);
  const Profile& profile = profile_named("assay-prefill-sm90");
  const auto emulator = Emulator::make(profile, built->problem);
  const Emulation got = run(profile, built->problem);
  const DecisionMap map = decision_map(*emulator, got);
  REQUIRE(map.extents == std::array<int, 4>{2, 2, 3, 4});
  REQUIRE(map.cells.size() == 48);
  std::array<std::int64_t, 4> counts{};
  for (const std::uint8_t cell : map.cells) ++counts[cell];
  REQUIRE(counts[1] + counts[2] == got.counters.visited);
  REQUIRE(counts[2] == got.counters.skipped);
  REQUIRE(counts[2] > 0);
  // Unit 0 of request 0 sees tile 0 only; request 1 has one unit, of the last 10 positions.
  REQUIRE(std::vector<std::uint8_t>(map.cells.begin(), map.cells.begin() + 4) ==
          std::vector<std::uint8_t>{1, 0, 0, 0});
  REQUIRE(std::vector<std::uint8_t>(map.cells.begin() + 24, map.cells.begin() + 28) ==
          std::vector<std::uint8_t>{1, 2, 1, 2});
}
