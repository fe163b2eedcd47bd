// The two warps of a decode block that fetch: one finds work, tells the others and loads queries
// and keys; one loads values of kept tiles, zeroing rows beyond the last key. Decides how a step of
// decode_flow.hpp becomes copies and barriers (SPEC CUD-7.2, CUD-7.3). Every function is called by
// a whole warp.
#pragma once

#include "cuda/kernels/attention/decode_flow.hpp"
#include "cuda/kernels/attention/decode_params.cuh"
#include "cuda/kernels/attention/decode_shape.cuh"
#include "cuda/kernels/attention/fetch_sm90.cuh"
#include "cuda/ops/tma_stream.hpp"
#include "cuda/ops/warp_matrix.hpp"

namespace assay::attention_kernels {

// Barriers by kind, as a wait that gives up names them; a prefill's sites end below.
enum class DecodeSite : std::uint32_t {
  kQueriesFull = 33,
  kQueriesFree,
  kKeysFull,
  kKeysFree,
  kEntryFull,
  kEntryFree,
  kValuesFull,
  kTail,
  kItemFull,
  kItemFree,
};

// The block's shared memory by name, and its waits.
template <class Shape>
struct DecodeMap {
  SharedAddress base;
  const DecodeParams& p;

  __device__ SharedAddress queries(std::uint32_t stage) const {
    return base + Shape::kQueriesAt + stage * Shape::kQueryBytes;
  }
  __device__ SharedAddress keys(std::uint32_t stage) const {
    return base + Shape::kKeysAt + stage * Shape::kTileBytes;
  }
  __device__ SharedAddress values(std::uint32_t entry) const {
    return base + Shape::kValuesAt + entry * Shape::kTileBytes;
  }
  __device__ SharedAddress probabilities(std::uint32_t entry) const {
    return base + Shape::kProbabilitiesAt + entry * Shape::kProbabilityBytes;
  }
  __device__ SharedAddress correction(std::uint32_t entry, int row) const {
    return base + Shape::kCorrectionsAt + (entry * Shape::kRows + row) * 4;
  }
  __device__ SharedAddress maximum(std::uint32_t buffer, int warp, int row) const {
    return base + Shape::kMaximaAt + ((buffer * 4 + warp) * Shape::kRows + row) * 4;
  }
  // At the end of a piece, in P's place: sums of the four warps, then maxima.
  __device__ SharedAddress end_sum(std::uint32_t entry, int warp, int row) const {
    return probabilities(entry) + (warp * Shape::kRows + row) * 4;
  }
  __device__ SharedAddress end_maximum(std::uint32_t entry, int row) const {
    return end_sum(entry, 4, row);
  }
  __device__ SharedAddress entry_tile(std::uint32_t entry) const {
    return base + Shape::kEntryTilesAt + entry * 4;
  }
  __device__ SharedAddress barrier(int first, std::uint32_t stage) const {
    return base + Shape::kBarriersAt + (first + static_cast<int>(stage)) * 8;
  }

  // Until stage `at` has been filled, or, with `free`, emptied as often as it was filled before.
  template <class Place>
  __device__ void wait(int first, const Place& at, bool free, DecodeSite site) const {
    barrier_wait(barrier(first, at.stage), at.parity ^ (free ? 1u : 0u),
                 Watch{p.call.timeout_ns, p.call.record}, static_cast<std::uint32_t>(site),
                 at.stage);
  }
  // One arrival of the warp, behind what all its lanes did.
  __device__ void arrive(int first, std::uint32_t stage) const {
    warp_barrier();
    if (thread_index() % 32 == 0) barrier_arrive(barrier(first, stage));
  }
};

// The shape of a request, forced into what the host knew.
__device__ inline RequestShape decode_shape_of(const DecodeParams& p, int request) {
  RequestShape s = shape_of(p.call, request);
  s.q_len = bounded(s.q_len, p.q_len_most);
  s.kv_len = bounded(s.kv_len, p.kv_len_most);
  if (p.call.lengths.offset_rule == OffsetRule::kBottomRight) s.q_offset = s.kv_len - s.q_len;
  return s;
}

// Finds the n-th piece of work of the launch: 32 requests at a time, a lane each. Pieces are asked
// for in ascending order, so requests that lie behind are not looked at again.
class DecodeWorkList {
 public:
  __device__ explicit DecodeWorkList(const DecodeParams& p) : p_(p) {}

  __device__ DecodeItem find(int n) {
    const int lane = thread_index() % 32;
    const int group = p_.call.group;
    ASSAY_NO_UNROLL
    for (; first_ < p_.call.requests; first_ += 32, before_ += total_) {
      RequestShape shape;
      int pieces = 0;  // of a lane without a request
      if (first_ + lane < p_.call.requests) {
        shape = decode_shape_of(p_, first_ + lane);
        pieces = decode_units(shape.q_len, group) * p_.kv_heads *
                 decode_splits(shape.kv_len, p_.chunks_per_piece);
      }
      int upto = pieces;
      for (int distance = 1; distance < 32; distance *= 2) {
        const int other = shuffle_up(upto, distance);
        if (lane >= distance) upto += other;
      }
      total_ = broadcast(upto, 31);
      if (n - before_ >= total_) continue;
      // Lanes whose pieces end at or before n are a prefix.
      const int owner = __popc(ballot(n - before_ >= upto));
      const int skipped = owner == 0 ? 0 : broadcast(upto, owner - 1);
      shape = {broadcast(shape.q_begin, owner), broadcast(shape.q_len, owner),
               broadcast(shape.kv_begin, owner), broadcast(shape.kv_len, owner),
               broadcast(shape.q_offset, owner)};
      const DecodePlace place =
          decode_place(n - before_ - skipped, p_.kv_heads, decode_units(shape.q_len, group));
      return decode_item(first_ + owner, shape, group, place, p_.chunks_per_piece, p_.call.mask,
                         p_.call.mask_size);
    }
    return {};
  }

 private:
  const DecodeParams& p_;
  int first_ = 0;   // of the 32 requests looked at
  int before_ = 0;  // pieces of requests before them
  int total_ = 0;   // pieces of theirs
};

// Copies tiles of keys or of values; the full barrier gets what to expect. Where keys lie in pages,
// those beyond the last are not copied, box by box, and the next tile's pages are asked for early.
template <class Shape>
struct DecodeTileLoader {
  const DecodeParams& p;
  const CUtensorMap& map;
  std::int32_t asked_tile = -1;  // whose pages `page` holds, a box a lane
  int page = 0;
  std::uint64_t policy = leaves_first();

  __device__ void begin() { asked_tile = -1; }  // another piece

  __device__ void load(const DecodeItem& item, int tile, SharedAddress to, SharedAddress barrier) {
    const int lane = thread_index() % 32;
    const int first = tile * kDecodeTile;
    if (p.call.pages.table == nullptr) {
      if (lane != 0) return;
      barrier_arrive_expecting(barrier, Shape::kTileBytes);
      const int request = p.call.lengths.first_kv != nullptr ? 0 : item.request;
#pragma unroll
      for (int chunk = 0; chunk < Shape::kChunks; ++chunk)
        copy(to + chunk * Shape::kTileChunkBytes, chunk * Shape::kChunkColumns,
             item.shape.kv_begin + first, item.place.head, request, barrier);
      return;
    }
    if (asked_tile != tile) page = page_of(item, tile);
    const int box_rows = p.call.pages.box_rows;
    const int boxes = boxes_of(item, tile);
    if (lane == 0)
      barrier_arrive_expecting(barrier,
                               static_cast<std::uint32_t>(boxes * box_rows * 128 * Shape::kChunks));
    ASSAY_NO_UNROLL
    for (int box = 0; box < boxes; ++box) {
      const int box_page = broadcast(page, box);
      if (lane != 0) continue;
      const int row = (first + box * box_rows) % p.call.pages.page_rows;
#pragma unroll
      for (int chunk = 0; chunk < Shape::kChunks; ++chunk)
        copy(to + chunk * Shape::kTileChunkBytes + box * box_rows * 128,
             chunk * Shape::kChunkColumns, row, item.place.head, box_page, barrier);
    }
    asked_tile = tile + 1;
    if (asked_tile < item.tiles.end) page = page_of(item, asked_tile);
  }

 private:
  // Keys and values are read once, but by units that share them at about the same time; partial
  // results, which are read again, should stay in L2.
  __device__ void copy(SharedAddress to, int c0, int c1, int c2, int c3,
                       SharedAddress barrier) const {
    if constexpr (Shape::kStreams)
      tensor_load_with(to, map, c0, c1, c2, c3, barrier, policy);
    else
      tensor_load(to, map, c0, c1, c2, c3, barrier);
  }
  __device__ int boxes_of(const DecodeItem& item, int tile) const {
    const int rows =
        attention::schedule_detail::smaller(kDecodeTile, item.shape.kv_len - tile * kDecodeTile);
    return (rows + p.call.pages.box_rows - 1) / p.call.pages.box_rows;  // at most 8, of 8 rows
  }
  // A page that does not exist arrives as zeros, as everything outside a tensor does.
  __device__ int page_of(const DecodeItem& item, int tile) const {
    const int lane = thread_index() % 32;
    const Pages& pages = p.call.pages;
    if (lane >= boxes_of(item, tile)) return pages.num_pages;
    const std::int64_t entry = static_cast<std::int64_t>(item.request) * pages.table_stride +
                               (tile * kDecodeTile + lane * pages.box_rows) / pages.page_rows;
    const int page = pages.table[entry];
    return page < 0 ? pages.num_pages : page;
  }
};

// Steps of the warp that finds work and loads queries and keys.
template <class Shape>
struct DecodeKeyFetcher {
  const DecodeParams& p;
  const DecodeMap<Shape>& shared;
  DecodeTileLoader<Shape> tiles{p, p.call.k};

  template <class Place>
  __device__ void wait_queries_free(const Place& at) {
    shared.wait(Shape::kQueriesFree, at, true, DecodeSite::kQueriesFree);
  }
  // Rows of several heads and tokens, 16 bytes at a time, to where the swizzle has them; rows
  // beyond q_len are zeros.
  template <class Place>
  __device__ void load_queries(const Place& at, const DecodeItem& item) {
    constexpr int kPieces = Shape::kChunks * 8;  // of 16 bytes, in a row
    const auto* const tensor = static_cast<const char*>(p.q);
    const bool packed = p.call.lengths.first_q != nullptr;
    ASSAY_NO_UNROLL
    for (int i = thread_index() % 32; i < Shape::kRows * kPieces; i += 32) {
      const int row = i / kPieces, piece = i % kPieces;
      const int in_request = item.place.unit * kUnitRows + row;
      const int token = in_request / p.call.group, head = in_request % p.call.group;
      const std::int64_t element =
          (packed ? 0 : item.request * p.q_request_stride) +
          (std::int64_t{item.shape.q_begin} + token) * p.q_row_stride +
          (std::int64_t{item.place.head} * p.call.group + head) * p.q_head_stride;
      const bool exists = row < item.rows;
      const char* const from =
          exists ? tensor + element * static_cast<int>(sizeof(typename Shape::Element)) + piece * 16
                 : tensor;
      copy16_or_zero(shared.queries(at.stage) + piece / 8 * Shape::kQueryChunkBytes +
                         swizzled_offset(row, piece % 8 * 16),
                     from, exists);
    }
    arrive_after_copies(shared.barrier(Shape::kQueriesFull, at.stage));
  }
  template <class Place>
  __device__ void wait_keys_free(const Place& at) {
    shared.wait(Shape::kKeysFree, at, true, DecodeSite::kKeysFree);
  }
  template <class Place>
  __device__ void load_keys(const Place& at, const DecodeItem& item, int tile) {
    tiles.load(item, tile, shared.keys(at.stage), shared.barrier(Shape::kKeysFull, at.stage));
  }
};

// Steps of the warp that loads values.
template <class Shape>
struct DecodeValueFetcher {
  const DecodeParams& p;
  const DecodeMap<Shape>& shared;
  DecodeTileLoader<Shape> tiles{p, p.call.v};
  RingPlace<1> tail = {};

  __device__ bool may_skip_tiles() const { return p.call.threshold.enabled != 0; }
  template <class Place>
  __device__ void wait_entry(const Place& at) {
    shared.wait(Shape::kEntryFull, at, false, DecodeSite::kEntryFull);
  }
  template <class Place>
  __device__ std::int32_t entry_tile(const Place& at) {
    return static_cast<std::int32_t>(shared_load4(shared.entry_tile(at.stage)));
  }
  template <class Place>
  __device__ void wait_entry_free(const Place& at) {
    shared.wait(Shape::kEntryFree, at, true, DecodeSite::kEntryFree);
  }
  template <class Place>
  __device__ void pass_values(const Place& at) {
    shared.arrive(Shape::kValuesFull, at.stage);
  }
  template <class Place>
  __device__ void load_values(const Place& at, const DecodeItem& item, int tile) {
    const SharedAddress to = shared.values(at.stage);
    const int valid = item.shape.kv_len - tile * kDecodeTile;
    if (valid >= kDecodeTile) {
      tiles.load(item, tile, to, shared.barrier(Shape::kValuesFull, at.stage));
      return;
    }
    // Rows beyond the last key hold what lies behind it in memory, or an old tile, and 0 times that
    // may be NaN (SPEC ATT-6.1). The others are told only after the rows are zeros.
    tiles.load(item, tile, to, shared.barrier(Shape::kTailFull, 0));
    shared.wait(Shape::kTailFull, tail, false, DecodeSite::kTail);
    tail.advance();
    const int pieces = (kDecodeTile - valid) * 8;  // of 16 bytes, in each chunk
    for (int chunk = 0; chunk < Shape::kChunks; ++chunk) {
      ASSAY_NO_UNROLL
      for (int i = thread_index() % 32; i < pieces; i += 32)
        shared_store_zero16(to + chunk * Shape::kTileChunkBytes + valid * 128 + i * 16);
    }
    async_proxy_fence();  // the copy engine will write there again
    pass_values(at);
  }
};

}  // namespace assay::attention_kernels
