// Runs a call of our attention kernels on the current device. See cuda_attention.hpp.
#include "verify/attention/cuda_attention.hpp"

#include <fmt/format.h>

#include "cuda/launch/attention_kernels.hpp"
#include "cuda/launch/attention_wait.hpp"
#include "cuda/launch/decode_sizes.hpp"
#include "cuda/launch/device.hpp"
#include "model/core/text.hpp"
#include "verify/attention/cuda_mutants.hpp"
#include "verify/attention/device_subject.hpp"
#include "verify/mutants/cuda_mutants.hpp"

namespace assay::verify {
namespace {

using cuda::AttentionCall;
using cuda::DeviceMemory;

// A wait inside a kernel ends first, so that its record tells which one it was.
constexpr std::uint64_t kKernelWaitNs = 2'000'000'000;
constexpr std::chrono::seconds kHostWait{20};

std::span<const CudaAttentionMutant* const>& registry() {
  static std::span<const CudaAttentionMutant* const> mutants;
  return mutants;
}

// What CUDA gave for this object. A device that is lost keeps it: giving memory back would wait for
// a kernel that does not end.
struct DeviceState {
  cuda::OwnStream stream;
  DeviceMemory block;
  cuda::AttentionWaitRecord record;
};

class CudaDevice : public CallDevice {
 public:
  static Expected<std::unique_ptr<CallDevice>> make(const CudaAttentionMutant* mutant) {
    auto device = std::unique_ptr<CudaDevice>(new CudaDevice(mutant));
    ASSAY_TRY(device->state_->stream, cuda::OwnStream::make());
    ASSAY_TRY(device->state_->record, cuda::AttentionWaitRecord::make());
    return std::unique_ptr<CallDevice>(std::move(device));
  }
  ~CudaDevice() override {
    if (usable_) delete state_;
  }

  Status check(DeviceKernel kernel, const AttentionCall& call) const override {
    return kernel == DeviceKernel::kPrefill ? cuda::check_prefill(call) : cuda::check_decode(call);
  }

  Expected<std::vector<std::byte>> run(const DeviceCall& call, bool traced) override {
    ASSAY_CHECK(fill(call));
    auto* const block = static_cast<std::byte*>(state_->block.data());
    AttentionCall c = call.at(block, traced);
    c.timeout_ns = kKernelWaitNs;
    c.record = state_->record.on_device();
    ASSAY_CHECK(launch(call, c, traced));
    Status ended = cuda::wait_for(state_->stream, kHostWait, "the kernel");
    if (!ended) {
      usable_ = false;
      return state_->record.told(ended.error());
    }
    std::vector<std::byte> bytes(call.written().bytes);
    ASSAY_CUDA(cudaMemcpyAsync(bytes.data(), block + call.written().at, bytes.size(),
                               cudaMemcpyDeviceToHost, state_->stream),
               "reading outputs");
    ended = cuda::wait_for(state_->stream, kHostWait, "reading outputs");
    if (!ended) {
      usable_ = false;
      return ended.error();
    }
    return bytes;
  }

  bool usable() const override { return usable_; }
  std::optional<OneKernel> only() const override {
    if (mutant_ == nullptr) return std::nullopt;
    return OneKernel{mutant_->decode != nullptr ? DeviceKernel::kDecode : DeviceKernel::kPrefill,
                     mutant_->dtype, CudaAttentionMutant::kHeadDim};
  }

 private:
  explicit CudaDevice(const CudaAttentionMutant* mutant)
      : mutant_(mutant), state_(new DeviceState) {}

  // A new block for each call that needs a larger one; what does not fit is not served.
  Status fill(const DeviceCall& call) {
    DeviceMemory& block = state_->block;
    if (block.bytes() < call.bytes()) {
      block = DeviceMemory();
      auto larger = DeviceMemory::make(call.bytes(), "a problem");
      if (!larger) return unsupported(larger.error().sentence);
      block = *std::move(larger);
    }
    auto* const to = static_cast<std::byte*>(block.data());
    const cudaStream_t on = state_->stream;
    const auto set = [&](DeviceCall::Span span, std::byte value) -> Status {
      ASSAY_CUDA(cudaMemsetAsync(to + span.at, static_cast<int>(value), span.bytes, on),
                 "filling memory");
      return Done{};
    };
    ASSAY_CHECK(set(call.inputs(), DeviceCall::kStrange));
    ASSAY_CHECK(set(call.written(), DeviceCall::kPoison));
    ASSAY_CHECK(set(call.counters(), std::byte{0}));
    for (const DeviceCopy& copy : call.copies()) {
      if (copy.rows == 1)
        ASSAY_CUDA(cudaMemcpyAsync(to + copy.to, copy.from, copy.width, cudaMemcpyHostToDevice, on),
                   "uploading");
      else
        ASSAY_CUDA(cudaMemcpy2DAsync(to + copy.to, copy.to_pitch, copy.from, copy.from_pitch,
                                     copy.width, copy.rows, cudaMemcpyHostToDevice, on),
                   "uploading");
    }
    return Done{};
  }

  // A decode with decisions is cut into as many pieces as the problem says, one without as the
  // launcher cuts it, which on a GPU with nothing else to do is into many (SPEC VER-25.4).
  Status launch(const DeviceCall& from, const AttentionCall& call, bool traced) {
    const cuda::Stream on = state_->stream.stream();
    if (from.kernel() == DeviceKernel::kPrefill)
      return cuda::launch_prefill_kernel(call, prefill_kernel_for(mutant_, call), on);
    cuda::DecodeSplit split;
    const auto chunks = static_cast<int>(cuda::decode_sizes(call).chunks);
    if (traced) split.chunks_per_piece = (chunks + from.splits() - 1) / from.splits();
    return cuda::launch_decode_kernel(call, decode_kernel_for(mutant_, call), split, on);
  }

  const CudaAttentionMutant* mutant_;
  DeviceState* state_;
  bool usable_ = true;
};

Expected<const CudaAttentionMutant*> find(std::string_view name) {
  for (const CudaAttentionMutant* mutant : registry())
    if (name == mutant->name) return mutant;
  return no_such_cuda_mutant(name, "attention", cuda_attention_mutants());
}

Status check_device() {
  int count = 0, device = 0, major = 0, minor = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0)
    return unsupported("subject \"cuda\" needs a GPU, and CUDA finds none on this machine");
  ASSAY_CUDA(cudaGetDevice(&device), "asking for the current device");
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  if (major == 9 && minor == 0) return Done{};
  return unsupported(fmt::format("subject \"cuda\" of attention needs sm_90; device {} is sm_{}{}",
                                 device, major, minor));
}

}  // namespace

void register_cuda_attention_mutants(std::span<const CudaAttentionMutant* const> mutants) {
  registry() = mutants;
}
std::span<const CudaAttentionMutant* const> registered_cuda_attention_mutants() {
  return registry();
}
std::vector<std::string_view> cuda_attention_mutants() {
  std::vector<std::string_view> names;
  for (const CudaAttentionMutant* mutant : registry()) names.emplace_back(mutant->name);
  return names;
}

Expected<std::unique_ptr<AttentionSubject>> load_cuda_attention(
    std::optional<std::string_view> mutant) {
  const CudaAttentionMutant* wrong = nullptr;
  if (mutant) {
    ASSAY_TRY(wrong, find(*mutant));
  }
  ASSAY_CHECK(check_device());
  ASSAY_TRY(std::unique_ptr<CallDevice> device, CudaDevice::make(wrong));
  return device_subject("cuda", std::move(device));
}

}  // namespace assay::verify
