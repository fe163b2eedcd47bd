// The decode kernel of the profile assay-decode-sm90: a persistent block of ten warps. Decides
// which warp has which role and what the barriers count (SPEC CUD-7.1, CUD-7.3). What comes out,
// bit for bit, is SPEC ATT-6.
#pragma once

#include "cuda/kernels/attention/decode_merge.cuh"
#include "cuda/kernels/attention/decode_scores_sm90.cuh"

namespace assay::attention_kernels {

template <class Shape>
__device__ inline void init_decode_barriers(const DecodeMap<Shape>& shared) {
  constexpr int kTeam = 4;  // warps; each arrives for itself
  const auto init = [&](int first, int count, int arrivals) {
    for (int i = 0; i < count; ++i)
      barrier_init(shared.barrier(first, static_cast<std::uint32_t>(i)), arrivals);
  };
  init(Shape::kQueriesFull, Shape::kQueryStages, 32);  // a lane's copies each
  init(Shape::kQueriesFree, Shape::kQueryStages, kTeam);
  init(Shape::kKeysFull, Shape::kKeyStages, 1);
  init(Shape::kKeysFree, Shape::kKeyStages, kTeam);
  init(Shape::kEntryFull, Shape::kEntries, kTeam);
  init(Shape::kEntryFree, Shape::kEntries, kTeam);
  init(Shape::kValuesFull, Shape::kEntries, 1);
  init(Shape::kTailFull, 1, 1);
  init(Shape::kItemFull, Shape::kItems, 1);
  init(Shape::kItemFree, Shape::kItems, 2 * kTeam + 1);  // both teams and the values' warp
  barrier_init_fence();
}

// Pieces of work as one role after the other reads them, where they were published.
template <class Shape>
struct ItemSlot {
  RingPlace<Shape::kItems> at = {};
  __device__ const DecodeItem* take(const DecodeMap<Shape>& shared, unsigned char* base) const {
    shared.wait(Shape::kItemFull, at, false, DecodeSite::kItemFull);
    return reinterpret_cast<const DecodeItem*>(base + Shape::kItemsAt) + at.stage;
  }
  __device__ void release(const DecodeMap<Shape>& shared) {
    shared.arrive(Shape::kItemFree, at.stage);
    at.advance();
  }
};

template <class Shape>
__device__ inline void run_decode_keys(const DecodeParams& p, const DecodeMap<Shape>& shared,
                                       unsigned char* base) {
  DecodeKeyFetcher<Shape> io{p, shared};
  DecodeWorkList list(p);
  RingPlace<Shape::kKeyStages> keys;
  RingPlace<Shape::kQueryStages> queries;
  RingPlace<Shape::kItems> slot;
  auto* const slots = reinterpret_cast<DecodeItem*>(base + Shape::kItemsAt);
  int next = block_index();
  ASSAY_NO_UNROLL
  for (bool more = true; more;) {
    const DecodeItem item = list.find(next);
    more = item.valid != 0;
    // Asked for early: the answer takes as long as a copy.
    std::uint32_t taken = 0;
    if (more && p.takes_more != 0 && thread_index() % 32 == 0)
      taken = count_up(p.call.next_work, 1);
    if (!more || item.rows != 0) {
      shared.wait(Shape::kItemFree, slot, true, DecodeSite::kItemFree);
      if (thread_index() % 32 == 0) {
        slots[slot.stage] = item;
        barrier_arrive(shared.barrier(Shape::kItemFull, slot.stage));
      }
      slot.advance();
      io.tiles.begin();
      fetch_decode_keys(io, item, queries, keys);
    }
    constexpr int kBeyondAll = 0x7FFFFFFF;
    next = p.takes_more != 0 ? num_blocks() + broadcast(static_cast<int>(taken), 0) : kBeyondAll;
  }
}

template <class Shape>
__device__ inline void run_decode_values(const DecodeParams& p, const DecodeMap<Shape>& shared,
                                         unsigned char* base) {
  DecodeValueFetcher<Shape> io{p, shared};
  RingPlace<Shape::kEntries> entries;
  ItemSlot<Shape> slot;
  ASSAY_NO_UNROLL
  for (;;) {
    const DecodeItem item = *slot.take(shared, base);
    slot.release(shared);
    if (item.valid == 0) break;
    io.tiles.begin();
    fetch_decode_values(io, item, entries);
  }
}

template <class Shape>
__device__ inline void run_scorer(const DecodeParams& p, const DecodeMap<Shape>& shared,
                                  unsigned char* base, int index) {
  Scorer<Shape> io(p, shared, index);
  RingPlace<Shape::kKeyStages> keys;
  RingPlace<Shape::kQueryStages> queries;
  RingPlace<Shape::kEntries> entries;
  ItemSlot<Shape> slot;
  ASSAY_NO_UNROLL
  for (;;) {
    const DecodeItem* const item = slot.take(shared, base);
    if (item->valid == 0) break;
    io.begin(item);
    score_tiles(io, *item, queries, keys, entries);
    io.end();
    slot.release(shared);
  }
}

template <class Shape>
__device__ inline void run_adder(const DecodeParams& p, const DecodeMap<Shape>& shared,
                                 unsigned char* base, int index) {
  ValueAdder<Shape> io(p, shared, index);
  RingPlace<Shape::kEntries> entries;
  ItemSlot<Shape> slot;
  ASSAY_NO_UNROLL
  for (;;) {
    const DecodeItem* const item = slot.take(shared, base);
    if (item->valid == 0) break;
    io.begin(*item);
    add_values(io, *item, entries);
    slot.release(shared);
  }
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    decode_kernel(const __grid_constant__ DecodeParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char allocated[];
  const SharedAddress raw = shared_address(allocated);
  const SharedAddress aligned = (raw + 1023) / 1024 * 1024;
  unsigned char* const base = allocated + (aligned - raw);
  const DecodeMap<Shape> shared{aligned, p};
  const int warp = warp_index();
  if (thread_index() == 0) {
    tensor_map_prefetch(p.call.k);
    tensor_map_prefetch(p.call.v);
    init_decode_barriers<Shape>(shared);
  }
  block_barrier();
  // A kernel before this one may still be running: nothing above reads or writes device memory.
  let_dependents_launch();
  wait_for_kernel_before();
  if (warp < 4)
    run_scorer<Shape>(p, shared, base, warp);
  else if (warp < 8)
    run_adder<Shape>(p, shared, base, warp - 4);
  else if (warp == 8)
    run_decode_keys<Shape>(p, shared, base);
  else
    run_decode_values<Shape>(p, shared, base);
#endif
}

}  // namespace assay::attention_kernels
