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
  __device__ SharedAddress work(std::uint32_t slot) const {
    return base + Shape::kWorkAt + slot * static_cast<int>(sizeof(Work<Shape::kUnits>));
  }
};

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
  __device__ explicit WorkList(const PrefillParams& p) : p_(p) {}

  // Pieces are asked for in ascending order, so requests that lie behind are not looked at again.
  __device__ Work<kUnits> find(int n) {
    const int lane = thread_index() % 32;
    ASSAY_NO_UNROLL
    for (; first_ < p_.requests; first_ += 32, before_ += total_) {
      RequestShape shape;
      if (first_ + lane < p_.requests) shape = shape_of(p_, first_ + lane);
      const int tiles = q_tiles_of(shape.q_len, kUnits);
      int upto = tiles * p_.q_heads;  // 0 for a lane without a request
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
      const Place place = place_of(n - before_ - skipped, q_tiles_of(shape.q_len, kUnits),
                                   p_.q_heads, p_.section_heads);
      return work_of<kUnits>(first_ + owner, shape, place, p_.mask, p_.mask_size, Shape::kTile);
    }
    return {};
  }

 private:
  const PrefillParams& p_;
  int first_ = 0;   // of the 32 requests looked at
  int before_ = 0;  // pieces of requests before them
  int total_ = 0;   // pieces of theirs
};

// Copies one tile of keys or values into a stage; the full barrier gets what to expect. One lane
// issues all copies. Keys beyond the last are not copied where they lie in pages, box by box; where
// rows are contiguous they are somebody else's, or zeros beyond the tensor.
template <class Shape>
__device__ inline void load_tile(const PrefillParams& p, const CUtensorMap& map,
                                 const Work<Shape::kUnits>& work, int tile, SharedAddress to,
                                 SharedAddress barrier) {
  const int lane = thread_index() % 32;
  const int first = tile * Shape::kTile;
  const int head = work.head / p.group;
  if (p.pages.table == nullptr) {
    if (lane != 0) return;
    barrier_arrive_expecting(barrier, Shape::kTileBytes);
    const int request = p.lengths.first_kv != nullptr ? 0 : work.request;
#pragma unroll
    for (int chunk = 0; chunk < Shape::kChunks; ++chunk)
      tensor_load(to + chunk * Shape::kTileChunkBytes, map, chunk * Shape::kChunkColumns,
                  work.shape.kv_begin + first, head, request, barrier);
    return;
  }
  const int box_rows = p.pages.box_rows;
  const int rows = attention::schedule_detail::smaller(Shape::kTile, work.shape.kv_len - first);
  const int boxes = (rows + box_rows - 1) / box_rows;  // at most 16, of 8 rows
  int page = p.pages.num_pages;
  if (lane < boxes) {
    const std::int64_t entry = static_cast<std::int64_t>(work.request) * p.pages.table_stride +
                               (first + lane * box_rows) / p.pages.page_rows;
    page = p.pages.table[entry];
    // A page that does not exist arrives as zeros, as everything outside a tensor does.
    if (page < 0) page = p.pages.num_pages;
  }
  if (lane == 0)
    barrier_arrive_expecting(barrier,
                             static_cast<std::uint32_t>(boxes * box_rows * 128 * Shape::kChunks));
  ASSAY_NO_UNROLL
  for (int box = 0; box < boxes; ++box) {
    const int box_page = broadcast(page, box);
    if (lane != 0) continue;
    const int row = (first + box * box_rows) % p.pages.page_rows;
#pragma unroll
    for (int chunk = 0; chunk < Shape::kChunks; ++chunk)
      tensor_load(to + chunk * Shape::kTileChunkBytes + box * box_rows * 128, map,
                  chunk * Shape::kChunkColumns, row, head, box_page, barrier);
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
  std::uint32_t tail_parity = 0;

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
    load_tile<Shape>(p, p.v, work, tile, to, shared.barrier(Shape::kTailFull));
    wait_at(shared, p, Shape::kTailFull, 0, tail_parity, Site::kTail);
    tail_parity ^= 1;
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
    arrive(Shape::kValuesFree + static_cast<int>(at.stage));
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
