// A problem as one call of our attention kernels: one block of memory with every tensor and array
// in it, and the call whose pointers lead into that block, wherever it lies. Rows keep the strides,
// gaps and pages that the problem has, because how a kernel finds rows is part of what is tested.
// Decides SPEC VER-25.1 and VER-25.3. Not decided here: whose memory the block is, and who runs the
// call (device_subject.hpp); which bits are right (judge.hpp).
//
//   ASSAY_TRY(const DeviceCall call, DeviceCall::make(profile, problem));
//   ... copy call.copies() to a block of call.bytes(), launch call.at(block, traced), read
//   call.written() back ...
//   AttentionRun run = call.answer(bytes, traced);
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "cuda/launch/attention_launch.hpp"
#include "verify/attention/subject.hpp"

namespace assay::verify {

// Which of our kernels a profile is.
enum class DeviceKernel : std::uint8_t { kPrefill, kDecode };
inline constexpr std::string_view kPrefillProfile = "assay-prefill-sm90";
inline constexpr std::string_view kDecodeProfile = "assay-decode-sm90";
Expected<DeviceKernel> device_kernel_of(const attention::Profile& profile);
constexpr std::string_view profile_of(DeviceKernel kernel) {
  return kernel == DeviceKernel::kPrefill ? kPrefillProfile : kDecodeProfile;
}

// `rows` rows of `width` bytes from host memory to the block.
struct DeviceCopy {
  std::size_t to = 0;
  const std::byte* from = nullptr;
  std::size_t width = 0;
  std::size_t rows = 1;
  std::size_t to_pitch = 0, from_pitch = 0;
};

class DeviceCall {
 public:
  struct Span {
    std::size_t at = 0, bytes = 0;
  };

  // `problem` must outlive this. Errors (unsupported): what a call of these kernels cannot say
  // (custom masks, sinks, values of another size than keys); those of Emulator::make. What the
  // launcher refuses is not looked at here.
  static Expected<DeviceCall> make(const attention::Profile& profile,
                                   const attention::Problem& problem);

  DeviceKernel kernel() const { return kernel_; }
  int splits() const { return problem_->splits; }  // of a decode, if whoever runs it chooses
  std::size_t bytes() const { return bytes_; }     // of the block; it begins at a multiple of 256
  // Memory that nobody's copy covers holds kStrange in every byte: a NaN of each type.
  Span inputs() const { return {0, written_.at}; }
  std::span<const DeviceCopy> copies() const { return copies_; }
  // What a kernel may write, guards included. Arrives filled with kPoison.
  Span written() const { return written_; }
  Span counters() const { return counters_; }  // within that; must be zero

  static constexpr std::byte kStrange{0xFF};
  // A NaN of each type too, which our kernels never write: the one that they give has 0x7F first.
  static constexpr std::byte kPoison{0xFF};

  // The call, for a block at this address. traced: decisions are asked for, which is another kernel
  // (SPEC CUD-6.6).
  cuda::AttentionCall at(std::byte* block, bool traced) const;
  // Only to be checked: an address that nobody reads.
  cuda::AttentionCall nowhere(bool traced) const;
  bool has_rows() const { return call_.q.rows > 0; }

  // The bytes of written() after a launch, as an answer. Failed: what was written to nobody's rows
  // or to a guard, a row that was not written, counters that contradict decisions.
  AttentionRun answer(std::span<const std::byte> written, bool traced) const;

 private:
  struct Tensor;  // rows of q, k or v in the block
  DeviceCall() = default;
  void place_queries();
  void place_keys();
  void place_pages();
  void place_lengths();
  void place_thresholds();
  void place_outputs(const attention::Emulator& emulator);
  Tensor tensor_of(attention::Rows attention::Request::*rows, bool keys, int heads) const;
  void repack(Tensor& tensor, attention::Rows attention::Request::*rows, bool keys, int heads);
  cuda::AttentionRows put(const Tensor& tensor, int heads, Span& span);
  void copy_rows(std::size_t to, const std::byte* from, std::int64_t rows,
                 const attention::Rows& strides, int heads);
  bool pages_agree() const;
  std::int32_t length(std::size_t request, bool keys) const;
  std::size_t reserve(std::size_t bytes);
  template <class T>
  Span put_array(const std::vector<T>& values) {
    const auto bytes = std::as_bytes(std::span(values));
    const std::vector<std::byte>& own = owned_.emplace_back(bytes.begin(), bytes.end());
    const Span span{reserve(own.size()), own.size()};
    copies_.push_back({span.at, own.data(), own.size(), 1, 0, 0});
    return span;
  }
  std::size_t out_row(std::size_t request, std::int32_t row) const;
  std::string check_written(std::span<const std::byte> bytes) const;
  std::string check_counters(std::span<const std::byte> bytes,
                             const attention::DecisionMap& map) const;

  const attention::Problem* problem_ = nullptr;
  DeviceKernel kernel_ = DeviceKernel::kPrefill;
  bool wants_lse_ = false;
  cuda::AttentionCall call_;  // all but its pointers
  std::size_t bytes_ = 0;
  std::vector<DeviceCopy> copies_;
  std::deque<std::vector<std::byte>> owned_;  // what copies point to that the problem does not have
  // Places of arrays; bytes 0: the call has none.
  Span q_, k_, v_, table_, first_q_, first_kv_, q_len_, kv_len_, q_offset_, thresholds_;
  Span written_, out_, lse_, counters_, decisions_, workspace_;
  std::vector<std::int64_t> first_out_;  // [requests] row of out where the request begins
  std::array<int, 4> extents_{};         // of the profile's decisions: cells of the call's map
  int unit_heads_ = 1;
};

}  // namespace assay::verify
