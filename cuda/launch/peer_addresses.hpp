// The one thing of NCCL's device API that a host needs: where a symmetric window of each peer is
// mapped on this device. NCCL 2.28 tells it to kernels only.
#pragma once

#include <nccl.h>

#include <cstdint>

namespace assay::cuda {

// addresses: device memory, [ranks]. Enqueued on the current device's default stream.
void enqueue_peer_addresses(ncclWindow_t window, int ranks, std::uint64_t* addresses);

}  // namespace assay::cuda
