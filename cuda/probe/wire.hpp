// Programs that measure the wire between GPUs: what moves bytes fastest in a given pattern, and
// what the steps of a protocol cost one by one. Decides how each figure is taken; which figures a
// benchmark needs is verify/bench. Host side; needs the CUDA runtime, not nvcc.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace assay::probe {

// `bytes` from one place to another, each reachable from the device; multiples of 16.
struct Lane {
  std::uint64_t from = 0, to = 0, bytes = 0;
};
inline constexpr int kLanesMax = 16;
struct Traffic {
  Lane lane[kLanesMax];
  std::uint32_t lanes = 0;
};

// kVector: 16-byte loads and stores by all threads. kBulk: cp.async.bulk through shared memory.
// Blocks take chunks of all lanes in turn, so that every link is busy all the time. Loads are the
// same with `from` on the peer.
enum class Mover : std::uint8_t { kVector, kBulk };
cudaError_t move(Mover mover, const Traffic& traffic, int blocks, cudaStream_t stream);

cudaError_t empty_kernel(cudaStream_t stream);

// One thread's steps, `count` of them one after the other; the time of all in ns goes to `ns`, a
// place in device memory. kPeerLoad: each load's address depends on the last one's value.
// kPeerStoreFence: a store, then fence.release.sys. kReleaseFence, kAcquireFence: the fence alone.
// kLocalAtomic: atom.acq_rel.gpu on `address`.
enum class Part : std::uint8_t {
  kPeerLoad,
  kPeerStoreFence,
  kReleaseFence,
  kAcquireFence,
  kLocalAtomic
};
cudaError_t time_part(Part part, std::uint64_t address, std::uint32_t count, std::uint64_t* ns,
                      cudaStream_t stream);

// Two ranks, one kernel each: `first` stores 1, 2, ... at the other's cell, which answers at its
// own. A store is released, a poll acquired. Each wait ends after a second; ns is ~0 then.
cudaError_t ping_pong(bool first, std::uint64_t own_cell, std::uint64_t peer_cell,
                      std::uint32_t count, std::uint64_t* ns, cudaStream_t stream);

// Holds a stream until `*flag` (of the host, mapped) is `value`, at most a second: what is enqueued
// behind gates of several devices starts at once on all of them.
cudaError_t gate(const std::uint32_t* flag, std::uint32_t value, cudaStream_t stream);

// Copies one row of `row_bytes` (a multiple of 2) to `rows` rows.
cudaError_t repeat_row(std::uint64_t row, std::uint64_t to, std::uint64_t row_bytes,
                       std::uint64_t rows, cudaStream_t stream);

}  // namespace assay::probe
