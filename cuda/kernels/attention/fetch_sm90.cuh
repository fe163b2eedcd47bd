// The two warps of a prefill block that fetch: one finds work, tells the others and loads queries
// and keys; one loads values, zeroing rows beyond the last key. Decides how a step of flow.hpp
// becomes copies and barriers (SPEC CUD-6.3 to CUD-6.5). Every function is called by a whole warp.
#pragma once

#include "cuda/kernels/attention/flow.hpp"
#include "cuda/kernels/attention/params.cuh"
#include "cuda/kernels/attention/prefill_shape.cuh"
#include "cuda/kernels/attention/transpose_sm90.cuh"
#include "cuda/ops/tma.hpp"

namespace assay::attention_kernels {

using namespace assay::cuda;

// Barriers by kind, as a wait that gives up names them.
enum class Site : std::uint32_t {
  kQueriesFull = 1,
  kQueriesFree,
  kKeysFull,
  kKeysFree,
  kValuesFull,
  kValuesFree,
  kTail,
  kTransposedFull,
  kTransposedFree,
  kWorkFull,
  kWorkFree,
  kNextFull,
  kDone,
  kNegativeSum,  // not a wait: what cannot happen
};

// The block's shared memory by name.
template <class Shape>
struct SharedMap {
  SharedAddress base;
  __device__ SharedAddress queries(int unit) const {
    return base + Shape::kQueriesAt + unit * Shape::kQueryBytes;
  }
  __device__ SharedAddress keys(std::uint32_t stage) const {
    return base + Shape::kKeysAt + stage * Shape::kTileBytes;
  }
  __device__ SharedAddress values(std::uint32_t stage) const {
    return base + Shape::kValuesAt + stage * Shape::kTileBytes;
  }
  __device__ SharedAddress transposed(std::uint32_t stage) const {
    return base + Shape::kTransposedAt + stage * Shape::kTransposedBytes;
  }
  __device__ SharedAddress barrier(int index) const {
    return base + Shape::kBarriersAt + index * 8;
  }
  __device__ SharedAddress next(std::uint32_t slot) const {
    return base + Shape::kNextAt + slot * 4;
  }
  // One arrival at that barrier of each block of the cluster, by a whole warp.
  __device__ void arrive_everywhere(int index, int cluster) const {
    const int lane = thread_index() % 32;
    if (lane < cluster) barrier_arrive_at(cluster_address(barrier(index), lane));
  }
};

// Of a cluster, for copies.
inline constexpr std::uint16_t kBothBlocks = 0b11;

template <class Shape>
__device__ inline void wait_at(const SharedMap<Shape>& shared, const PrefillParams& p, int barrier,
                               std::uint32_t stage, std::uint32_t parity, Site site) {
  barrier_wait(shared.barrier(barrier + static_cast<int>(stage)), parity,
               Watch{p.timeout_ns, p.record}, static_cast<std::uint32_t>(site), stage);
}

// The shape of a request, out of device memory.
__device__ inline RequestShape shape_of(const PrefillParams& p, int request) {
  const Lengths& l = p.lengths;
  RequestShape s;
  s.q_begin = l.first_q != nullptr ? bounded(l.first_q[request], l.q_rows) : 0;
  s.q_len = l.q_len != nullptr     ? l.q_len[request]
            : l.first_q != nullptr ? l.first_q[request + 1] - l.first_q[request]
                                   : l.q_len_all;
  s.q_len = bounded(s.q_len, l.q_rows - s.q_begin);
  s.kv_begin = l.first_kv != nullptr ? bounded(l.first_kv[request], l.kv_rows) : 0;
  s.kv_len = l.kv_len != nullptr     ? l.kv_len[request]
             : l.first_kv != nullptr ? l.first_kv[request + 1] - l.first_kv[request]
                                     : l.kv_len_all;
  s.kv_len = bounded(s.kv_len, l.kv_rows - s.kv_begin);
  s.q_offset = l.offset_rule == OffsetRule::kBottomRight ? s.kv_len - s.q_len
               : l.offset_rule == OffsetRule::kTopLeft   ? 0
                                                         : l.q_offset[request];
  return s;
}

// Finds the n-th piece of work of the launch: 32 requests at a time, a lane each. Requests are of
// any length, so how many pieces there are is only known here.
template <class Shape>
class WorkList {
 public:
  static constexpr int kUnits = Shape::kUnits;
  __device__ WorkList(const PrefillParams& p, int rank) : p_(p), rank_(rank) {}

  // Pieces are asked for in ascending order, so requests that lie behind are not looked at again.
  __device__ Work<kUnits> find(int n) {
    const int lane = thread_index() % 32;
    ASSAY_NO_UNROLL
    for (; first_ < p_.requests; first_ += 32, before_ += total_) {
      RequestShape shape;
      if (first_ + lane < p_.requests) shape = shape_of(p_, first_ + lane);
      const int tiles = q_tiles_of(shape.q_len, kUnits);
      int upto = tiles * (p_.q_heads / p_.cluster);  // 0 for a lane without a request
      for (int distance = 1; distance < 32; distance *= 2) {
        const int other = shuffle_up(upto, distance);
        if (lane >= distance) upto += other;
      }
      total_ = broadcast(upto, 31);
      if (n - before_ >= total_) continue;
      // Lanes whose pieces end at or before n are a prefix.
      const int owner = __popc(ballot(n - before_ >= upto));
      const int skipped = owner == 0 ? 0 : broadcast(upto, owner == 0 ? 0 : owner - 1);
      shape = {broadcast(shape.q_begin, owner), broadcast(shape.q_len, owner),
               broadcast(shape.kv_begin, owner), broadcast(shape.kv_len, owner),
               broadcast(shape.q_offset, owner)};
      const Place place = place_in_cluster(n - before_ - skipped, q_tiles_of(shape.q_len, kUnits),
                                           p_.q_heads, p_.section_heads, p_.cluster, rank_);
      return work_of<kUnits>(first_ + owner, shape, place, p_.mask, p_.mask_size, Shape::kTile);
    }
    return {};
  }

 private:
  const PrefillParams& p_;
  int rank_;        // of the block in its cluster
  int first_ = 0;   // of the 32 requests looked at
  int before_ = 0;  // pieces of requests before them
  int total_ = 0;   // pieces of theirs
};

// Copies one tile of keys or values into a stage, box by box; the full barrier gets what to expect.
// The blocks of a cluster share the boxes, and each box goes to all of them. One lane issues all
// copies. Keys beyond the last are not copied where they lie in pages; where rows are contiguous
// they are somebody else's, or zeros beyond the tensor.
template <class Shape>
__device__ inline void load_tile(const PrefillParams& p, const CUtensorMap& map,
                                 const Work<Shape::kUnits>& work, int tile, SharedAddress to,
                                 SharedAddress barrier) {
  const int lane = thread_index() % 32;
  const int first = tile * Shape::kTile;
  const int head = work.head / p.group;
  const bool paged = p.pages.table != nullptr;
  const int rows =
      paged ? attention::schedule_detail::smaller(Shape::kTile, work.shape.kv_len - first)
            : Shape::kTile;
  const int boxes = (rows + p.pages.box_rows - 1) / p.pages.box_rows;  // at most 16, of 8 rows
  int outer = p.lengths.first_kv != nullptr ? 0 : work.request;
  if (paged) {
    outer = p.pages.num_pages;
    if (lane < boxes) {
      const std::int64_t entry = static_cast<std::int64_t>(work.request) * p.pages.table_stride +
                                 (first + lane * p.pages.box_rows) / p.pages.page_rows;
      outer = p.pages.table[entry];
      // A page that does not exist arrives as zeros, as everything outside a tensor does.
      if (outer < 0) outer = p.pages.num_pages;
    }
  }
  if (lane == 0)
    barrier_arrive_expecting(
        barrier, static_cast<std::uint32_t>(boxes * p.pages.box_rows * 128 * Shape::kChunks));
  ASSAY_NO_UNROLL
  for (int box = p.cluster == 1 ? 0 : cluster_rank(); box < boxes; box += p.cluster) {
    const int box_outer = paged ? broadcast(outer, box) : outer;
    if (lane != 0) continue;
    const int at = first + box * p.pages.box_rows;
    const int row = paged ? at % p.pages.page_rows : work.shape.kv_begin + at;
#pragma unroll
    for (int chunk = 0; chunk < Shape::kChunks; ++chunk) {
      const SharedAddress there =
          to + chunk * Shape::kTileChunkBytes + box * p.pages.box_rows * 128;
      const int column = chunk * Shape::kChunkColumns;
      if (p.cluster == 1)
        tensor_load(there, map, column, row, head, box_outer, barrier);
      else
        tensor_load_to(kBothBlocks, there, map, column, row, head, box_outer, barrier);
    }
  }
}

// Steps of the warp that finds work and loads queries and keys.
template <class Shape>
struct KeyFetcher {
  const PrefillParams& p;
  SharedMap<Shape> shared;

  template <class Place>
  __device__ void wait_keys_free(const Place& at) {
    wait_at(shared, p, Shape::kKeysFree, at.stage, at.parity ^ 1, Site::kKeysFree);
  }
  template <class Place>
  __device__ void load_keys(const Place& at, const Work<Shape::kUnits>& work, int tile) {
    load_tile<Shape>(p, p.k, work, tile, shared.keys(at.stage),
                     shared.barrier(Shape::kKeysFull + static_cast<int>(at.stage)));
  }
  __device__ void wait_queries_free(int unit, std::uint32_t parity) {
    wait_at(shared, p, Shape::kQueriesFree, static_cast<std::uint32_t>(unit), parity ^ 1,
            Site::kQueriesFree);
  }
  __device__ void load_queries(int unit, const Work<Shape::kUnits>& work) {
    if (thread_index() % 32 != 0) return;
    const SharedAddress barrier = shared.barrier(Shape::kQueriesFull + unit);
    barrier_arrive_expecting(barrier, Shape::kQueryBytes);
    const bool packed = p.lengths.first_q != nullptr;
    for (int chunk = 0; chunk < Shape::kChunks; ++chunk)
      tensor_load(shared.queries(unit) + chunk * Shape::kQueryChunkBytes, p.q,
                  chunk * Shape::kChunkColumns,
                  work.shape.q_begin + work.first_row + unit * kUnitRows, work.head,
                  packed ? 0 : work.request, barrier);
  }
};

// Steps of the warp that loads values.
template <class Shape>
struct ValueFetcher {
  const PrefillParams& p;
  SharedMap<Shape> shared;
  std::uint32_t tail_parity = 0;  // a bit per stage

  template <class Place>
  __device__ void wait_values_free(const Place& at) {
    wait_at(shared, p, Shape::kValuesFree, at.stage, at.parity ^ 1, Site::kValuesFree);
  }

  template <class Place>
  __device__ void load_values(const Place& at, const Work<Shape::kUnits>& work, int tile) {
    const SharedAddress to = shared.values(at.stage);
    const int valid = work.shape.kv_len - tile * Shape::kTile;
    if (valid >= Shape::kTile) {
      load_tile<Shape>(p, p.v, work, tile, to,
                       shared.barrier(Shape::kValuesFull + static_cast<int>(at.stage)));
      return;
    }
    // Rows beyond the last key hold what lies behind it in memory, or an old tile, and 0 times that
    // may be NaN (SPEC ATT-6.1). The units are told only after the rows are zeros.
    load_tile<Shape>(p, p.v, work, tile, to,
                     shared.barrier(Shape::kTailFull + static_cast<int>(at.stage)));
    wait_at(shared, p, Shape::kTailFull, at.stage, tail_parity >> at.stage & 1, Site::kTail);
    tail_parity ^= 1u << at.stage;
    const int pieces = (Shape::kTile - valid) * 8;  // of 16 bytes, in each chunk
    for (int chunk = 0; chunk < Shape::kChunks; ++chunk) {
      ASSAY_NO_UNROLL
      for (int i = thread_index() % 32; i < pieces; i += 32)
        shared_store_zero16(to + chunk * Shape::kTileChunkBytes + valid * 128 + i * 16);
    }
    async_proxy_fence();
    warp_barrier();
    if (thread_index() % 32 == 0)
      barrier_arrive(shared.barrier(Shape::kValuesFull + static_cast<int>(at.stage)));
  }
};

// Steps of the warps that transpose values of one byte: kTransposers of them share a tile.
inline constexpr int kTransposers = 2;
template <class Shape>
struct Transposer {
  const PrefillParams& p;
  SharedMap<Shape> shared;
  int index;  // among the transposers

  struct Memory {
    SharedAddress from, to;
    __device__ std::uint32_t load(std::uint32_t offset) const {
      return shared_load4(from + offset);
    }
    __device__ void store(std::uint32_t offset, std::uint32_t word) const {
      shared_store4(to + offset, word);
    }
  };

  template <class Place>
  __device__ void wait_fetched(const Place& at) {
    wait_at(shared, p, Shape::kValuesFull, at.stage, at.parity, Site::kValuesFull);
  }
  template <class Place>
  __device__ void wait_transposed_free(const Place& at) {
    wait_at(shared, p, Shape::kTransposedFree, at.stage, at.parity ^ 1, Site::kTransposedFree);
  }
  template <class Place>
  __device__ void transpose(const Place& at) {
    const TransposeLane lane(thread_index() % 32);
    for (int chunk = 0; chunk < Shape::kChunks; ++chunk) {
      Memory memory{shared.values(at.stage) + chunk * Shape::kTileChunkBytes,
                    shared.transposed(at.stage) + chunk * Shape::kChunkColumns * 128};
      ASSAY_NO_UNROLL
      for (int columns = 0; columns < Shape::kChunkColumns; columns += 32) {
#pragma unroll
        for (int i = 0; i < Shape::kTile / 16; i += kTransposers)
          transpose_step(memory, lane, i + index, columns);
      }
    }
    // What was stored comes before what the matrix instructions read.
    async_proxy_fence();
    warp_barrier();
  }
  template <class Place>
  __device__ void release_fetched(const Place& at) {
    shared.arrive_everywhere(Shape::kValuesFree + static_cast<int>(at.stage), p.cluster);
  }
  template <class Place>
  __device__ void publish_transposed(const Place& at) {
    arrive(Shape::kTransposedFull + static_cast<int>(at.stage));
  }
  __device__ void arrive(int barrier) {
    if (thread_index() % 32 == 0) barrier_arrive(shared.barrier(barrier));
  }
};

}  // namespace assay::attention_kernels
