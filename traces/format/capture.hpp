// Captured attention: the queries, keys and values of one layer as kernels were given them, cut
// into the calls that they were. Decides what a well-formed capture is (SPEC TRC-4, FORMAT.md); a
// Capture that is open has passed every check. Which calls are looked at, and with which threshold
// and profile, is up to those who ask.
//
//   ASSAY_TRY(const Capture capture, Capture::open("sample-layer1.safetensors"));
//   for (const CaptureCall& call : capture.calls())
//     use(capture.problem({&call, 1}));
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/attention/problem.hpp"
#include "model/core/expected.hpp"
#include "model/core/safetensors.hpp"

namespace assay::traces {

inline constexpr std::string_view kCaptureSchema = "assay.capture";
inline constexpr std::uint32_t kCaptureVersion = 1;

// What the metadata says (SPEC TRC-4.2). Scale, mask and soft cap are in the problems.
struct CaptureInfo {
  std::string model;         // as its publisher calls it
  std::string licence;       // under which the capture may be passed on
  std::string source;        // where it was captured
  std::string rounded_from;  // the type that the model ran in, if not the file's; else empty
  std::int32_t layer = 0;    // of num_layers, from 0
  std::int32_t num_layers = 0;
  std::int32_t num_q_heads = 0;  // of the model
  std::int32_t num_kv_heads = 0;
  std::vector<std::int32_t> q_heads;  // the model's numbers of the heads in the file
  std::vector<std::int32_t> kv_heads;

  friend bool operator==(const CaptureInfo&, const CaptureInfo&) = default;
};

// The query rows that a request ran through the kernel together, and the keys there were then.
struct CaptureCall {
  std::int32_t request = 0;
  std::int32_t step = 0;
  std::int32_t first_q = 0;  // row of tensor q
  std::int32_t q_len = 0;
  std::int32_t first_kv = 0;  // row of tensors k and v: the request's first
  std::int32_t kv_len = 0;

  bool decode() const { return q_len == 1; }
  // The position of its first query row among the keys (SPEC TRC-4.4).
  std::int32_t q_offset() const { return kv_len - q_len; }

  friend bool operator==(const CaptureCall&, const CaptureCall&) = default;
};

class Capture {
 public:
  // Maps the file. Errors: those of TensorFile, and each way to break SPEC TRC-4.1 to TRC-4.3; all
  // begin with the file.
  static Expected<Capture> open(const std::string& path);

  const CaptureInfo& info() const { return info_; }
  std::int32_t num_requests() const { return num_requests_; }
  // By request, then step.
  const std::vector<CaptureCall>& calls() const { return calls_; }

  // `calls` as the requests of one problem, without thresholds. It points into the capture, which
  // must outlive it; moving the capture is allowed.
  attention::Problem problem(std::span<const CaptureCall> calls) const;
  // All rows of every request as one call: its attention as if all had been a prefill.
  attention::Problem whole() const;

 private:
  Capture() = default;
  std::shared_ptr<const TensorFile> file_;
  CaptureInfo info_;
  std::int32_t num_requests_ = 0;
  std::vector<CaptureCall> calls_;
  std::vector<float> sinks_;
  attention::Problem shape_;  // everything but requests and sinks
  const std::byte* q_ = nullptr;
  const std::byte* k_ = nullptr;
  const std::byte* v_ = nullptr;

  friend struct CaptureReader;
};

}  // namespace assay::traces
