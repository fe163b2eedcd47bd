// Which pieces a decode is cut into, against the model's segments, and where operands lie, by
// enumeration.
#include <random>
#include <set>
#include <tuple>
#include <vector>

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

// Checks one piece, and returns the model's segments that it covers: their first tiles.
std::vector<int> segments_of(const DecodeItem& item, const attention::UnitLayout& layout) {
  std::vector<int> found;
  for (std::int32_t tile = item.tiles.begin; tile < item.tiles.end;) {
    const std::int32_t begin = tile;
    while (!ends_chunk(item, tile)) ++tile;
    ++tile;
    bool known = false;
    for (int i = 0; i < layout.segments(); ++i) {
      const attention::Segment segment = layout.segment(i);
      known = known || (segment.begin == begin && segment.end == tile);
    }
    CHECK(known);
    found.push_back(begin);
  }
  for (int row = 0; row < item.rows; ++row) {
    const Range keys = layout.row(row).keys;
    for (int tile = item.tiles.begin; tile < item.tiles.end; ++tile) {
      if (!item.whole.contains(tile)) continue;
      CHECK(keys.begin <= tile * kDecodeTile);
      CHECK(keys.end >= (tile + 1) * kDecodeTile);
    }
  }
  return found;
}

TEST_CASE("pieces of a decode are the model's segments, every one once", "[CUD-7.2]") {
  CHECK(kDecodeTile == (*attention::find_profile("assay-decode-sm90"))->tiles[0].kv_tile);
  std::mt19937 random(17);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  int empty = 0, several = 0, folded = 0;
  for (int time = 0; time < 700; ++time) {
    RequestShape shape;
    shape.q_len = below(10);
    shape.kv_len = below(3) == 0 ? below(4) * 2048 + below(3) : below(12000);
    shape.q_offset = below(4) == 0 ? below(9000) - 200 : shape.kv_len - shape.q_len;
    const int group = 1 + below(40), kv_heads = 1 + below(3), each = 1 + below(4);
    const Mask mask{static_cast<MaskKind>(below(4)), 1 + below(below(2) ? 100 : 6000),
                    shape.q_offset};
    const int units = decode_units(shape.q_len, group);
    const int pieces = units * decode_splits(shape.kv_len, each) * kv_heads;
    std::set<std::tuple<int, int, int>> seen;  // head, unit, first tile of a segment
    std::set<std::pair<int, int>> written;     // head, unit
    std::set<std::tuple<int, int, int>> left;  // head, unit, chunk
    for (int n = 0; n < pieces; ++n) {
      const DecodePlace place = decode_place(n, kv_heads, units);
      const DecodeItem item = decode_item(5, shape, group, place, each, mask.kind, mask.size);
      CHECK(item.valid == 1);
      if (item.rows == 0) continue;
      const attention::UnitView view = view_of(shape, mask, group, place.unit);
      const attention::UnitLayout layout(view);
      CHECK(item.rows == layout.valid_rows());
      const std::vector<int> segments = segments_of(item, layout);
      for (const int first : segments) CHECK(seen.insert({place.head, place.unit, first}).second);
      CHECK((item.is_all != 0) == (static_cast<int>(segments.size()) == layout.segments()));
      empty += segments.empty();
      several += item.is_all == 0;
      folded += item.leads != 0 && segments.size() > 1;
      if (item.is_all != 0) CHECK(written.insert({place.head, place.unit}).second);
      if (item.is_all == 0 && item.leads != 0)
        left.insert({place.head, place.unit, segments[0] / kChunkTiles});
      if (item.leads == 0)
        for (const int first : segments) left.insert({place.head, place.unit, first / kChunkTiles});
    }
    std::size_t expected = 0, entries = 0, alone = 0;
    for (int unit = 0; unit < units; ++unit) {
      const attention::UnitView view = view_of(shape, mask, group, unit);
      expected += static_cast<std::size_t>(attention::UnitLayout(view).segments() * kv_heads);
      const LeftEntries l =
          left_entries(chunks_of(decode_tiles(mask, shape, group, unit).visited), each);
      alone += static_cast<std::size_t>(l.count <= 1 ? kv_heads : 0);
      if (l.count <= 1) continue;
      for (int head = 0; head < kv_heads; ++head)
        for (int i = 0; i < l.count; ++i) CHECK(left.count({head, unit, l.chunk(i)}) == 1);
      entries += static_cast<std::size_t>(l.count * kv_heads);
    }
    CHECK(seen.size() == expected);
    CHECK(written.size() == alone);
    CHECK(left.size() == entries);
  }
  CHECK(empty > 30);
  CHECK(several > 500);
  CHECK(folded > 500);
}

TEST_CASE("every chunk of every unit has a place of its own to wait in", "[CUD-7.2]") {
  const PartialShape shape{3, 5, 16};
  std::set<std::int64_t> seen;
  for (int request = 0; request < 4; ++request)
    for (int head = 0; head < 2; ++head)
      for (int unit = 0; unit < 3; ++unit)
        for (int chunk = 0; chunk < 5; ++chunk) {
          const std::int64_t entry = shape.entry(request, 2, head, unit, chunk);
          CHECK(entry >= 0);
          CHECK(entry < 4 * 2 * 3 * 5);
          CHECK(seen.insert(entry).second);
        }
  // Beyond 2^31 entries too.
  CHECK(PartialShape{1 << 20, 1 << 10, 64}.entry(3, 4, 1, 0, 0) == std::int64_t{13} << 30);
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
