// Copies between the host and the same place of several ranks' memory on one device: a rectangle
// with a row per rank. Decides nothing; enqueues on one stream.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/launch/device.hpp"

namespace assay::verify {

// Rank i's part begins at first + i * pitch.
struct DeviceArea {
  Address first;
  std::uint64_t pitch = 0;
};

// `bytes` are of one rank; on the host the ranks lie behind each other.
struct DeviceCopies {
  cudaStream_t stream = nullptr;
  std::int32_t num_ranks = 1;

  Status in(const DeviceArea& to, const std::byte* from, std::uint64_t bytes) const;
  Status out(std::byte* to, const DeviceArea& from, std::uint64_t bytes) const;
  Status fill(const DeviceArea& area, int value, std::uint64_t bytes) const;

 private:
  template <class Rectangle>
  Status by_rows(std::uint64_t pitch, const Rectangle& rectangle) const;
};

}  // namespace assay::verify
