// Zeroing windows, and creating ranks in them.
#include "verify/subject/kernels_on_device.hpp"

#include <chrono>

namespace assay::verify {

namespace {

// What was enqueued without naming a stream, however the library was compiled.
Status wait_for_default_streams(const char* what) {
  constexpr std::chrono::seconds kBudget{60};  // modules are loaded and windows zeroed
  ASSAY_CHECK(cuda::wait_for(cudaStreamLegacy, kBudget, what));
  return cuda::wait_for(cudaStreamPerThread, kBudget, what);
}

// Every rank's memory, as this rank's device addresses it.
std::vector<void*> windows_of(const cuda::SymmetricMemory& memory, std::size_t rank) {
  std::vector<void*> windows;
  for (std::size_t r = 0; r < memory.windows().size(); ++r)
    windows.push_back(
        cuda::pointer(memory.windows()[rank].of(RankId(static_cast<std::int32_t>(r)))));
  return windows;
}

}  // namespace

Expected<std::vector<DeviceKernels>> create_ranks(const KernelsLibrary& library,
                                                  const assay_kernels_config& config,
                                                  const cuda::Communicator& communicator,
                                                  const cuda::SymmetricMemory& memory,
                                                  std::uint64_t bytes, bool& bad_options) {
  const auto ranks = static_cast<std::size_t>(config.ep_size);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    cuda::DeviceScope scope(communicator.local_ranks()[rank].device);
    ASSAY_CUDA(cudaMemset(windows_of(memory, rank)[rank], 0, bytes), "zeroing a window");
    ASSAY_CHECK(wait_for_default_streams("zeroing a window"));
  }
  std::vector<DeviceKernels> all;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const int device = communicator.local_ranks()[rank].device;
    cuda::DeviceScope scope(device);
    ASSAY_TRY(RankKernels kernels,
              RankKernels::make(library, config, static_cast<std::int32_t>(rank),
                                windows_of(memory, rank), bad_options));
    all.emplace_back(device, std::move(kernels));
    ASSAY_CHECK(wait_for_default_streams("creating a rank"));
  }
  return Expected<std::vector<DeviceKernels>>(std::move(all));
}

}  // namespace assay::verify
