// For tests: a device on the host. Reads each call as the kernel would (the launcher's own words
// for lengths, strides and pages), emulates it, and writes its outputs where the call says. Decides
// nothing.
#pragma once

#include <cstring>
#include <functional>
#include <optional>
#include <vector>

#include "model/core/testing.hpp"
#include "verify/attention/device_subject.hpp"

namespace assay::verify::testing {

using attention::Problem;
using attention::Request;
using cuda::AttentionCall;
using cuda::AttentionRows;

inline const attention::Profile& decode() { return **attention::find_profile(kDecodeProfile); }
inline const attention::Profile& prefill() { return **attention::find_profile(kPrefillProfile); }

// A call as a problem, read by what cuda/launch/attention_launch.hpp says of its members.
struct Reader {
  const AttentionCall& c;
  std::int64_t first_q(int r) const { return c.lengths.first_q ? c.lengths.first_q[r] : 0; }
  std::int32_t q_len(int r) const {
    if (c.lengths.q_len != nullptr) return c.lengths.q_len[r];
    if (c.lengths.first_q != nullptr) return c.lengths.first_q[r + 1] - c.lengths.first_q[r];
    return static_cast<std::int32_t>(c.q.rows);
  }
  std::int32_t kv_len(int r) const {
    if (c.lengths.kv_len != nullptr) return c.lengths.kv_len[r];
    if (c.lengths.first_kv != nullptr) return c.lengths.first_kv[r + 1] - c.lengths.first_kv[r];
    return static_cast<std::int32_t>(c.k.rows);
  }
  attention::Rows rows(const AttentionRows& t, int r, const std::int32_t* first, bool pages) const {
    const std::int64_t element = static_cast<std::int64_t>(dtype_bits(c.dtype)) / 8;
    attention::Rows rows;
    rows.base = static_cast<const std::byte*>(t.data);
    rows.row_stride = t.row_stride;
    rows.head_stride = t.head_stride;
    if (pages) {
      rows.block_table = c.pages.block_table + r * c.pages.table_stride;
      rows.page_rows = t.rows;
      rows.page_stride = t.request_stride;
      rows.available = c.pages.table_stride * t.rows;
      return rows;
    }
    const std::int64_t at = first != nullptr ? first[r] * t.row_stride : r * t.request_stride;
    rows.base += at * element;
    rows.available = first != nullptr ? t.rows - first[r] : t.rows;
    return rows;
  }
  Problem problem() const {
    Problem p;
    p.dtype = c.dtype;
    p.out_dtype = c.out_dtype;
    p.q_heads = c.q_heads;
    p.kv_heads = c.kv_heads;
    p.head_dim = p.v_dim = c.head_dim;
    p.mask = c.mask;
    p.mask_size = c.mask_size;
    p.scale = c.scale;
    p.v_scale = c.v_scale;
    for (int r = 0; r < c.requests; ++r) {
      Request request;
      request.q_len = q_len(r);
      request.kv_len = kv_len(r);
      const bool pages = c.pages.block_table != nullptr;
      request.q = rows(c.q, r, c.lengths.first_q, false);
      request.k = rows(c.k, r, c.lengths.first_kv, pages);
      request.v = rows(c.v, r, c.lengths.first_kv, pages);
      request.q_offset = c.offset == cuda::AttentionOffset::kBottomRight
                             ? request.kv_len - request.q_len
                         : c.offset == cuda::AttentionOffset::kTopLeft ? 0
                                                                       : c.lengths.q_offset[r];
      using Kind = attention::Threshold::Kind;
      if (c.threshold != cuda::AttentionThreshold::kOff)
        request.threshold = {
            c.threshold == cuda::AttentionThreshold::kFactor ? Kind::kScaleFactor : Kind::kLambda,
            c.threshold_values != nullptr ? c.threshold_values[r] : c.threshold_value};
      p.requests.push_back(request);
    }
    return p;
  }
  std::int64_t place(const AttentionRows& t, int r, std::int64_t row, int head) const {
    return (c.lengths.first_q != nullptr ? first_q(r) * t.row_stride : r * t.request_stride) +
           row * t.row_stride + head * t.head_stride;
  }
};

// Computes what the kernel must, where the call says it goes.
inline void run_on_host(DeviceKernel kernel, const AttentionCall& c) {
  const attention::Profile& profile = kernel == DeviceKernel::kPrefill ? prefill() : decode();
  const int unit_heads = kernel == DeviceKernel::kPrefill ? c.q_heads : c.kv_heads;
  const Reader reader{c};
  const Problem p = reader.problem();
  const auto emulator = attention::Emulator::make(profile, p);
  INFO((emulator ? "" : emulator.error().sentence));
  REQUIRE(emulator.has_value());
  const auto result = attention::emulate(profile, p);
  std::int64_t row = 0;
  for (int r = 0; r < c.requests; ++r)
    for (int i = 0; i < p.requests[static_cast<std::size_t>(r)].q_len; ++i, ++row)
      for (int h = 0; h < c.q_heads; ++h) {
        const auto from = static_cast<std::size_t>(row * c.q_heads + h);
        const auto dim = static_cast<std::size_t>(c.head_dim);
        auto* const out = static_cast<std::uint16_t*>(const_cast<void*>(c.out.data));
        std::memcpy(out + reader.place(c.out, r, i, h), &result->out[from * dim], dim * 2);
        if (c.lse.data == nullptr) continue;
        auto* const lse = static_cast<F32*>(const_cast<void*>(c.lse.data));
        lse[reader.place(c.lse, r, i, h)] = result->lse[from];
      }
  if (c.decisions != nullptr)
    std::memset(c.decisions, 0,
                static_cast<std::size_t>(c.requests * unit_heads * c.decision_units) *
                    static_cast<std::size_t>(c.decision_tiles));
  for (std::size_t i = 0; i < result->units.size(); ++i) {
    const attention::Unit& unit = emulator->units()[i];
    for (const attention::TileTrace& tile : result->units[i].tiles) {
      const bool skipped = tile.decision == attention::Decision::kSkipped;
      ++c.counters[2 * unit.head];
      c.counters[2 * unit.head + 1] += skipped;
      if (c.decisions == nullptr) continue;
      const std::int64_t at =
          (static_cast<std::int64_t>(unit.request) * unit_heads + unit.head) * c.decision_units +
          unit.index;
      c.decisions[at * c.decision_tiles + tile.tile] = skipped ? 2 : 1;
    }
  }
}

// What a launch does wrong: called with the call behind it.
using Fault = std::function<void(const AttentionCall&)>;

class HostDevice : public CallDevice {
 public:
  explicit HostDevice(Fault fault = nullptr, std::optional<Error> error = std::nullopt)
      : fault_(std::move(fault)), error_(std::move(error)) {}
  Status check(DeviceKernel kernel, const AttentionCall& call) const override {
    return kernel == DeviceKernel::kPrefill ? cuda::check_prefill(call) : cuda::check_decode(call);
  }
  Expected<std::vector<std::byte>> run(const DeviceCall& call, bool traced) override {
    ++runs;
    if (error_) {
      usable_ = false;
      return *error_;
    }
    std::vector<std::byte> memory(call.bytes() + 256);
    std::byte* block = memory.data();
    block += (256 - reinterpret_cast<std::uintptr_t>(block) % 256) % 256;
    const auto set = [&](DeviceCall::Span span, std::byte value) {
      std::memset(block + span.at, static_cast<int>(value), span.bytes);
    };
    set(call.inputs(), DeviceCall::kStrange);
    set(call.written(), DeviceCall::kPoison);
    set(call.counters(), std::byte{0});
    for (const DeviceCopy& copy : call.copies())
      for (std::size_t row = 0; row < copy.rows; ++row)
        std::memcpy(block + copy.to + row * copy.to_pitch, copy.from + row * copy.from_pitch,
                    copy.width);
    const AttentionCall c = call.at(block, traced);
    run_on_host(call.kernel(), c);
    if (fault_) fault_(c);
    const std::byte* const from = block + call.written().at;
    return std::vector<std::byte>(from, from + call.written().bytes);
  }
  bool usable() const override { return usable_; }
  static inline int runs = 0;

 private:
  Fault fault_;
  std::optional<Error> error_;
  bool usable_ = true;
};

}  // namespace assay::verify::testing
