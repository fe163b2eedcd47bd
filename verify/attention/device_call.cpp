// A call of our kernels out of a problem: all but its rows (device_rows.cpp) and what comes back
// (device_answer.cpp). See device_call.hpp.
#include "verify/attention/device_call.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "model/attention/unit_plan.hpp"

namespace assay::verify {

using attention::Problem;
using attention::Request;
using attention::Threshold;
using cuda::AttentionCall;

namespace {

constexpr std::size_t kAlignment = 256;

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

Status check_sayable(const Problem& p) {
  if (!p.custom_mask.empty()) return unsupported("a call of our kernels has no custom mask");
  if (!p.sinks.empty()) return unsupported("a call of our kernels has no attention sinks");
  if (p.softcap > 0 || !p.alibi_slopes.empty())
    return unsupported("a call of our kernels has neither softcap nor ALiBi slopes");
  if (p.rope_dim > 0) return unsupported("a call of our kernels has no keys in two parts (MLA)");
  if (p.v_dim != p.head_dim)
    return unsupported(
        fmt::format("v_dim is {} and head_dim {}; a call of our kernels has one size for both",
                    p.v_dim, p.head_dim));
  return Done{};
}

// The last tile that any unit visits, plus one.
std::int32_t tiles_of(const attention::Emulator& emulator) {
  std::int32_t tiles = 0;
  for (const attention::Unit& unit : emulator.units()) {
    const attention::UnitView view = emulator.view(unit);
    const attention::UnitLayout layout(view);
    for (int i = 0; i < layout.segments(); ++i) tiles = std::max(tiles, layout.segment(i).end);
  }
  return tiles;
}

}  // namespace

Expected<DeviceKernel> device_kernel_of(const attention::Profile& profile) {
  if (profile.name == kPrefillProfile) return DeviceKernel::kPrefill;
  if (profile.name == kDecodeProfile) return DeviceKernel::kDecode;
  return unsupported(fmt::format("profile is {}; our kernels are {} and {}", profile.name,
                                 kPrefillProfile, kDecodeProfile));
}

Expected<DeviceCall> DeviceCall::make(const attention::Profile& profile, const Problem& problem) {
  DeviceCall made;
  ASSAY_TRY(made.kernel_, device_kernel_of(profile));
  // A threshold that is none is the launcher's to refuse, so it gets there.
  Problem lawful = problem;
  for (Request& r : lawful.requests)
    if (!(r.threshold.value >= 0)) r.threshold.value = 0;
  ASSAY_TRY(const attention::Emulator emulator, attention::Emulator::make(profile, lawful));
  ASSAY_CHECK(check_sayable(problem));
  made.problem_ = &problem;
  made.wants_lse_ = emulator.resolved().softmax.lse != attention::LseForm::kNone;
  AttentionCall& c = made.call_;
  c.dtype = problem.dtype;
  c.out_dtype = problem.out_dtype;
  c.requests = static_cast<int>(problem.requests.size());
  c.q_heads = problem.q_heads;
  c.kv_heads = problem.kv_heads;
  c.head_dim = problem.head_dim;
  c.mask = problem.mask;
  c.mask_size = problem.mask_size;
  // From left to right, as SPEC ATT-5.1 has it.
  c.scale = problem.scale * problem.q_scale * problem.k_scale;
  c.v_scale = problem.v_scale;
  made.place_queries();
  if (made.pages_agree())
    made.place_pages();
  else
    made.place_keys();
  made.place_lengths();
  made.place_thresholds();
  made.place_outputs(emulator);
  return Expected<DeviceCall>(std::move(made));
}

std::int32_t DeviceCall::length(std::size_t request, bool keys) const {
  const Request& r = problem_->requests[request];
  return keys ? r.kv_len : r.q_len;
}

std::size_t DeviceCall::reserve(std::size_t bytes) {
  const std::size_t at = bytes_;
  bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return at;
}

// An array of lengths is left out where the call says them without it, so that both ways are run.
void DeviceCall::place_lengths() {
  const std::vector<Request>& requests = problem_->requests;
  std::vector<std::int32_t> q, kv, offsets;
  bool bottom_right = true, top_left = true;
  for (const Request& r : requests) {
    q.push_back(r.q_len);
    kv.push_back(r.kv_len);
    offsets.push_back(r.q_offset);
    bottom_right &= r.q_offset == r.kv_len - r.q_len;
    top_left &= r.q_offset == 0;
    call_.lengths.q_len_max = std::max(call_.lengths.q_len_max, r.q_len);
    call_.lengths.kv_len_max = std::max(call_.lengths.kv_len_max, r.kv_len);
  }
  const auto as_rows_say = [&](const Span& first, std::int64_t rows,
                               const std::vector<std::int32_t>& lengths) {
    if (first.bytes == 0)
      return std::all_of(lengths.begin(), lengths.end(),
                         [&](std::int32_t length) { return length == rows; });
    const auto own = std::find_if(copies_.begin(), copies_.end(),
                                  [&](const DeviceCopy& copy) { return copy.to == first.at; });
    std::vector<std::int32_t> begins(lengths.size() + 1);
    std::memcpy(begins.data(), own->from, first.bytes);
    for (std::size_t i = 0; i < lengths.size(); ++i)
      if (begins[i + 1] - begins[i] != lengths[i]) return false;
    return true;
  };
  if (!as_rows_say(first_q_, call_.q.rows, q)) q_len_ = put_array(q);
  if (table_.bytes != 0 || !as_rows_say(first_kv_, call_.k.rows, kv)) kv_len_ = put_array(kv);
  call_.offset = bottom_right ? cuda::AttentionOffset::kBottomRight
                 : top_left   ? cuda::AttentionOffset::kTopLeft
                              : cuda::AttentionOffset::kGiven;
  if (call_.offset == cuda::AttentionOffset::kGiven) q_offset_ = put_array(offsets);
}

// One value for all where there is one. Requests of several kinds are told as lambdas, a factor
// divided here as the kernel divides it; no threshold is then lambda 0, which skips nothing that a
// row sees (SPEC VER-25.3).
void DeviceCall::place_thresholds() {
  using Kind = Threshold::Kind;
  const std::vector<Request>& requests = problem_->requests;
  call_.threshold = cuda::AttentionThreshold::kOff;
  if (requests.empty()) return;
  const Threshold first = requests[0].threshold;
  bool same_kind = true, same_value = true;
  for (const Request& r : requests) {
    same_kind &= r.threshold.kind == first.kind;
    same_value &= r.threshold.value == first.value;
  }
  if (same_kind && first.kind == Kind::kOff) return;
  call_.threshold = same_kind && first.kind == Kind::kScaleFactor
                        ? cuda::AttentionThreshold::kFactor
                        : cuda::AttentionThreshold::kLambda;
  call_.threshold_value = first.value;
  for (const Request& r : requests)
    if (!(r.threshold.value >= 0)) call_.threshold_value = r.threshold.value;
  if ((same_kind && same_value) || !(call_.threshold_value >= 0)) return;
  std::vector<float> values;
  for (const Request& r : requests)
    values.push_back(r.threshold.kind == Kind::kOff ? 0.0f
                     : !same_kind && r.threshold.kind == Kind::kScaleFactor
                         ? r.threshold.value / static_cast<float>(r.kv_len)
                         : r.threshold.value);
  thresholds_ = put_array(values);
}

void DeviceCall::place_outputs(const attention::Emulator& emulator) {
  const std::size_t requests = problem_->requests.size();
  const bool padded = first_q_.bytes == 0;
  const std::size_t rows = size(call_.q.rows) * (padded ? requests : 1);
  const std::size_t heads = size(problem_->q_heads), dim = size(problem_->head_dim);
  call_.out = call_.q;
  call_.out.row_stride = static_cast<std::int64_t>(heads * dim);
  call_.out.head_stride = static_cast<std::int64_t>(dim);
  call_.out.request_stride = call_.q.rows * call_.out.row_stride;
  call_.lse = call_.out;
  call_.lse.row_stride = static_cast<std::int64_t>(heads);
  call_.lse.head_stride = 1;
  call_.lse.request_stride = call_.q.rows * call_.lse.row_stride;

  extents_[0] = static_cast<int>(requests);
  for (const attention::Unit& unit : emulator.units()) {
    extents_[1] = std::max(extents_[1], unit.head + 1);
    extents_[2] = std::max(extents_[2], unit.index + 1);
  }
  extents_[3] = tiles_of(emulator);
  const auto heads_of_units = emulator.resolved().skip.packing == attention::Packing::kHeadRows
                                  ? problem_->q_heads
                                  : problem_->kv_heads;
  unit_heads_ = heads_of_units;
  const std::int32_t tile = emulator.resolved().tile.kv_tile;
  call_.decision_units = std::max(extents_[2], 1);
  call_.decision_tiles = std::max({extents_[3], (call_.lengths.kv_len_max + tile - 1) / tile, 1});
  const std::size_t cells =
      requests * size(unit_heads_) * size(call_.decision_units) * size(call_.decision_tiles);
  // A guard before each and one behind the last.
  const auto guarded = [&](std::size_t bytes) {
    reserve(kAlignment);
    return Span{reserve(bytes), bytes};
  };
  written_.at = bytes_;
  out_ = guarded(rows * heads * dim * 2);
  if (wants_lse_) lse_ = guarded(rows * heads * 4);
  counters_ = guarded(size(unit_heads_) * 16);
  decisions_ = guarded(cells);
  call_.workspace_bytes = kernel_ == DeviceKernel::kDecode
                              ? cuda::decode_workspace_bytes(nowhere(true))
                              : cuda::kAttentionWorkspaceBytes;
  workspace_ = guarded(call_.workspace_bytes);
  reserve(kAlignment);
  written_.bytes = bytes_ - written_.at;
}

AttentionCall DeviceCall::nowhere(bool traced) const {
  return at(reinterpret_cast<std::byte*>(std::uintptr_t{kAlignment}), traced);
}

AttentionCall DeviceCall::at(std::byte* block, bool traced) const {
  AttentionCall c = call_;
  const auto pointer = [&]<class T>(const Span& span, T*& to) {
    to = span.bytes == 0
             ? nullptr
             : static_cast<T*>(const_cast<void*>(static_cast<const void*>(block + span.at)));
  };
  pointer(q_, c.q.data);
  pointer(k_, c.k.data);
  pointer(v_, c.v.data);
  pointer(table_, c.pages.block_table);
  pointer(first_q_, c.lengths.first_q);
  pointer(first_kv_, c.lengths.first_kv);
  pointer(q_len_, c.lengths.q_len);
  pointer(kv_len_, c.lengths.kv_len);
  pointer(q_offset_, c.lengths.q_offset);
  pointer(thresholds_, c.threshold_values);
  pointer(out_, c.out.data);
  pointer(lse_, c.lse.data);
  pointer(counters_, c.counters);
  pointer(workspace_, c.workspace);
  if (traced) pointer(decisions_, c.decisions);
  return c;
}

}  // namespace assay::verify
