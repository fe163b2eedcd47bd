// Properties of which tiles are skipped: known patterns. Decides what each expects of a profile
// (SPEC VER-23.3).
#include <fmt/format.h>

#include "verify/attention/check.hpp"

namespace assay::verify {
namespace {

using namespace check;
using attention::MaskKind;
using attention::PaddingRows;

// Low tiles skipped and others kept, but for those that are kept unasked; and the output is that of
// the high tiles alone.
void check_trace(Trial& t) {
  const BuiltPtr b = build(t.c());
  const Trial::Ran* ran = t.run(b->problem);
  if (ran == nullptr) return;
  const std::int32_t kv_tile = ran->emulator->resolved().tile.kv_tile;
  const attention::Request& r = b->problem.requests[0];
  const std::int32_t tiles = (r.kv_len + kv_tile - 1) / kv_tile;
  for (std::int32_t h = 0; h < b->q.heads; ++h)
    for (std::int32_t row = 0; row < r.q_len; ++row)
      for (std::int32_t tile = 0; tile < tiles; ++tile) {
        const bool skip = is_low(t.c(), tile, kv_tile) && tile >= t.profile().skip.kept_first;
        const int got = decision_at(*ran, 0, h, row, tile);
        if (got == (skip ? 2 : 1)) continue;
        return t.fail(
            fmt::format("tile {} is {} and was {}", tile, skip ? "30 nats low" : "to be kept",
                        got == 1   ? "kept"
                        : got == 2 ? "skipped"
                        : got == 3 ? "zeroed for some rows"
                                   : "not visited"),
            {{"request", 0}, {"row", row}, {"head", h}, {"tile", tile}});
      }
  near_truth(t, *ran);
}

Prediction predict_veto(const Profile& p) {
  if (p.skip.dense_only) return dense();
  if (p.skip.zeroing_rows > 0)
    return violated(fmt::format("skip.zeroing_rows = {}", p.skip.zeroing_rows), "ATT-4.4",
                    [](Profile& o) { o.skip.zeroing_rows = 0; });
  return holds();
}

// The last row of a unit needs the low tiles, so that its unit skips nothing.
void check_veto(Trial& t) {
  const BuiltPtr plain = build(t.c());
  if (t.c().q[0] == 0) return t.decline("the first request of the case has no row to need a tile");
  if (t.run(plain->problem) == nullptr) return;  // shows what would be skipped
  const BuiltPtr b = build(t.c());
  const std::int32_t last_row = b->problem.requests[0].q_len - 1, last_head = b->q.heads - 1;
  b->q.set(last_row, last_head, 0, -4);
  const Trial::Ran* ran = t.run(b->problem);
  attention::Problem without = b->problem;
  without.requests[0].threshold = {};
  const Trial::Ran* dense_run = t.run(without);
  if (dense_run == nullptr) return;
  const std::size_t unit = ran->emulator->unit_of(0, last_head, last_row);
  for (std::int32_t row = 0; row <= last_row; ++row)
    for (std::int32_t h = 0; h <= last_head; ++h) {
      if (ran->emulator->unit_of(0, h, row) != unit) continue;
      const auto at = static_cast<std::size_t>((row * b->q.heads + h) * b->v.dim);
      for (std::size_t d = 0; d < static_cast<std::size_t>(b->v.dim); ++d)
        if (ran->answer.out[at + d] != dense_run->answer.out[at + d])
          return t.fail("another row of the unit needs all tiles, and this one left some out",
                        {{"request", 0}, {"row", row}, {"head", h}});
    }
}

// What is left of a low tile must be seen in an output: 6 nats, not 30.
std::vector<AttentionCase> veto_cases(const Profile& p) {
  return {with(usual_case(p), [](AttentionCase& c) {
    c.contrast = 6;
    c.threshold.value = 0.02f;
    c.spread = 0.3f;
  })};
}

Prediction predict_padding_vote(const Profile& p) {
  if (p.skip.dense_only) return dense();
  if (p.skip.padding_rows == PaddingRows::kVote)
    return violated("skip.padding_rows = vote", "ATT-4.5",
                    [](Profile& o) { o.skip.padding_rows = PaddingRows::kAbstain; });
  return holds();
}

std::vector<AttentionCase> partial_unit(const Profile& p) {
  return {with(usual_case(p), [&](AttentionCase& c) {
    if (is_decode(p)) c.q_heads = 4;
    if (!is_decode(p)) c.q = {20};
  })};
}

Prediction predict_masked_tiles(const Profile& p) {
  const bool shares = p.skip.range_of_schedule;
  if (shares || p.skip.diagonal_only)
    return violated(shares ? "skip.range_of_schedule = true" : "skip.diagonal_only = true",
                    "ATT-7.1",
                    [](Profile& o) { o.skip.range_of_schedule = o.skip.diagonal_only = false; });
  return holds();
}

// Tiles of which no row of a unit sees a key are neither visited nor counted.
void check_masked_tiles(Trial& t) {
  const BuiltPtr b = build(t.c());
  const attention::Problem& p = b->problem;
  const Trial::Ran* ran = t.run(p);
  if (ran == nullptr) return;
  const attention::TileShape& shape = ran->emulator->resolved().tile;
  const attention::Request& r = p.requests[0];
  const std::int32_t tokens = unit_tokens(t.profile(), t.c());
  for (std::int32_t row = 0; row < r.q_len; row += tokens) {
    const std::int32_t rows = std::min(tokens, r.q_len - row);
    const attention::Range range =
        attention::tiles_of_rows(p.mask_of(r), row, rows, r.kv_len, shape.kv_tile).visited;
    for (std::int32_t tile = 0; tile < ran->decision().extents[3]; ++tile) {
      const bool visited = decision_at(*ran, 0, 0, row, tile) != 0;
      if (visited == range.contains(tile)) continue;
      return t.fail(fmt::format("tile {} {}, and rows {} to {} see keys of tiles {} to {}", tile,
                                visited ? "was visited" : "was not visited", row, row + rows - 1,
                                range.begin, range.end - 1),
                    {{"request", 0}, {"row", row}, {"head", 0}, {"tile", tile}});
    }
  }
}

std::vector<AttentionCase> masked_tiles_cases(const Profile& p) {
  return {with(usual_case(p), [&](AttentionCase& c) {
    c.mask = MaskKind::kCausal;
    c.block = tile_of(p, c).kv_tile;  // so that a low tile is visited by a unit that skips it
    if (is_decode(p)) {
      c.q_heads = 32;
      c.q = {8};
    } else {
      c.q = {256};
    }
    c.kv = {c.q[0] + 3 * c.block / 2};
    if (c.kv[0] < 3 * c.block) c.kv = {3 * c.block + 2};
  })};
}

// Counters and decisions are two reports of one thing.
void check_counts(Trial& t) {
  const BuiltPtr b = build(t.c());
  const Trial::Ran* ran = t.run(b->problem);
  if (ran == nullptr) return;
  if (!ran->answer.visited || !ran->answer.skipped) return t.decline("the subject counts no tiles");
  std::int64_t visited = 0, skipped = 0;
  for (const std::uint8_t cell : ran->decision().cells) {
    visited += cell != 0;
    skipped += cell == static_cast<std::uint8_t>(attention::Decision::kSkipped);
  }
  if (*ran->answer.visited == visited && *ran->answer.skipped == skipped) return;
  t.fail(fmt::format("{} tiles visited and {} skipped by the counters, {} and {} by the decisions",
                     *ran->answer.visited, *ran->answer.skipped, visited, skipped));
}

// The published bound, on the mass (SPEC ATT-3.5).
void check_certificate(Trial& t) {
  const BuiltPtr b = build(t.c());
  // Even blocks have one high key, so that a low block's mass is not hidden by a long sum.
  set_k_column(*b, 0, [&](std::size_t, std::int32_t key) {
    const std::int32_t at = key % t.c().block;
    const bool low = key / t.c().block % 2 == 1;
    return (low ? -t.c().contrast : at == 0 ? 0 : -40) / 4 / b->problem.scale;
  });
  const Trial::Ran* ran = t.run(b->problem);
  if (ran == nullptr) return;
  const auto truth = attention::truth(b->problem, kept_of(*ran));
  CONTRACT(truth.has_value(), "a problem that ran is legal");
  const double lambda_value = t.c().threshold.value;
  for (std::size_t i = 0; i < truth->rows.size(); ++i) {
    const attention::TruthRow& row = truth->rows[i];
    // Maxima are of f32 scores, and a stale one is lower than the true one.
    const double bound = static_cast<double>(row.dropped_keys) * lambda_value * 1.01;
    if (row.dropped_mass <= bound) continue;
    const auto heads = static_cast<std::int64_t>(b->problem.q_heads);
    return t.fail(
        fmt::format("{} keys were left out, with {:.3g} of the mass; lambda allows {:.3g}",
                    row.dropped_keys, row.dropped_mass, bound),
        {{"request", 0},
         {"row", static_cast<std::int64_t>(i) / heads},
         {"head", static_cast<std::int64_t>(i) % heads}});
  }
}

std::vector<AttentionCase> certificate_cases(const Profile& p) {
  const AttentionCase c = with(usual_case(p), [&](AttentionCase& o) {
    o.block = tile_of(p, o).kv_tile;
    o.kv = {4 * o.block};
    o.threshold.value = 2e-3f;
  });
  return {with(c,
               [](AttentionCase& o) {
                 o.spread = 0;
                 o.contrast = 4.5f;  // kept; by exp of log2 units it would be skipped
               }),
          c};
}

}  // namespace

std::vector<Property> decision_properties() {
  return {
      {"trace",
       "Low tiles are skipped, and no others",
       "ATT-4.4",
       true,
       skipping,
       usual_only,
       false,
       check_trace,
       {"silently_dense"},
       true},
      {"veto",
       "A row that needs a tile keeps it for its whole unit",
       "ATT-4.4",
       true,
       predict_veto,
       veto_cases,
       false,
       check_veto,
       {"warp_votes_alone"},
       true},
      {"padding_vote",
       "Rows that only fill a unit up veto nothing",
       "ATT-4.5",
       true,
       predict_padding_vote,
       partial_unit,
       false,
       check_trace,
       {"padding_votes"},
       true},
      {"masked_tiles",
       "Tiles that no row of a unit sees are not visited",
       "ATT-1.2",
       true,
       predict_masked_tiles,
       masked_tiles_cases,
       false,
       check_masked_tiles,
       {"masked_tiles_counted"},
       true},
      {"counts",
       "Counters agree with decisions",
       "ATT-5.5",
       true,
       skipping,
       usual_only,
       false,
       check_counts,
       {"first_tile_not_counted"},
       true},
      {"certificate",
       "No row loses more mass than lambda times the keys it lost",
       "ATT-3.5",
       true,
       skipping,
       certificate_cases,
       false,
       check_certificate,
       {"wrong_base"},
       true},
  };
}

}  // namespace assay::verify
