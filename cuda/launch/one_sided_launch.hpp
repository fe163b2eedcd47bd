// Launching the one-sided kernels: finds the kernel of a request in the instantiation matrix,
// checks what the hardware demands, enqueues it on a stream. Decides grids, blocks and what is
// refused before a launch; the protocol is cuda/kernels/one_sided. No CUDA type appears here, so
// host code compiled without nvcc can include it.
#pragma once

#include <cstdint>

#include "cuda/kernels/one_sided/params.hpp"
#include "model/core/expected.hpp"

namespace assay::cuda {

// A CUDA stream (cudaStream_t) on the device that is current for the calling thread.
struct Stream {
  void* handle = nullptr;
};

struct LaunchConfig {
  RankId rank{0};
  std::uint32_t threads = 256;                // of a group
  std::uint64_t timeout_ns = 10'000'000'000;  // budget of one wait (SPEC KER-3.1)
  Stream stream;
};

// The kernels of one group: looked up once, loaded on every device before its first launch (a
// lazily loaded module would wait for the kernel that waits for it).
class OneSidedKernels {
 public:
  // Errors: unsupported, for what this build does not instantiate.
  static Expected<OneSidedKernels> find(int top_k, one_sided::Sum sum, one_sided::RowFormat rows,
                                        one_sided::RowFormat pulled, one_sided::RowFormat out);
  // On the current device. After this no launch loads code.
  Status load(std::uint32_t threads) const;

  // Each enqueues one rank's kernel on its stream, on the current device. dispatch and combine have
  // one block per token and wait for all living ranks: ranks that share a device need all of their
  // blocks resident at once.
  Status dispatch(const one_sided::DispatchParams&, const LaunchConfig&) const;
  Status sanitize(const one_sided::SanitizeParams&, const LaunchConfig&) const;
  Status stage(const one_sided::StageParams&, const LaunchConfig&) const;
  Status combine(const one_sided::CombineParams&, const LaunchConfig&) const;

 private:
  const void* dispatch_ = nullptr;  // pointers to __global__ functions
  const void* sanitize_ = nullptr;
  const void* stage_ = nullptr;
  const void* combine_ = nullptr;
};

}  // namespace assay::cuda
