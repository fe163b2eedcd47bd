// The kernel that asks NCCL where peers are mapped. Decides nothing.
#include "cuda/launch/peer_addresses.hpp"

#include <nccl_device.h>

namespace assay::cuda {

namespace {

__global__ void store_peer_addresses(ncclWindow_t window, int ranks, std::uint64_t* addresses) {
  for (int rank = 0; rank < ranks; ++rank)
    addresses[rank] = reinterpret_cast<std::uint64_t>(ncclGetLsaPointer(window, 0, rank));
}

}  // namespace

void enqueue_peer_addresses(ncclWindow_t window, int ranks, std::uint64_t* addresses) {
  store_peer_addresses<<<1, 1>>>(window, ranks, addresses);
}

}  // namespace assay::cuda
