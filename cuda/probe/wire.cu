// Kernels of the wire's probes.
#include "cuda/ops/ptx_ops.hpp"
#include "cuda/probe/wire.hpp"

namespace assay::probe {

namespace {

using cuda::PtxOps;

constexpr std::uint64_t kChunk = 16384;  // bytes of one lane that a block moves at a time
constexpr int kVectorThreads = 512;
constexpr std::uint64_t kWait = 1'000'000'000;  // ns

__device__ std::uint64_t now_ns() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__device__ PtxOps probe_ops() { return PtxOps{RankId(0), 0, 1, nullptr, kWait}; }

// Chunk `index` of all lanes: chunk index / lanes of lane index % lanes. Returns its bytes, 0
// beyond the lane's end.
__device__ std::uint64_t chunk_of(const Traffic& traffic, std::uint64_t index, std::uint64_t& from,
                                  std::uint64_t& to) {
  const Lane& lane = traffic.lane[index % traffic.lanes];
  const std::uint64_t at = index / traffic.lanes * kChunk;
  if (at >= lane.bytes) return 0;
  from = lane.from + at;
  to = lane.to + at;
  return lane.bytes - at < kChunk ? lane.bytes - at : kChunk;
}

__global__ void __launch_bounds__(kVectorThreads)
    move_by_vectors(const __grid_constant__ Traffic traffic, std::uint64_t chunks) {
  const PtxOps ops = probe_ops();
  constexpr int kInFlight = kChunk / 16 / kVectorThreads;
  for (std::uint64_t c = blockIdx.x; c < chunks; c += gridDim.x) {
    std::uint64_t from, to;
    const std::uint64_t bytes = chunk_of(traffic, c, from, to);
    Vec16 word[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const std::uint64_t at = (std::uint64_t{threadIdx.x} + i * kVectorThreads) * 16;
      if (at < bytes) word[i] = ops.load(as<Vec16>, relaxed_sys, Site::kNone, Address{from + at});
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const std::uint64_t at = (std::uint64_t{threadIdx.x} + i * kVectorThreads) * 16;
      if (at < bytes) ops.store(relaxed_sys, Site::kNone, Address{to + at}, word[i]);
    }
  }
}

constexpr int kStages = 8;
constexpr int kBulkShared = kStages * static_cast<int>(kChunk);

__device__ void wait_for_phase(std::uint32_t barrier, std::uint32_t phase) {
  std::uint32_t done = 0;
  while (done == 0)  // bytes of a local or peer load always arrive
    asm volatile(
        "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, "
        "p;}"
        : "=r"(done)
        : "r"(barrier), "r"(phase)
        : "memory");
}

// One thread per block keeps kStages chunks in flight: loads run ahead, a stage is loaded again
// when the store out of it has been read.
__global__ void move_by_bulk(const __grid_constant__ Traffic traffic, std::uint64_t chunks) {
  extern __shared__ __align__(128) unsigned char stage[];
  __shared__ std::uint64_t barrier[kStages];
  const auto stage0 = static_cast<std::uint32_t>(__cvta_generic_to_shared(stage));
  const auto barrier0 = static_cast<std::uint32_t>(__cvta_generic_to_shared(barrier));
  for (int s = 0; s < kStages; ++s)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier0 + 8 * s) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  const auto load = [&](std::uint64_t n) {
    const std::uint64_t c = blockIdx.x + n * gridDim.x;
    if (c >= chunks) return;
    std::uint64_t from, to;
    const auto bytes = static_cast<std::uint32_t>(chunk_of(traffic, c, from, to));
    const auto s = static_cast<std::uint32_t>(n % kStages);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier0 + 8 * s),
                 "r"(bytes)
                 : "memory");
    if (bytes != 0)
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
          "[%3];" ::"r"(stage0 + s * static_cast<std::uint32_t>(kChunk)),
          "l"(from), "r"(bytes), "r"(barrier0 + 8 * s)
          : "memory");
  };
  constexpr int kAhead = kStages / 2;
  for (int n = 0; n < kAhead; ++n) load(n);
  for (std::uint64_t n = 0, c = blockIdx.x; c < chunks; ++n, c += gridDim.x) {
    // The stage that load n + kAhead takes was stored from kStages - kAhead chunks ago.
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kStages - kAhead - 1) : "memory");
    load(n + kAhead);
    const auto s = static_cast<std::uint32_t>(n % kStages);
    wait_for_phase(barrier0 + 8 * s, static_cast<std::uint32_t>(n / kStages) & 1);
    std::uint64_t from, to;
    const auto bytes = static_cast<std::uint32_t>(chunk_of(traffic, c, from, to));
    if (bytes != 0)
      asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                   "r"(stage0 + s * static_cast<std::uint32_t>(kChunk)), "r"(bytes)
                   : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  }
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

__global__ void do_nothing() {}

__global__ void run_part(Part part, std::uint64_t address, std::uint32_t count, std::uint64_t* ns) {
  PtxOps ops = probe_ops();
  const Address place{address};
  std::uint64_t moved = 0;
  const std::uint64_t start = now_ns();
  for (std::uint32_t i = 0; i < count; ++i) {
    switch (part) {
      case Part::kPeerLoad:  // the place holds 0, which the compiler cannot know
        moved += ops.load(as<std::uint64_t>, relaxed_sys, Site::kNone, place.at(moved));
        break;
      case Part::kPeerStoreFence:
        ops.store(relaxed_sys, Site::kNone, place, std::uint64_t{0});
        ops.fence(release_sys, Site::kNone);
        break;
      case Part::kReleaseFence:
        ops.fence(release_sys, Site::kNone);
        break;
      case Part::kAcquireFence:
        ops.fence(acquire_sys, Site::kNone);
        break;
      case Part::kLocalAtomic:
        moved += ops.atomic_add(acq_rel_gpu, Site::kNone, place.at(moved), 0u);
        break;
    }
  }
  *ns = now_ns() - start + moved;
}

__device__ bool reached(PtxOps& ops, Address cell, std::uint64_t value) {
  Await await;
  await.mask = ~std::uint64_t{0};
  await.expected = value;
  return !ops.wait_until(as<std::uint64_t>, relaxed_sys, Site::kNone, cell, await).timed_out;
}

__global__ void run_ping_pong(bool first, std::uint64_t own, std::uint64_t peer,
                              std::uint32_t count, std::uint64_t* ns) {
  PtxOps ops = probe_ops();
  const std::uint64_t start = now_ns();
  bool ok = true;
  for (std::uint64_t i = 1; i <= count && ok; ++i) {
    if (!first) ok = reached(ops, Address{own}, i);
    ops.fence(release_sys, Site::kNone);
    ops.store(relaxed_sys, Site::kNone, Address{peer}, i);
    if (first) ok = reached(ops, Address{own}, i);
    ops.fence(acquire_sys, Site::kNone);
  }
  *ns = ok ? now_ns() - start : ~std::uint64_t{0};
}

__global__ void run_gate(std::uint64_t flag, std::uint32_t value) {
  PtxOps ops = probe_ops();
  Await await;
  await.mask = 0xFFFFFFFF;
  await.expected = value;
  static_cast<void>(
      ops.wait_until(as<std::uint32_t>, relaxed_sys, Site::kNone, Address{flag}, await));
}

__global__ void run_repeat_row(std::uint64_t row, std::uint64_t to, std::uint64_t row_bytes,
                               std::uint64_t rows) {
  const PtxOps ops = probe_ops();
  for (std::uint64_t r = blockIdx.x; r < rows; r += gridDim.x)
    for (std::uint64_t at = threadIdx.x * 2; at < row_bytes; at += blockDim.x * 2)
      ops.store(weak, Site::kNone, Address{to + r * row_bytes + at},
                ops.load(as<std::uint16_t>, weak, Site::kNone, Address{row + at}));
}

}  // namespace

cudaError_t move(Mover mover, const Traffic& traffic, int blocks, cudaStream_t stream) {
  std::uint64_t longest = 0;
  for (std::uint32_t i = 0; i < traffic.lanes; ++i)
    longest = traffic.lane[i].bytes > longest ? traffic.lane[i].bytes : longest;
  const std::uint64_t chunks = (longest + kChunk - 1) / kChunk * traffic.lanes;
  if (mover == Mover::kVector) {
    move_by_vectors<<<blocks, kVectorThreads, 0, stream>>>(traffic, chunks);
    return cudaGetLastError();
  }
  const cudaError_t allowed =
      cudaFuncSetAttribute(move_by_bulk, cudaFuncAttributeMaxDynamicSharedMemorySize, kBulkShared);
  if (allowed != cudaSuccess) return allowed;
  move_by_bulk<<<blocks, 1, kBulkShared, stream>>>(traffic, chunks);
  return cudaGetLastError();
}

cudaError_t empty_kernel(cudaStream_t stream) {
  do_nothing<<<1, 32, 0, stream>>>();
  return cudaGetLastError();
}

cudaError_t time_part(Part part, std::uint64_t address, std::uint32_t count, std::uint64_t* ns,
                      cudaStream_t stream) {
  run_part<<<1, 1, 0, stream>>>(part, address, count, ns);
  return cudaGetLastError();
}

cudaError_t ping_pong(bool first, std::uint64_t own_cell, std::uint64_t peer_cell,
                      std::uint32_t count, std::uint64_t* ns, cudaStream_t stream) {
  run_ping_pong<<<1, 1, 0, stream>>>(first, own_cell, peer_cell, count, ns);
  return cudaGetLastError();
}

cudaError_t gate(const std::uint32_t* flag, std::uint32_t value, cudaStream_t stream) {
  run_gate<<<1, 1, 0, stream>>>(reinterpret_cast<std::uint64_t>(flag), value);
  return cudaGetLastError();
}

cudaError_t repeat_row(std::uint64_t row, std::uint64_t to, std::uint64_t row_bytes,
                       std::uint64_t rows, cudaStream_t stream) {
  run_repeat_row<<<264, 256, 0, stream>>>(row, to, row_bytes, rows);
  return cudaGetLastError();
}

}  // namespace assay::probe
