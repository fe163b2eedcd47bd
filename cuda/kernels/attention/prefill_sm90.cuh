// The prefill kernel of the profile assay-prefill-sm90: a persistent block of one warpgroup that
// fetches and two or three that compute a unit of 64 query rows each. Decides which warp has which
// role and what the barriers count (SPEC CUD-6.1). What a unit computes, bit for bit, is SPEC
// ATT-6.
#pragma once

#include "cuda/kernels/attention/compute_sm90.cuh"

namespace assay::attention_kernels {

template <class Shape>
__device__ inline void init_barriers(const SharedMap<Shape>& shared, int cluster) {
  constexpr int kWarps = 4;  // of a unit; each arrives for itself
  const auto init = [&](int first, int count, int arrivals) {
    for (int i = 0; i < count; ++i) barrier_init(shared.barrier(first + i), arrivals);
  };
  init(Shape::kQueriesFull, Shape::kUnits, 1);
  init(Shape::kQueriesFree, Shape::kUnits, kWarps);
  init(Shape::kKeysFull, Shape::kKeyStages, 1);
  // Both blocks of a cluster read what either fetches.
  init(Shape::kKeysFree, Shape::kKeyStages, cluster * kWarps * Shape::kUnits);
  init(Shape::kValuesFull, Shape::kValueStages, 1);
  // Values go to the units, or to the warps that transpose them for the units.
  init(Shape::kValuesFree, Shape::kValueStages,
       cluster * (Shape::kFp8 ? kTransposers : kWarps * Shape::kUnits));
  init(Shape::kTransposedFull, Shape::kValueStages, kTransposers);
  init(Shape::kTransposedFree, Shape::kValueStages, kWarps * Shape::kUnits);
  init(Shape::kTailFull, Shape::kValueStages, 1);
  init(Shape::kWorkFull, 2, 1);
  // Work is read by the units, the values' warp and the transposers, and what piece it is, in the
  // first block of a cluster, by the other's keys' warp.
  init(Shape::kWorkFree, 2,
       kWarps * Shape::kUnits + 1 + (Shape::kFp8 ? kTransposers : 0) +
           (cluster > 1 && cluster_rank() == 0 ? 1 : 0));
  init(Shape::kNextFull, 2, 1);
  init(Shape::kDone, 1,
       cluster * kWarps * Shape::kUnits + (cluster > 1 && cluster_rank() == 0 ? 1 : 0));
  barrier_init_fence();
}

// Work as one role after the other reads it, where it was published.
template <class Shape>
struct WorkSlot {
  RingPlace<2> at;
  __device__ const Work<Shape::kUnits>* take(const SharedMap<Shape>& shared, const PrefillParams& p,
                                             unsigned char* base) const {
    wait_at(shared, p, Shape::kWorkFull, at.stage, at.parity, Site::kWorkFull);
    return reinterpret_cast<const Work<Shape::kUnits>*>(base + Shape::kWorkAt) + at.stage;
  }
  __device__ void release(const SharedMap<Shape>& shared) {
    warp_barrier();
    if (thread_index() % 32 == 0)
      barrier_arrive(shared.barrier(Shape::kWorkFree + static_cast<int>(at.stage)));
    at.advance();
  }
};

// Which piece of work comes next: the cluster's first block asks the counter, the other is told.
template <class Shape>
struct NextPiece {
  const PrefillParams& p;
  SharedMap<Shape> shared;
  int rank;
  std::uint32_t taken = 0;

  __device__ int first() const { return block_index() / p.cluster; }
  // Asked for early: the answer takes as long as a copy.
  __device__ void ask() {
    if (rank == 0 && thread_index() % 32 == 0) taken = count_up(p.next_work, 1);
  }
  __device__ int answer() const {
    return num_blocks() / p.cluster + broadcast(static_cast<int>(taken), 0);
  }
  // The slot is one that all readers have left.
  __device__ void tell(const RingPlace<2>& slot, int n) const {
    if (p.cluster == 1 || thread_index() % 32 != 0) return;
    store_counted(
        cluster_address(shared.next(slot.stage), 1), static_cast<std::uint32_t>(n),
        cluster_address(shared.barrier(Shape::kNextFull + static_cast<int>(slot.stage)), 1));
  }
  __device__ int hear(const RingPlace<2>& slot) const {
    const int lane = thread_index() % 32;
    const SharedAddress full = shared.barrier(Shape::kNextFull + static_cast<int>(slot.stage));
    if (lane == 0) barrier_arrive_expecting(full, 4);
    wait_at(shared, p, Shape::kNextFull, slot.stage, slot.parity, Site::kNextFull);
    const int n = broadcast(static_cast<int>(shared_load4(shared.next(slot.stage))), 0);
    if (lane == 0)
      barrier_arrive_at(
          cluster_address(shared.barrier(Shape::kWorkFree + static_cast<int>(slot.stage)), 0));
    return n;
  }
};

// Finds work, publishes it and fetches its queries and keys; last, waits until the units of the
// cluster are done, so that a schedule that hangs is noticed by a wait that has an end, and no
// block ends while another still reaches into it.
template <class Shape>
__device__ inline void run_keys(const PrefillParams& p, const SharedMap<Shape>& shared,
                                unsigned char* base) {
  KeyFetcher<Shape> io{p, shared};
  const int rank = p.cluster == 1 ? 0 : cluster_rank();
  WorkList<Shape> list(p, rank);
  NextPiece<Shape> piece{p, shared, rank};
  Rings<Shape::kKeyStages, Shape::kValueStages> rings;
  RingPlace<2> slot;
  std::uint32_t q_parity[Shape::kUnits] = {};
  auto* slots = reinterpret_cast<Work<Shape::kUnits>*>(base + Shape::kWorkAt);
  int next = piece.first();
  ASSAY_NO_UNROLL
  for (bool more = true; more;) {
    if (rank != 0) next = piece.hear(slot);
    const Work<Shape::kUnits> work = list.find(next);
    more = work.valid != 0;
    if (more) piece.ask();
    wait_at(shared, p, Shape::kWorkFree, slot.stage, slot.parity ^ 1, Site::kWorkFree);
    if (rank == 0) piece.tell(slot, next);
    if (thread_index() % 32 == 0) {
      slots[slot.stage] = work;
      barrier_arrive(shared.barrier(Shape::kWorkFull + static_cast<int>(slot.stage)));
    }
    slot.advance();
    fetch_keys(io, work, rings, q_parity);
    if (rank == 0) next = piece.answer();
  }
  // The first block must not end before the last word from here has reached it.
  if (rank != 0) {
    cluster_fence();
    if (thread_index() % 32 == 0)
      barrier_arrive_at(cluster_address(shared.barrier(Shape::kDone), 0));
  }
  wait_at(shared, p, Shape::kDone, 0, 0, Site::kDone);
  cluster_fence();
}

template <class Shape>
__device__ inline void run_values(const PrefillParams& p, const SharedMap<Shape>& shared,
                                  unsigned char* base) {
  ValueFetcher<Shape> io{p, shared};
  Rings<Shape::kKeyStages, Shape::kValueStages> rings;
  WorkSlot<Shape> slot;
  ASSAY_NO_UNROLL
  for (bool more = true; more;) {
    const Work<Shape::kUnits> work = *slot.take(shared, p, base);
    slot.release(shared);
    more = work.valid != 0;
    fetch_values(io, work, rings);
  }
}

template <class Shape>
__device__ inline void run_transposer(const PrefillParams& p, const SharedMap<Shape>& shared,
                                      unsigned char* base, int index) {
  Transposer<Shape> io{p, shared, index};
  Rings<Shape::kKeyStages, Shape::kValueStages> rings;
  WorkSlot<Shape> slot;
  ASSAY_NO_UNROLL
  for (bool more = true; more;) {
    const Work<Shape::kUnits>* const work = slot.take(shared, p, base);
    more = work->valid != 0;
    transpose_values(io, *work, rings);
    slot.release(shared);
  }
}

template <class Shape, Mode kMode>
__device__ inline void run_unit(const PrefillParams& p, const SharedMap<Shape>& shared,
                                unsigned char* base, int index) {
  Unit<Shape, kMode> io(p, shared, index);
  Rings<Shape::kKeyStages, Shape::kValueStages> rings;
  WorkSlot<Shape> slot;
  std::uint32_t q_parity = 0;
  for (;;) {
    const Work<Shape::kUnits>* const work = slot.take(shared, p, base);
    if (work->valid == 0) break;
    const TileRanges mine{uniform(work->unit[index].visited), uniform(work->unit[index].whole)};
    io.begin(work);
    if constexpr (Shape::kInTurn)
      compute_in_turn(io, mine, rings, q_parity);
    else
      compute(io, mine, rings, q_parity);
    io.end(mine);
    slot.release(shared);
  }
  // The other block may end as soon as it hears of this, and nothing may reach it later.
  cluster_fence();
  io.arrive_everywhere(Shape::kDone);
}

template <class Shape, Mode kMode>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    prefill_kernel(const __grid_constant__ PrefillParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char allocated[];
  const SharedAddress raw = shared_address(allocated);
  const SharedAddress aligned = (raw + 1023) / 1024 * 1024;
  unsigned char* const base = allocated + (aligned - raw);
  const SharedMap<Shape> shared{aligned};
  const int warp = warp_index();
  if (warp == 0) {
    if (thread_index() == 0) {
      tensor_map_prefetch(p.q);
      tensor_map_prefetch(p.k);
      tensor_map_prefetch(p.v);
      init_barriers<Shape>(shared, p.cluster);
    }
  }
  if (p.cluster == 1)
    block_barrier();
  else
    cluster_barrier();
  if (warp / 4 == 0) {
    give_registers<Shape::kFetchRegisters>();
    if (warp == 0) run_keys<Shape>(p, shared, base);
    if (warp == 1) run_values<Shape>(p, shared, base);
    if constexpr (Shape::kFp8)
      if (warp >= 2) run_transposer<Shape>(p, shared, base, warp - 2);
  } else {
    take_registers<Shape::kComputeRegisters>();
    run_unit<Shape, kMode>(p, shared, base, warp / 4 - 1);
  }
#endif
}

}  // namespace assay::attention_kernels
