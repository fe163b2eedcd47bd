// The subject `cuda`: our attention kernels behind the call that every subject answers. Runs each
// problem twice, with decisions and without, because these are two kernels of a prefill and two
// ways to cut the keys of a decode, and holds the second to the bits of the first. Decides SPEC
// VER-25.1 to VER-25.5: what is declined, what is a failure, what happens after one. Whose memory
// and which launch is a CallDevice: a GPU (cuda_attention.hpp) or, in tests, the host.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "verify/attention/device_call.hpp"

namespace assay::verify {

// One instantiation of one of our kernels.
struct OneKernel {
  DeviceKernel kernel = DeviceKernel::kPrefill;
  Dtype dtype = Dtype::kBf16;
  int head_dim = 128;
};

// Runs one call.
class CallDevice {
 public:
  virtual ~CallDevice() = default;
  // What the launcher says of a call before it is run.
  virtual Status check(DeviceKernel kernel, const cuda::AttentionCall& call) const = 0;
  // The bytes of call.written() after the launch. An error is the launch's or a wait's that ended
  // without an end; afterwards usable() says whether there may be another.
  virtual Expected<std::vector<std::byte>> run(const DeviceCall& call, bool traced) = 0;
  virtual bool usable() const = 0;
  // A wrong kernel is one instantiation only: the subject is then its profile alone, and cases are
  // of its type and size. Nothing: any.
  virtual std::optional<OneKernel> only() const { return std::nullopt; }
};

// `name` as reports print it.
std::unique_ptr<AttentionSubject> device_subject(std::string name,
                                                 std::unique_ptr<CallDevice> device);

// A case like `c` that our kernels serve, if there is one: head sizes up to the next of theirs and
// one for both, pages of a size that tiles are cut into.
AttentionCase served_case(AttentionCase c, const std::optional<OneKernel>& only);
// A random case with more keys, so that there are tiles to skip and chunks to merge, at times with
// heads of 256.
AttentionCase drawn_case(AttentionCase c, const std::optional<OneKernel>& only);
// The page size next above that tiles of our kernels are cut into.
std::int32_t served_page(std::int32_t rows);

}  // namespace assay::verify
