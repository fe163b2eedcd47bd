// The memory that one unit is computed in, laid out in one block that its owner hands over, and
// what a unit writes. Decides nothing. Compiles for host and device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/attention/softmax.hpp"
#include "model/attention/unit_plan.hpp"

namespace assay::attention {

// TileTrace without its bitset.
struct TileRecord {
  std::int32_t tile = 0;
  Decision decision = Decision::kNotVisited;
  bool asked = false;
  bool near_tie = false;
  std::int32_t row = 0;
  F32 local_max{0};
  F32 running_max{0};
  float margin_log2 = 0;
  std::uint64_t zeroed[2] = {};  // bit g: group g wrote zeros
  ASSAY_HD bool zeroes(int group) const {
    return ((group < 64 ? zeroed[0] : zeroed[1]) >> (group % 64) & 1) != 0;
  }
};

// What one row has to say about a tile.
struct RowVote {
  F32 reference{0};
  bool may_skip = false;
  bool near_tie = false;
  double margin = 0;
};

// What a row does with a kept tile.
struct RowStep {
  Argument argument;
  F32 max{0};
  F32 correction{0};
  bool zeroed = false;
};

// How one piece of one row enters the end result (finish.hpp).
struct PieceWeight {
  F32 weight{0};
  F32 factor{0};  // of a piece that is divided before it meets others; of those before, if folded
  F32 sum{0};
  F32 scaled_sum{0};
  bool raises = false;
};

struct UnitOutput {
  std::uint16_t* out = nullptr;  // [valid rows, v_dim], bits of out_dtype
  F32* lse = nullptr;            // [valid rows]
  TileRecord* tiles = nullptr;   // [visits], in order of visit
};

// Space of the host for what a unit writes, and a result made of it.
class UnitSpace {
 public:
  UnitSpace(const UnitLayout& layout, int v_dim);
  UnitOutput output() { return {out_.data(), lse_.data(), records_.data()}; }
  UnitResult result(const Unit& unit, const UnitLayout& layout) &&;

 private:
  std::vector<F32> lse_;
  std::vector<std::uint16_t> out_;
  std::vector<TileRecord> records_;
};

// T holds an element's bits. A piece is what a segment leaves: per row its maximum and sums, and O
// before any division; it has started once a tile was kept.
template <class T>
struct UnitScratch {
  T* q = nullptr;                   // [rows, head_dim]
  T* k = nullptr;                   // [kv_tile, head_dim]
  T* v_t = nullptr;                 // [v_dim, kv_tile]
  T* p = nullptr;                   // [rows, kv_tile]
  F32* scores = nullptr;            // [rows, kv_tile]
  F32* product = nullptr;           // [rows, v_dim]
  F32* local = nullptr;             // [rows]
  F32* factor = nullptr;            // [rows]
  RowVote* votes = nullptr;         // [rows]
  RowStep* steps = nullptr;         // [rows]
  F32* o = nullptr;                 // [pieces, rows, v_dim]
  RowState* states = nullptr;       // [pieces, rows]
  PieceWeight* weights = nullptr;   // [pieces, rows]
  std::uint8_t* started = nullptr;  // [pieces]

  // The layout of a unit of so many rows and pieces; the block's size in bytes. Null gives the size
  // alone. The block is aligned to 16 bytes, like every part of it.
  ASSAY_HD std::size_t place(const UnitView& view, int rows, int pieces, std::byte* block) {
    std::size_t used = 0;
    const auto put = [&](auto*& part, std::int64_t count) {
      part = block == nullptr ? nullptr : reinterpret_cast<decltype(part + 0)>(block + used);
      used += (static_cast<std::size_t>(count) * sizeof(*part) + 15) / 16 * 16;
    };
    const std::int64_t tile = view.tile.kv_tile, m = rows, n = pieces;
    put(q, m * view.head_dim);
    put(k, tile * view.head_dim);
    put(v_t, tile * view.v_dim);
    put(p, m * tile);
    put(scores, m * tile);
    put(product, m * view.v_dim);
    put(local, m);
    put(factor, m);
    put(votes, m);
    put(steps, m);
    put(o, n * m * view.v_dim);
    put(states, n * m);
    put(weights, n * m);
    put(started, n);
    return used;
  }
};

}  // namespace assay::attention
