// What a unit computes with, without containers: one request's tensors, the profile's choices and
// the threshold, as one value that a host thread or a GPU's block may hold. Decides nothing; made
// by view_of() from an Emulator's parts. Pointers are those of the problem: a device's if the
// problem's tensors lie there.
#pragma once

#include <cstdint>

#include "model/attention/emulate.hpp"
#include "model/attention/vote.hpp"

namespace assay::attention {

struct UnitView {
  Dtype dtype = Dtype::kBf16;
  Dtype out_dtype = Dtype::kBf16;
  int q_heads = 1, group = 1, head_dim = 0, rope_dim = 0, v_dim = 0, splits = 1;
  Rows q, k, k_rope, v;
  std::int32_t q_len = 0, kv_len = 0;
  Mask mask;
  const std::uint8_t* custom_mask = nullptr;  // [q_len, kv_len], or null
  const float* sinks = nullptr;               // [q_heads], or null
  const float* alibi_slopes = nullptr;        // likewise
  float softcap = 0;
  float v_scale = 1;
  SkipRule skip;
  Softmax soft;
  TileShape tile;
  numerics::Arithmetic arithmetic;                     // of both products
  const numerics::Instruction* instruction = nullptr;  // the same by name; the host's
  Scale scale;
  Lambda lambda;
  int head = 0;                        // of the unit
  int index = 0;                       // likewise
  const ForcedTile* forced = nullptr;  // the host's; null on a device
  int forced_count = 0;
  double slack_log2 = 0;

  int element_bytes() const { return static_cast<int>(dtype_bits(dtype) / 8); }
};

struct UnitInput {
  const Problem& problem;
  const Resolved& resolved;
  const Scale& scale;
  const Lambda& lambda;
  Unit unit;
  RunOptions options = {};
};

inline UnitView view_of(const UnitInput& in) {
  const Problem& p = in.problem;
  const Request& r = p.requests[in.unit.request];
  UnitView v;
  v.dtype = p.dtype;
  v.out_dtype = p.out_dtype;
  v.q_heads = p.q_heads;
  v.group = p.group();
  v.head_dim = p.head_dim;
  v.rope_dim = p.rope_dim;
  v.v_dim = p.v_dim;
  v.splits = p.splits;
  v.q = r.q;
  v.k = r.k;
  v.k_rope = r.k_rope;
  v.v = r.v;
  v.q_len = r.q_len;
  v.kv_len = r.kv_len;
  v.mask = p.mask_of(r);
  if (!p.custom_mask.empty()) v.custom_mask = p.custom_mask[in.unit.request].data();
  if (!p.sinks.empty()) v.sinks = p.sinks.data();
  if (!p.alibi_slopes.empty()) v.alibi_slopes = p.alibi_slopes.data();
  v.softcap = p.softcap;
  v.v_scale = p.v_scale;
  v.skip = in.resolved.skip;
  v.soft = in.resolved.softmax;
  v.tile = in.resolved.tile;
  v.arithmetic = in.resolved.qk->arithmetic;
  v.instruction = in.resolved.qk;
  v.scale = in.scale;
  v.lambda = in.lambda;
  v.head = in.unit.head;
  v.index = in.unit.index;
  v.forced = in.options.forced.data();
  v.forced_count = static_cast<int>(in.options.forced.size());
  v.slack_log2 = in.options.slack_log2;
  return v;
}

}  // namespace assay::attention
