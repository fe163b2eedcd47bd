// Where an attention kernel that ends itself tells which wait took too long, and that as a
// sentence. Decides nothing; needs the CUDA runtime, not nvcc.
#pragma once

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "cuda/launch/device.hpp"
#include "cuda/ops/wait_record.hpp"

namespace assay::cuda {

// Pinned and mapped host memory, which outlives the context of the kernel that wrote it.
class AttentionWaitRecord {
 public:
  static Expected<AttentionWaitRecord> make() {
    AttentionWaitRecord made;
    void* host = nullptr;
    ASSAY_CUDA(cudaHostAlloc(&host, sizeof(WaitRecord), cudaHostAllocMapped),
               "allocating a record of waits");
    std::memset(host, 0, sizeof(WaitRecord));
    made.host_ = static_cast<WaitRecord*>(host);
    return Expected<AttentionWaitRecord>(std::move(made));
  }
  AttentionWaitRecord() = default;
  AttentionWaitRecord(AttentionWaitRecord&& other) noexcept
      : host_(std::exchange(other.host_, nullptr)) {}
  AttentionWaitRecord& operator=(AttentionWaitRecord&& other) noexcept {
    std::swap(host_, other.host_);
    return *this;
  }
  ~AttentionWaitRecord() {
    if (host_ != nullptr) cudaFreeHost(host_);
  }

  // Mapped memory has one address for both sides (unified addressing).
  WaitRecord* on_device() const { return host_; }
  // `error`, and which wait gave up if one did.
  Error told(const Error& error) const {
    if (host_ == nullptr || host_->filled == 0) return error;
    return error.within(fmt::format("a wait gave up: site {} stage {} parity {} block {} thread {}",
                                    host_->site, host_->stage, host_->parity, host_->block,
                                    host_->thread));
  }

 private:
  WaitRecord* host_ = nullptr;
};

}  // namespace assay::cuda
