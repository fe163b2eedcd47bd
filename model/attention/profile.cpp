// The list of profiles, and which of a profile's variants a problem gets. Decides the refusals of
// SPEC ATT-4.2; the values are in profiles/.
#include "model/attention/profile.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace assay::attention {
namespace {

std::vector<Profile> all_profiles() {
  std::vector<Profile> all;
  for (const auto family : {families::assay, families::trtllm_fmha_v2, families::trtllm_xqa,
                            families::trtllm_gen, families::flashinfer_cutedsl, families::modelopt,
                            families::aiter, families::paper, families::fa3}) {
    for (const Profile& profile : family()) all.push_back(profile);
  }
  return all;
}

// "wgmma.k16.f32.bf16.bf16" for the problem's element type.
Expected<const numerics::Instruction*> instruction(const Profile& profile, Dtype dtype) {
  const std::string_view element = dtype == Dtype::kBf16  ? "bf16"
                                   : dtype == Dtype::kF16 ? "f16"
                                                          : "e4m3";
  std::string family(profile.instruction_family);
  if (family == "tcgen05") family += dtype == Dtype::kF8E4m3 ? ".kind::f8f6f4" : ".kind::f16";
  return numerics::require_instruction(
      fmt::format("{}.k{}.f32.{}.{}", family, dtype == Dtype::kF8E4m3 ? 32 : 16, element, element),
      profile.arch);
}

bool was_measured(const Profile& profile, const Problem& p) {
  if (!p.custom_mask.empty() || p.rope_dim != 0 || p.v_dim != p.head_dim) return false;
  const bool fp8 = p.dtype == Dtype::kF8E4m3;
  if (!fp8 && (p.q_scale != 1 || p.k_scale != 1 || p.v_scale != 1)) return false;
  if (p.out_dtype != (fp8 ? Dtype::kBf16 : p.dtype)) return false;
  bool paged = false, dense = false;
  for (const Request& r : p.requests) {
    // Rows without keys, and rows whose place is not the end of the keys, were not.
    if (r.kv_len == 0 ||
        (p.mask != MaskKind::kFull && (r.kv_len < r.q_len || r.q_offset != r.kv_len - r.q_len)))
      return false;
    paged = paged || r.k.block_table != nullptr;
    dense = dense || r.threshold.kind == Threshold::Kind::kOff || r.threshold.value == 0;
  }
  const bool windows = p.mask == MaskKind::kWindow || p.mask == MaskKind::kChunked;
  return std::any_of(profile.measured.begin(), profile.measured.end(), [&](MeasuredCalls calls) {
    return calls.dtype == p.dtype && calls.head_dim == p.head_dim && (calls.dense || !dense) &&
           (calls.paged || !paged) && (calls.windows || !windows) &&
           (calls.sinks || p.sinks.empty());
  });
}

Error refuse(const Profile& profile, const std::string& what) {
  return unsupported(fmt::format("profile {} {}", profile.name, what));
}

}  // namespace

std::span<const Profile> profiles() {
  static const std::vector<Profile> all = all_profiles();
  return all;
}

Expected<const Profile*> find_profile(std::string_view name) {
  std::string known;
  for (const Profile& profile : profiles()) {
    if (profile.name == name) return &profile;
    known += (known.empty() ? "" : ", ") + std::string(profile.name);
  }
  return bad_input(fmt::format("profile is \"{}\"; attention knows {}", name, known));
}

Expected<Resolved> resolve(const Profile& profile, const Problem& problem) {
  Resolved r;
  r.profile = &profile;
  r.skip = profile.skip;
  r.softmax = profile.softmax;
  r.grade = profile.grade;
  if (r.grade == Grade::kBits && !was_measured(profile, problem)) r.grade = Grade::kBitsClaimed;
  const bool fp8 = problem.dtype == Dtype::kF8E4m3;
  const bool biased = problem.softcap > 0 || !problem.alibi_slopes.empty();
  if (fp8 && !profile.fp8) return refuse(profile, "has no fp8 form");
  if (biased && (!profile.biased || fp8))
    return refuse(profile, fmt::format("has no {}{}, which the call has",
                                       problem.softcap > 0 ? "soft cap" : "ALiBi slopes",
                                       profile.biased ? " for e4m3" : ""));
  if (r.skip.dense_only) {
    for (const Request& request : problem.requests) {
      if (request.threshold.kind != Threshold::Kind::kOff)
        return refuse(profile, "never skips, so a threshold would be ignored");
    }
  }
  if (fp8) r.softmax = *profile.fp8;
  if (biased) {
    r.softmax = *profile.biased;
    r.grade = std::max(r.grade, profile.biased_grade);  // grades grow weaker
    if (r.skip.compare == Compare::kExp2) r.skip.compare = Compare::kExp;
  }
  if (!problem.sinks.empty() && r.softmax.sink == SinkForm::kNone)
    return refuse(profile, "has no attention sinks");
  ASSAY_TRY(r.qk, instruction(profile, problem.dtype));
  r.pv = r.qk;
  const int step = r.qk->arithmetic.k;
  for (const TileShape& shape : profile.tiles) {
    if (shape.element_bytes != problem.element_bytes()) continue;
    if (problem.head_dim > shape.dim_max || problem.v_dim > shape.dim_max) continue;
    r.tile = shape;
    if (problem.mask != MaskKind::kFull && shape.kv_tile_masked != 0)
      r.tile.kv_tile = shape.kv_tile_masked;
    if (problem.head_dim % step != 0)
      return refuse(profile, fmt::format("needs a head_dim that is a multiple of {}, not {}", step,
                                         problem.head_dim));
    return r;
  }
  int largest = 0;
  for (const TileShape& shape : profile.tiles)
    if (shape.element_bytes == problem.element_bytes()) largest = std::max(largest, shape.dim_max);
  return refuse(profile,
                fmt::format("has no tile for head_dim {}, v_dim {} of {}; allowed are up "
                            "to {}",
                            problem.head_dim, problem.v_dim, dtype_name(problem.dtype), largest));
}

}  // namespace assay::attention
