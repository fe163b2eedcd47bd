// What a unit holds and visits: its rows, the keys each may see, and its tiles in the order that
// its splits visit them. Internal to the emulator. Decides SPEC ATT-1.2 to ATT-1.4 where a profile
// deviates from tile_schedule.hpp. Compiles for host and device, but for the vectors at the end.
#pragma once

#include <vector>

#include "model/attention/unit_view.hpp"

namespace assay::attention {

// The tiles that a unit visits one after the other with one running maximum.
struct Segment {
  std::int32_t begin = 0, end = 0, step = 1;
  ASSAY_HD int count() const { return begin < end ? (end - begin + step - 1) / step : 0; }
};

class UnitLayout {
 public:
  struct Row {
    std::int32_t token = 0;
    int q_head = 0;
    bool valid = true;  // within q_len
    Range keys;         // visible, custom masks aside
  };

  // Holds a reference to the view.
  ASSAY_HD explicit UnitLayout(const UnitView& view)
      : v_(view), first_(view.index * view.tile.unit_rows), tiles_(visited()) {
    const int unit_rows = v_.tile.unit_rows;
    const std::int64_t left = std::int64_t{v_.q_len} * packed_heads() - first_;
    valid_ = left < 0 ? 0 : left < unit_rows ? static_cast<int>(left) : unit_rows;
    rows_ = v_.skip.padding_rows == PaddingRows::kAbstain ? valid_ : unit_rows;
  }

  ASSAY_HD int rows() const { return rows_; }         // that are computed
  ASSAY_HD int valid_rows() const { return valid_; }  // of these the first so many, within q_len
  ASSAY_HD int kv_head() const { return head_rows() ? v_.head / v_.group : v_.head; }

  ASSAY_HD Row row(int i) const {
    const PackedRow packed = packed_row(v_.skip.packing, first_ + i, packed_heads());
    Row row;
    row.token = packed.token;
    row.q_head = head_rows() ? v_.head : v_.head * v_.group + packed.head;
    row.valid = packed.token < v_.q_len;
    // A diagonal mask that does not look at kv_len lets padding rows see padding keys.
    const std::int32_t limit = v_.skip.diagonal_only && v_.mask.kind != MaskKind::kFull
                                   ? (tiles_.end + 1) * v_.tile.kv_tile
                                   : v_.kv_len;
    row.keys = visible_keys(v_.mask, row.token, limit);
    return row;
  }

  ASSAY_HD int segments() const {
    if (tiles_.empty()) return 0;
    switch (v_.skip.split) {
      case Split::kNone:
        return 1;
      case Split::kStrided: {
        if (v_.splits == 1 || tiles_.count() < v_.skip.min_tiles_to_split) return 1;
        const int most = tiles_.count() / v_.skip.min_tiles_per_split;
        return v_.splits < most ? v_.splits : most;
      }
      case Split::kChunks:
        return chunk_end(tiles_, tiles_per_chunk()) - first_chunk(tiles_, tiles_per_chunk());
    }
    return 0;
  }

  // Splits only say who computes which chunk; a chunk is a segment whoever that is.
  ASSAY_HD Segment segment(int i) const {
    if (v_.skip.split == Split::kNone) return {tiles_.begin, tiles_.end, 1};
    if (v_.skip.split == Split::kStrided) return {tiles_.begin + i, tiles_.end, segments()};
    const int first = first_chunk(tiles_, tiles_per_chunk());
    const Range t = tiles_of_chunk(tiles_, first + i, tiles_per_chunk());
    return {t.begin, t.end, 1};
  }

  ASSAY_HD int visits() const {
    int count = 0;
    for (int i = 0; i < segments(); ++i) count += segment(i).count();
    return count;
  }

 private:
  ASSAY_HD bool head_rows() const { return v_.skip.packing == Packing::kHeadRows; }
  ASSAY_HD int packed_heads() const { return head_rows() ? 1 : v_.group; }
  ASSAY_HD int tiles_per_chunk() const { return v_.skip.chunk_keys / v_.tile.kv_tile; }

  // The tiles of this unit, or of the units that share its key tiles.
  ASSAY_HD Range visited() const {
    const int unit_rows = v_.tile.unit_rows, kv_tile = v_.tile.kv_tile;
    const int units = v_.skip.range_of_schedule ? v_.tile.schedule_units : 1;
    const int first = v_.index / units * units * unit_rows;
    const int count = units * unit_rows;
    if (v_.skip.diagonal_only) {
      // Ends follow the block's last position, even beyond the last key; beginnings its first.
      const Range all{0, (v_.kv_len + kv_tile - 1) / kv_tile};
      if (v_.mask.kind == MaskKind::kFull || v_.kv_len == 0) return all;
      const std::int32_t last = first + count - 1 + v_.mask.q_offset;
      const Range low = visible_keys(v_.mask, first, first + v_.mask.q_offset + 1);
      return {low.begin / kv_tile, last < 0 ? 0 : last / kv_tile + 1};
    }
    const std::int32_t first_token = first / packed_heads();
    const std::int32_t last_token =
        schedule_detail::smaller(v_.q_len - 1, (first + count - 1) / packed_heads());
    return tiles_of_rows(v_.mask, first_token, last_token - first_token + 1, v_.kv_len, kv_tile)
        .visited;
  }

  const UnitView& v_;
  int first_;
  Range tiles_;
  int rows_ = 0;
  int valid_ = 0;
};

// The same as lists, for the host.
class UnitPlan {
 public:
  using Row = UnitLayout::Row;

  explicit UnitPlan(const UnitInput& in) {
    const UnitView view = view_of(in);
    const UnitLayout layout(view);
    kv_head_ = layout.kv_head();
    for (int i = 0; i < layout.rows(); ++i) rows_.push_back(layout.row(i));
    for (int i = 0; i < layout.segments(); ++i) segments_.push_back(layout.segment(i));
  }
  const std::vector<Row>& rows() const { return rows_; }
  const std::vector<Segment>& segments() const { return segments_; }
  int kv_head() const { return kv_head_; }

 private:
  std::vector<Row> rows_;
  std::vector<Segment> segments_;
  int kv_head_ = 0;
};

}  // namespace assay::attention
