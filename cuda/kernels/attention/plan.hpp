// What the blocks of an attention kernel work on: requests as the kernel is given them, the order
// of work, what each warpgroup's unit visits, and places in rings of shared memory. Host and
// device; the tests run it on the host. Decides SPEC CUD-6.2 and CUD-6.3. Not decided here: what
// roles do with it (flow.hpp).
#pragma once

#include <cstdint>

#include "model/attention/tile_schedule.hpp"
#include "model/core/platform.hpp"

namespace assay::attention_kernels {

using attention::Mask;
using attention::MaskKind;
using attention::Range;
using attention::TileRanges;

inline constexpr int kUnitRows = 64;  // rows that decide together: one warpgroup (SPEC ATT-6.1)

// One request: rows [q_begin, q_begin + q_len) of the query tensor's row axis, and likewise keys.
struct RequestShape {
  std::int32_t q_begin = 0, q_len = 0;
  std::int32_t kv_begin = 0, kv_len = 0;
  std::int32_t q_offset = 0;  // position of row 0 among the keys
};

// `length` forced into what `available` rows hold: lengths in device memory cannot be refused by
// the host, and must not become addresses outside the tensors (SPEC CUD-6.5).
ASSAY_HD constexpr std::int32_t bounded(std::int32_t length, std::int32_t available) {
  return length < 0 ? 0 : length < available ? length : available < 0 ? 0 : available;
}

// The tiles of `kUnits` * 64 query rows that a request's head is cut into.
ASSAY_HD constexpr std::int32_t q_tiles_of(std::int32_t q_len, int units) {
  const std::int32_t rows = units * kUnitRows;
  return q_len / rows + (q_len % rows != 0 ? 1 : 0);
}

// One piece of work: a tile of query rows of one head.
struct Place {
  std::int32_t head = 0;
  std::int32_t q_tile = 0;
};
// The n-th piece of a request: heads in sections whose keys and values stay in L2 together; within
// a section the last query tile first, which sees the most keys, so that the longest work begins
// first; heads of one section side by side (SPEC CUD-6.2).
ASSAY_HD constexpr Place place_of(std::int32_t n, std::int32_t q_tiles, std::int32_t heads,
                                  std::int32_t section_heads) {
  const std::int32_t section = n / (q_tiles * section_heads);
  const std::int32_t first = section * section_heads;
  const std::int32_t within = n - section * q_tiles * section_heads;
  const std::int32_t count = attention::schedule_detail::smaller(section_heads, heads - first);
  return {first + within % count, q_tiles - 1 - within / count};
}

// Likewise for clusters: their blocks take neighbouring heads of one query tile, which visit the
// same tiles of the same keys (SPEC CUD-6.9). `heads` and `section_heads` are multiples of
// `cluster`.
ASSAY_HD constexpr Place place_in_cluster(std::int32_t n, std::int32_t q_tiles, std::int32_t heads,
                                          std::int32_t section_heads, std::int32_t cluster,
                                          std::int32_t rank) {
  const Place place = place_of(n, q_tiles, heads / cluster, section_heads / cluster);
  return {place.head * cluster + rank, place.q_tile};
}

// What a block does for one piece. `valid` is 0 for the last one, which means that there is no
// more.
template <int kUnits>
struct Work {
  std::int32_t valid = 0;
  std::int32_t request = 0;
  std::int32_t head = 0;
  std::int32_t first_row = 0;  // of unit 0, within the request
  RequestShape shape;
  Range all;                // every tile that a unit visits, and what lies between
  TileRanges unit[kUnits];  // of each unit for itself (SPEC CUD-6.3)
};

// The tiles of a unit whose first row is `row`: of its rows within q_len only.
ASSAY_HD constexpr TileRanges unit_tiles(const Mask& mask, std::int32_t row,
                                         const RequestShape& shape, std::int32_t kv_tile) {
  const std::int32_t rows = bounded(shape.q_len - row, kUnitRows);
  if (rows == 0) return {};
  return attention::tiles_of_rows(mask, row, rows, shape.kv_len, kv_tile);
}

// `kind` and `size` are the mask's; its offset is the request's.
template <int kUnits>
ASSAY_HD constexpr Work<kUnits> work_of(std::int32_t request, const RequestShape& shape,
                                        Place place, MaskKind kind, std::int32_t size,
                                        std::int32_t kv_tile) {
  Work<kUnits> work;
  work.valid = 1;
  work.request = request;
  work.head = place.head;
  work.first_row = place.q_tile * kUnits * kUnitRows;
  work.shape = shape;
  const Mask mask{kind, size, shape.q_offset};
  for (int u = 0; u < kUnits; ++u) {
    work.unit[u] = unit_tiles(mask, work.first_row + u * kUnitRows, shape, kv_tile);
    const Range visited = work.unit[u].visited;
    if (visited.empty()) continue;
    if (work.all.empty()) work.all = visited;
    if (visited.begin < work.all.begin) work.all.begin = visited.begin;
    if (visited.end > work.all.end) work.all.end = visited.end;
  }
  return work;
}

// A place in a ring of kStages: which stage, and the parity of the phase in which it is filled.
template <int kStages>
struct RingPlace {
  std::uint32_t stage = 0;
  std::uint32_t parity = 0;
  ASSAY_HD constexpr void advance() {
    ++stage;
    if (stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

// Fragments of wgmma (PTX ISA 9, "Register fragments"; SPEC NUM-4.5): accumulator i of thread t of
// a warpgroup is this row and column of the [64, n] product; the same numbering holds for A.
ASSAY_HD constexpr int fragment_row(int thread, int i) {
  return thread / 32 * 16 + thread % 32 / 4 + (i / 2 % 2) * 8;
}
ASSAY_HD constexpr int fragment_column(int thread, int i) {
  return i / 4 * 8 + thread % 4 * 2 + i % 2;
}

}  // namespace assay::attention_kernels
