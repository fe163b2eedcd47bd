// For tests and timings of the emulator: a problem whose tensors are copied to the current device.
// Decides nothing.
#pragma once

#include <vector>

#include "cuda/launch/device.hpp"
#include "model/attention/problem.hpp"

namespace assay::cuda {

inline bool has_device() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

// Holds the device's copies and the problem that points to them.
class DeviceProblem {
 public:
  // Copies `bytes` from `data` and lets every Rows that points into them point into the copy.
  Status add(const void* data, std::size_t bytes) {
    ASSAY_TRY(DeviceMemory memory, DeviceMemory::make(bytes + 16, "a tensor"));
    ASSAY_CHECK(copy_to_device(memory.data(), data, bytes, "copying a tensor"));
    copies_.push_back({static_cast<const std::byte*>(data), bytes, std::move(memory)});
    return Done{};
  }
  // The problem with every pointer moved to its copy; what was not added stays.
  attention::Problem moved(attention::Problem p) const {
    for (attention::Request& r : p.requests)
      for (attention::Rows* rows : {&r.q, &r.k, &r.k_rope, &r.v}) {
        rows->base = moved(rows->base);
        rows->block_table = moved(rows->block_table);
      }
    for (auto& cells : p.custom_mask) cells = {moved(cells.data()), cells.size()};
    p.sinks = {moved(p.sinks.data()), p.sinks.size()};
    p.alibi_slopes = {moved(p.alibi_slopes.data()), p.alibi_slopes.size()};
    return p;
  }

 private:
  struct Copy {
    const std::byte* from = nullptr;
    std::size_t bytes = 0;
    DeviceMemory memory;
  };
  template <class T>
  const T* moved(const T* pointer) const {
    const auto* const at = reinterpret_cast<const std::byte*>(pointer);
    for (const Copy& copy : copies_)
      if (at >= copy.from && at <= copy.from + copy.bytes && pointer != nullptr)
        return reinterpret_cast<const T*>(static_cast<const std::byte*>(copy.memory.data()) +
                                          (at - copy.from));
    return pointer;
  }
  std::vector<Copy> copies_;
};

}  // namespace assay::cuda
