// Names and parameters of an input; rows are file_rows.cpp's. See file_input.hpp.
#include "model/attention/file_input.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "model/core/case_text.hpp"
#include "model/core/text.hpp"

namespace assay::attention {
namespace {

Status read_mask(const std::string& text, Problem& p) {
  if (text == "full" || text == "custom") return Done{};
  if (text == "causal" || text == "causal_topleft") {
    p.mask = MaskKind::kCausal;
    return Done{};
  }
  for (const auto& [prefix, kind] :
       {std::pair<std::string_view, MaskKind>{"window:", MaskKind::kWindow},
        {"chunked:", MaskKind::kChunked}}) {
    if (text.compare(0, prefix.size(), prefix) != 0) continue;
    p.mask = kind;
    ASSAY_TRY(p.mask_size, parse_integer<std::int32_t>(fmt::format("N of mask={}N", prefix),
                                                       std::string_view(text).substr(prefix.size()),
                                                       1, kFileRowsMax));
    return Done{};
  }
  return bad_input(fmt::format(
      "mask is {}; allowed are full, causal, causal_topleft, window:N, chunked:N and custom",
      in_quotes(text)));
}

const std::string* find(const Parameters& parameters, std::string_view key) {
  const auto at = parameters.find(key);
  return at == parameters.end() ? nullptr : &at->second;
}

}  // namespace

std::uint64_t FileInput::rows() const {
  std::uint64_t rows = 1;
  for (const std::uint64_t size : rows_shape) rows *= size;
  return rows;
}

std::vector<std::string_view> file_tensors() {
  return {"q",
          "k",
          "v",
          "q_len",
          "kv_len",
          "cu_seqlens_q",
          "kv_pages",
          "ckv",
          "kpe",
          "q_scale",
          "k_scale",
          "cu_seqlens_kv",
          "v_scale",
          "o_scale",
          "block_table",
          "sinks",
          "mask",
          "alibi_slopes",
          "threshold_scale_factor"};
}

Status check_file_tensors(const TensorFile& file) {
  static const std::vector<std::string_view> others = {"out",      "lse_log2", "lse_ln",
                                                       "decision", "margin",   "step"};
  static const std::vector<std::string_view> inputs = file_tensors();
  const auto in = [](const std::vector<std::string_view>& names, std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (const TensorView& view : file.tensors())
    if (!in(inputs, view.name) && !in(others, view.name) && view.name.substr(0, 2) != "x.")
      return bad_input(
          fmt::format("tensor {} is unknown; known are {}, outputs, and names that begin with x.",
                      in_quotes(view.name), joined(inputs)));
  return Done{};
}

std::span<const ParameterKey> file_parameters() {
  static const std::vector<ParameterKey> keys = {
      {"profile", ParameterForm::kWord},   {"threshold_scale_factor", ParameterForm::kReal},
      {"mask", ParameterForm::kWord},      {"scale", ParameterForm::kReal},
      {"softcap", ParameterForm::kReal},   {"q_offset", ParameterForm::kInteger},
      {"splits", ParameterForm::kInteger}, {"out_dtype", ParameterForm::kWord}};
  return keys;
}

Status read_file_parameters(const Parameters& parameters, Problem& p) {
  p.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(std::max(p.head_dim, 1))));
  if (const std::string* text = find(parameters, "scale")) {
    ASSAY_TRY(p.scale, parse_real("scale", *text, RealRange::kPositive));
  }
  if (const std::string* text = find(parameters, "softcap")) {
    ASSAY_TRY(p.softcap, parse_real("softcap", *text, RealRange::kNotNegative));
  }
  if (const std::string* text = find(parameters, "threshold_scale_factor")) {
    ASSAY_TRY(const float factor,
              parse_real("threshold_scale_factor", *text, RealRange::kNotNegativeOrInf));
    for (Request& r : p.requests) r.threshold = {Threshold::Kind::kScaleFactor, factor};
  }
  if (const std::string* text = find(parameters, "splits")) {
    ASSAY_TRY(p.splits, parse_integer<std::int32_t>("splits", *text, 1, kFileCountMax));
  }
  bool bottom_right = true;
  if (const std::string* text = find(parameters, "mask")) {
    ASSAY_CHECK(read_mask(*text, p));
    bottom_right = *text != "causal_topleft";
  }
  std::optional<std::int32_t> offset;
  if (const std::string* text = find(parameters, "q_offset")) {
    constexpr std::int32_t kOffsetMax = kFileRowsMax;
    ASSAY_TRY(offset, parse_integer<std::int32_t>("q_offset", *text, -kOffsetMax, kOffsetMax));
  }
  for (Request& r : p.requests) r.q_offset = offset.value_or(bottom_right ? r.kv_len - r.q_len : 0);
  p.out_dtype = p.dtype == Dtype::kF16 ? Dtype::kF16 : Dtype::kBf16;
  if (const std::string* text = find(parameters, "out_dtype")) {
    if (*text != "bf16" && *text != "f16")
      return bad_input(fmt::format("out_dtype is {}; allowed are bf16 and f16", in_quotes(*text)));
    p.out_dtype = *text == "f16" ? Dtype::kF16 : Dtype::kBf16;
  }
  return Done{};
}

}  // namespace assay::attention
