// What a CUDA group needs and a process should make only once: communicators, symmetric windows,
// streams, device and pinned buffers. A suite of a hundred thousand cases makes as many groups; a
// communicator takes seconds. Decides when a place may be used again and how many rounds may be in
// flight on the devices at once (SPEC CUD-5.1, CUD-5.2); what a round does there is
// cuda_worker.hpp.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cuda/launch/communicator.hpp"
#include "cuda/launch/device.hpp"

namespace assay::verify {

// Page-locked host memory, which copies of a stream neither wait for nor hold the context over.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  PinnedMemory(PinnedMemory&& other) noexcept;
  PinnedMemory& operator=(PinnedMemory&& other) noexcept;
  ~PinnedMemory();
  // At least `bytes`; what was there is lost when it grows.
  Expected<std::byte*> at_least(std::size_t bytes);
  std::size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// One device's part of a place: all ranks when emulated, else one rank.
struct CudaSeat {
  int device = 0;
  cuda::OwnStream stream;
  cuda::DeviceMemory inputs, out;
  PinnedMemory to_device, from_device;

  // Makes `memory` at least `bytes` large; the device must be current.
  static Status grow(cuda::DeviceMemory& memory, std::size_t bytes, const char* what);
};

// For one group at a time.
struct CudaPlace {
  cuda::Communicator communicator;
  std::unique_ptr<cuda::SymmetricMemory> memory;
  std::vector<CudaSeat> seats;
  bool usable = true;  // false: something still runs there, so nobody may have it again
};

// Where the ranks of a group are: all on device 0, in one seat or each in its own, or one on each
// of the first devices.
enum class Seats : std::uint8_t { kOneEmulated, kRankEachEmulated, kRankEach };

// A window of at least window_bytes per rank. Goes back with the last copy of the pointer. Errors:
// those of Communicator.
Expected<std::shared_ptr<CudaPlace>> take_place(Seats seats, std::int32_t ep_size,
                                                std::uint64_t window_bytes);

// Streams that wait for each other must not share a hardware queue: a waiting kernel in front would
// keep back the one it waits for. Before CUDA's start, which reads it; 32 is the most.
void separate_queues();

// Rounds whose kernels wait for other devices must all be resident, or two of them could each hold
// a device that the other needs. A turn is waited for in order and ends with its object.
class DeviceTurn {
 public:
  // `blocks` of the fullest device; at most what one device holds counts.
  explicit DeviceTurn(std::uint32_t blocks);
  // Nobody else's round is in flight: for what waits for a whole device while it holds CUDA's lock,
  // as allocating and loading code do. A rank could not launch what its peers wait for.
  static DeviceTurn alone() { return DeviceTurn(kAlone); }
  ~DeviceTurn();
  DeviceTurn(const DeviceTurn&) = delete;
  DeviceTurn& operator=(const DeviceTurn&) = delete;

 private:
  static constexpr std::uint32_t kAlone = ~std::uint32_t{0};
  std::uint32_t blocks_;
};

}  // namespace assay::verify
