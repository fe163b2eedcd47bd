// What a unit holds and visits: its rows, the keys each may see, and its tiles in the order that
// its splits visit them. Internal to emulate.cpp. Decides SPEC ATT-1.2 to ATT-1.4 where a profile
// deviates from tile_schedule.hpp.
#pragma once

#include <algorithm>
#include <vector>

#include "model/attention/emulate.hpp"

namespace assay::attention {

struct UnitInput {
  const Problem& problem;
  const Resolved& resolved;
  const Scale& scale;
  const Lambda& lambda;
  Unit unit;
};

// The tiles that a unit visits one after the other with one running maximum.
struct Segment {
  std::int32_t begin = 0, end = 0, step = 1;
};

class UnitPlan {
 public:
  struct Row {
    std::int32_t token = 0;
    int q_head = 0;
    bool valid = true;  // within q_len
    Range keys;         // visible, custom masks aside
  };

  explicit UnitPlan(const UnitInput& in)
      : unit_(in.unit),
        p_(in.problem),
        r_(in.problem.requests[in.unit.request]),
        skip_(in.resolved.skip),
        shape_(in.resolved.tile),
        kv_tile_(in.resolved.tile.kv_tile) {
    place_rows();
  }

  const std::vector<Row>& rows() const { return rows_; }
  int kv_head() const {
    return skip_.packing == Packing::kHeadRows ? unit_.head / p_.group() : unit_.head;
  }

  std::vector<Segment> segments() const {
    const Range tiles = visited();
    std::vector<Segment> out;
    if (tiles.empty()) return out;
    switch (skip_.split) {
      case Split::kNone:
        out.push_back({tiles.begin, tiles.end, 1});
        break;
      case Split::kStrided: {
        int n = std::min(p_.splits, tiles.count() / skip_.min_tiles_per_split);
        if (p_.splits == 1 || tiles.count() < skip_.min_tiles_to_split) n = 1;
        for (int s = 0; s < n; ++s) out.push_back({tiles.begin + s, tiles.end, n});
        break;
      }
      case Split::kChunks: {
        // Splits only say who computes which chunk; a chunk is a segment whoever that is.
        const int per_chunk = skip_.chunk_keys / kv_tile_;
        const int first = first_chunk(tiles, per_chunk);
        const int chunks = chunk_end(tiles, per_chunk) - first;
        for (int s = 0; s < p_.splits; ++s) {
          const Range mine = chunks_of_split(chunks, s, p_.splits);
          for (int c = mine.begin; c < mine.end; ++c) {
            const Range t = tiles_of_chunk(tiles, first + c, per_chunk);
            out.push_back({t.begin, t.end, 1});
          }
        }
        break;
      }
    }
    return out;
  }

 private:
  void place_rows() {
    const int first = unit_.index * shape_.unit_rows;
    const int group = skip_.packing == Packing::kHeadRows ? 1 : p_.group();
    for (int i = 0; i < shape_.unit_rows; ++i) {
      const PackedRow packed = packed_row(skip_.packing, first + i, group);
      Row row;
      row.token = packed.token;
      row.q_head =
          skip_.packing == Packing::kHeadRows ? unit_.head : unit_.head * group + packed.head;
      row.valid = packed.token < r_.q_len;
      if (!row.valid && skip_.padding_rows == PaddingRows::kAbstain) continue;
      // A diagonal mask that does not look at kv_len lets padding rows see padding keys.
      const std::int32_t limit = skip_.diagonal_only && p_.mask != MaskKind::kFull
                                     ? (visited().end + 1) * kv_tile_
                                     : r_.kv_len;
      row.keys = visible_keys(p_.mask_of(r_), row.token, limit);
      rows_.push_back(row);
    }
  }

  // The tiles of this unit, or of the units that share its key tiles.
  Range visited() const {
    const int units = skip_.range_of_schedule ? shape_.schedule_units : 1;
    const int first = unit_.index / units * units * shape_.unit_rows;
    const int count = units * shape_.unit_rows;
    const Mask mask = p_.mask_of(r_);
    if (skip_.diagonal_only) {
      // Ends follow the block's last position, even beyond the last key; beginnings its first.
      const Range all{0, (r_.kv_len + kv_tile_ - 1) / kv_tile_};
      if (mask.kind == MaskKind::kFull || r_.kv_len == 0) return all;
      const std::int32_t last = first + count - 1 + mask.q_offset;
      const Range low = visible_keys(mask, first, first + mask.q_offset + 1);
      return {low.begin / kv_tile_, last < 0 ? 0 : last / kv_tile_ + 1};
    }
    const int group = skip_.packing == Packing::kHeadRows ? 1 : p_.group();
    const std::int32_t first_token = first / group;
    const std::int32_t last_token = std::min(r_.q_len - 1, (first + count - 1) / group);
    return tiles_of_rows(mask, first_token, last_token - first_token + 1, r_.kv_len, kv_tile_)
        .visited;
  }

  Unit unit_;
  const Problem& p_;
  const Request& r_;
  const SkipRule& skip_;
  const TileShape& shape_;
  int kv_tile_;
  std::vector<Row> rows_;
};

}  // namespace assay::attention
