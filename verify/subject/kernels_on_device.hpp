// A group's ranks of somebody's kernels, each with its device current in every call: windows that
// are zero before the first rank is created, and waits for what creating enqueued. Decides nothing
// of its own (SPEC CUD-5.5); for the subject and the benchmark alike.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "cuda/launch/communicator.hpp"
#include "cuda/launch/device.hpp"
#include "verify/subject/kernels_library.hpp"

namespace assay::verify {

// Destroyed with its device current.
class DeviceKernels {
 public:
  DeviceKernels(int device, RankKernels kernels) : device_(device), kernels_(std::move(kernels)) {}
  DeviceKernels(DeviceKernels&& other) noexcept = default;
  DeviceKernels& operator=(DeviceKernels&&) = delete;
  ~DeviceKernels() {
    cuda::DeviceScope scope(device_);
    kernels_.reset();
  }
  // In whose calls the device is current already.
  const RankKernels* operator->() const { return &*kernels_; }

 private:
  int device_;
  std::optional<RankKernels> kernels_;
};

// All ranks of a communicator, in windows of `bytes`. Errors: CUDA's, those of create.
// `bad_options` becomes whether it is the library's ASSAY_BAD_OPTIONS.
Expected<std::vector<DeviceKernels>> create_ranks(const KernelsLibrary& library,
                                                  const assay_kernels_config& config,
                                                  const cuda::Communicator& communicator,
                                                  const cuda::SymmetricMemory& memory,
                                                  std::uint64_t bytes, bool& bad_options);

}  // namespace assay::verify
