// Which pieces a decode is cut into, against the model's segments, and where operands lie, by
// enumeration.
#include <random>
#include <set>
#include <tuple>

#include "cuda/kernels/attention/decode_plan.hpp"
#include "cuda/kernels/attention/decode_shape.cuh"
#include "model/attention/unit_plan.hpp"
#include "model/core/testing.hpp"

namespace assay::attention_kernels {
namespace {

// The model's view of one unit.
attention::UnitView view_of(const RequestShape& shape, const Mask& mask, int group, int unit) {
  const attention::Profile& profile = **attention::find_profile("assay-decode-sm90");
  attention::UnitView view;
  view.q_heads = view.group = group;
  view.q_len = shape.q_len;
  view.kv_len = shape.kv_len;
  view.mask = mask;
  view.skip = profile.skip;
  view.tile = profile.tiles[0];
  view.index = unit;
  return view;
}

TEST_CASE("pieces of a decode are the model's segments, every one once", "[CUD-7.2]") {
  CHECK(kDecodeTile == (*attention::find_profile("assay-decode-sm90"))->tiles[0].kv_tile);
  std::mt19937 random(17);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  int empty = 0, several = 0;
  for (int time = 0; time < 500; ++time) {
    RequestShape shape;
    shape.q_len = below(10);
    shape.kv_len = below(3) == 0 ? below(4) * 2048 + below(3) : below(9000);
    shape.q_offset = below(4) == 0 ? below(9000) - 200 : shape.kv_len - shape.q_len;
    const int group = 1 + below(40), kv_heads = 1 + below(3);
    const Mask mask{static_cast<MaskKind>(below(4)), 1 + below(below(2) ? 100 : 6000),
                    shape.q_offset};
    const int units = decode_units(shape.q_len, group);
    const int pieces = units * decode_chunks(shape.kv_len) * kv_heads;
    std::set<std::tuple<int, int, int>> seen;  // head, unit, first tile
    std::set<std::pair<int, int>> written;     // head, unit
    for (int n = 0; n < pieces; ++n) {
      const DecodePlace place = decode_place(n, kv_heads, units);
      const DecodeItem item = decode_item(5, shape, group, place, mask.kind, mask.size);
      CHECK(item.valid == 1);
      if (item.rows == 0) continue;
      const attention::UnitView view = view_of(shape, mask, group, place.unit);
      const attention::UnitLayout layout(view);
      CHECK(item.rows == layout.valid_rows());
      CHECK(item.pieces == layout.segments());
      if (item.pieces <= 1) CHECK(written.insert({place.head, place.unit}).second);
      if (item.tiles.empty()) {
        ++empty;
        CHECK(item.pieces == 0);
        continue;
      }
      CHECK(seen.insert({place.head, place.unit, item.tiles.begin}).second);
      const Range chunks{attention::first_chunk(item.tiles, kChunkTiles),
                         attention::chunk_end(item.tiles, kChunkTiles)};
      CHECK(chunks == Range{place.chunk, place.chunk + 1});
      several += item.pieces > 1;
      bool found = false;
      for (int i = 0; i < layout.segments(); ++i) {
        const attention::Segment segment = layout.segment(i);
        if (segment.begin != item.tiles.begin) continue;
        found = true;
        CHECK(segment.end == item.tiles.end);
      }
      CHECK(found);
      for (int row = 0; row < item.rows; ++row) {
        const Range keys = layout.row(row).keys;
        for (int tile = item.tiles.begin; tile < item.tiles.end; ++tile) {
          if (!item.whole.contains(tile)) continue;
          CHECK(keys.begin <= tile * kDecodeTile);
          CHECK(keys.end >= (tile + 1) * kDecodeTile);
        }
      }
    }
    std::size_t expected = 0, alone = 0;
    for (int unit = 0; unit < units; ++unit) {
      const attention::UnitView view = view_of(shape, mask, group, unit);
      const int segments = attention::UnitLayout(view).segments();
      expected += static_cast<std::size_t>(segments * kv_heads);
      alone += static_cast<std::size_t>(segments <= 1 ? kv_heads : 0);
    }
    CHECK(seen.size() == expected);
    CHECK(written.size() == alone);
  }
  CHECK(empty > 30);
  CHECK(several > 500);
}

TEST_CASE("every chunk of every unit has a place of its own to wait in", "[CUD-7.2]") {
  const PartialShape shape{3, 5, 16};
  std::set<std::int64_t> seen;
  for (int request = 0; request < 4; ++request)
    for (int head = 0; head < 2; ++head)
      for (int unit = 0; unit < 3; ++unit)
        for (int chunk = 0; chunk < 5; ++chunk) {
          const std::int64_t entry = shape.entry(request, 2, {head, unit, chunk});
          CHECK(entry >= 0);
          CHECK(entry < 4 * 2 * 3 * 5);
          CHECK(seen.insert(entry).second);
        }
  // Beyond 2^31 entries too.
  CHECK(PartialShape{1 << 20, 1 << 10, 64}.entry(3, 4, {1, 0, 0}) == std::int64_t{13} << 30);
}

TEST_CASE("the merge's warps cover every column of every row of every unit once", "[CUD-7.4]") {
  for (const int dim : {64, 128, 256}) {
    const PartialShape shape{3, 5, 6};
    std::set<std::tuple<int, int, int, int, int>> seen;
    const std::int64_t warps = merge_warps(4, 2, shape, dim);
    for (std::int64_t n = 0; n < warps; ++n) {
      const MergePlace m = merge_place(n, 2, shape, dim);
      CHECK(m.request < 4);
      CHECK(m.place.head < 2);
      CHECK(m.place.unit < 3);
      CHECK(m.row < 6);
      CHECK(m.column <= dim - kMergeColumns);
      CHECK(seen.insert({m.request, m.place.head, m.place.unit, m.row, m.column}).second);
    }
    CHECK(seen.size() == static_cast<std::size_t>(4 * 2 * 3 * 6 * dim / kMergeColumns));
    CHECK(merge_place(warps, 2, shape, dim).request == 4);
  }
}

template <class Shape>
void check_shared_memory() {
  // Parts in order, none over another, tiles where the swizzle needs them.
  CHECK(Shape::kKeysAt % 1024 == 0);
  CHECK(Shape::kValuesAt % 1024 == 0);
  CHECK(Shape::kTileBytes % 1024 == 0);
  CHECK(Shape::kQueriesAt >= Shape::kValuesAt + Shape::kEntries * Shape::kTileBytes);
  CHECK(Shape::kBarriersAt % 8 == 0);
  CHECK(Shape::kItemsAt % 8 == 0);
  CHECK(Shape::kMaximaAt % 8 == 0);
  CHECK(Shape::kProbabilitiesAt % 128 == 0);
  // Sums and maxima of a piece's end take the place of P.
  CHECK(5 * Shape::kRows * 4 <= Shape::kProbabilityBytes);
  CHECK(Shape::kTileBytes ==
        kDecodeTile * Shape::kHeadDim * static_cast<int>(sizeof(typename Shape::Element)));
}

TEST_CASE("a decode block's shared memory holds its parts", "[CUD-7.1]") {
  check_shared_memory<DecodeShape<Bf16, 64, 16>>();
  check_shared_memory<DecodeShape<Bf16, 64, 64>>();
  check_shared_memory<DecodeShape<Bf16, 128, 16>>();
  check_shared_memory<DecodeShape<Bf16, 128, 64>>();
  check_shared_memory<DecodeShape<Bf16, 256, 16>>();
  check_shared_memory<DecodeShape<Bf16, 256, 64>>();
  check_shared_memory<DecodeShape<E4m3, 128, 16>>();
  check_shared_memory<DecodeShape<E4m3, 128, 64>>();
  check_shared_memory<DecodeShape<E4m3, 256, 16>>();
  check_shared_memory<DecodeShape<E4m3, 256, 64>>();
}

}  // namespace
}  // namespace assay::attention_kernels
