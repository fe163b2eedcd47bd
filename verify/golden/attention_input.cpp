// See attention_input.hpp: the small tensors and the parameters; rows are attention_layout.cpp's.
#include "verify/golden/attention_input.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "model/core/text.hpp"

namespace assay::verify {

using namespace assay::attention;

namespace {

class Reader {
 public:
  explicit Reader(const GoldenInput& in)
      : in_(in), file_(*in.file), input_(std::make_unique<AttentionInput>()), p_(input_->problem) {}

  Expected<std::unique_ptr<const AttentionInput>> read() {
    ASSAY_CHECK(in_file(check_names()));
    ASSAY_CHECK(in_file(read_attention_rows(file_, *input_)));
    ASSAY_CHECK(in_file(read_scales()));
    ASSAY_CHECK(in_file(read_per_head("sinks", input_->sinks, p_.sinks)));
    ASSAY_CHECK(in_file(read_per_head("alibi_slopes", input_->alibi_slopes, p_.alibi_slopes)));
    ASSAY_CHECK(read_parameters());
    ASSAY_CHECK(read_thresholds());
    ASSAY_CHECK(in_file(read_mask()));
    ASSAY_CHECK(in_file(check(p_)));
    return std::unique_ptr<const AttentionInput>(std::move(input_));
  }

 private:
  std::size_t requests() const { return p_.requests.size(); }

  Status in_file(Status status) const {
    return status ? status : Status(status.error().within(file_.path()));
  }

  // A name that nobody knows may be a known one misspelled (SPEC VER-21.7): without its threshold a
  // call is dense. Outputs may lie beside inputs, and what begins with "x." is the user's own.
  Status check_names() const {
    static const std::vector<std::string_view> others = {"out",      "lse_log2", "lse_ln",
                                                         "decision", "margin",   "step"};
    const std::vector<std::string_view> inputs = attention_tensors();
    const auto in = [](const std::vector<std::string_view>& names, std::string_view name) {
      return std::find(names.begin(), names.end(), name) != names.end();
    };
    for (const TensorView& view : file_.tensors())
      if (!in(inputs, view.name) && !in(others, view.name) && view.name.substr(0, 2) != "x.")
        return bad_input(
            fmt::format("tensor {} is unknown; known are {}, outputs, and names that "
                        "begin with x.",
                        in_quotes(view.name), joined(inputs)));
    return Done{};
  }

  Expected<float> read_scale(const char* name) {
    if (!file_.has(name)) return 1.0f;
    ASSAY_TRY(const TensorView view, file_.tensor(name));
    if (view.dtype != Dtype::kF32 || view.num_elements() != 1)
      return bad_input(fmt::format("tensor {} is {} {}; allowed is F32 with one element", name,
                                   dtype_name(view.dtype), shape_text(view.shape)));
    const float value = Elements<float>(view.bytes)[0];
    if (!(value > 0) || std::isinf(value))
      return bad_input(fmt::format("{} is {}; allowed are positive numbers", name, value));
    return value;
  }

  Status read_scales() {
    ASSAY_TRY(p_.q_scale, read_scale("q_scale"));
    ASSAY_TRY(p_.k_scale, read_scale("k_scale"));
    ASSAY_TRY(p_.v_scale, read_scale("v_scale"));
    ASSAY_TRY(const float out, read_scale("o_scale"));
    if (out == 1) return Done{};
    return unsupported(fmt::format(
        "o_scale is {}; it scales 8-bit outputs, which no profile states: allowed is 1", out));
  }

  Status read_per_head(const char* name, std::vector<float>& storage,
                       std::span<const float>& values) {
    if (!file_.has(name)) return Done{};
    ASSAY_TRY(const TensorView view, file_.tensor(name));
    ASSAY_CHECK(view.expect({Dtype::kF32}, {{"head", static_cast<std::uint64_t>(p_.q_heads)}}));
    storage = Elements<float>(view.bytes).copy();
    for (std::size_t i = 0; i < storage.size(); ++i) {
      if (!std::isfinite(storage[i]))
        return bad_input(
            fmt::format("{}[{}] is {}; allowed are finite numbers", name, i, storage[i]));
    }
    values = storage;
    return Done{};
  }

  Status read_thresholds() {
    const bool tensor = file_.has("threshold_scale_factor");
    const bool parameter = in_.has("threshold_scale_factor");
    if (tensor && parameter)
      return bad_input("threshold_scale_factor is a tensor and a parameter; give one of them");
    if (parameter) {
      ASSAY_TRY(const float factor, real("threshold_scale_factor", true));
      for (Request& r : p_.requests) r.threshold = {Threshold::Kind::kScaleFactor, factor};
    }
    if (!tensor) return Done{};
    ASSAY_TRY(const TensorView view, file_.tensor("threshold_scale_factor"));
    ASSAY_CHECK(view.expect({Dtype::kF32}, {{"request", requests()}}));
    const Elements<float> factors(view.bytes);
    for (std::size_t i = 0; i < requests(); ++i) {
      if (!(factors[i] >= 0))
        return bad_input(
            fmt::format("threshold_scale_factor[{}] is {}; allowed are 0 and more", i, factors[i]));
      p_.requests[i].threshold = {Threshold::Kind::kScaleFactor, factors[i]};
    }
    return Done{};
  }

  // --- parameters
  // ---------------------------------------------------------------------------------

  // A decimal number, 0 and more; infinite only where that means something.
  Expected<float> real(std::string_view key, bool may_be_infinite) {
    const std::string& text = in_.text(key);
    float value = 0;
    const char* const end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data(), end, value);
    const bool whole = parsed.ec == std::errc() && parsed.ptr == end;
    if (!whole || !(value >= 0) || (std::isinf(value) && !may_be_infinite))
      return bad_input(fmt::format("{} is {}; allowed are 0 and more, as F32 has them{}", key,
                                   in_quotes(text), may_be_infinite ? ", and inf" : ""));
    return value;
  }

  Status read_parameters() {
    p_.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(std::max(p_.head_dim, 1))));
    if (in_.has("scale")) {
      ASSAY_TRY(p_.scale, real("scale", false));
    }
    if (in_.has("softcap")) {
      ASSAY_TRY(p_.softcap, real("softcap", false));
    }
    ASSAY_TRY(p_.splits, in_.integer<std::int32_t>("splits", 1, kAttentionCountMax));
    ASSAY_CHECK(read_mask_kind(in_.text("mask")));
    const bool bottom_right = in_.text("mask") != "causal_topleft";
    std::optional<std::int32_t> offset;
    if (in_.has("q_offset")) {
      constexpr std::int32_t kOffsetMax = kAttentionRowsMax;
      ASSAY_TRY(offset, in_.integer<std::int32_t>("q_offset", -kOffsetMax, kOffsetMax));
    }
    for (Request& r : p_.requests)
      r.q_offset = offset.value_or(bottom_right ? r.kv_len - r.q_len : 0);
    p_.out_dtype = p_.dtype == Dtype::kF16 ? Dtype::kF16 : Dtype::kBf16;
    if (!in_.has("out_dtype")) return Done{};
    const std::string& out = in_.text("out_dtype");
    if (out != "bf16" && out != "f16")
      return bad_input(fmt::format("out_dtype is {}; allowed are bf16 and f16", in_quotes(out)));
    p_.out_dtype = out == "f16" ? Dtype::kF16 : Dtype::kBf16;
    return Done{};
  }

  Status read_mask_kind(const std::string& text) {
    if (text == "full" || text == "custom") return Done{};
    if (text == "causal" || text == "causal_topleft") {
      p_.mask = MaskKind::kCausal;
      return Done{};
    }
    for (const auto& [prefix, kind] :
         {std::pair<std::string_view, MaskKind>{"window:", MaskKind::kWindow},
          {"chunked:", MaskKind::kChunked}}) {
      if (text.compare(0, prefix.size(), prefix) != 0) continue;
      p_.mask = kind;
      ASSAY_TRY(p_.mask_size,
                parse_integer<std::int32_t>(fmt::format("mask={}N: N", prefix),
                                            std::string_view(text).substr(prefix.size()), 1,
                                            kAttentionRowsMax));
      return Done{};
    }
    return bad_input(fmt::format(
        "mask is {}; allowed are full, causal, causal_topleft, window:N, chunked:N and custom",
        in_quotes(text)));
  }

  // BOOL or U8 [b, rows, keys], at least as large as every request, 0 hides.
  Status read_mask() {
    const bool wanted = in_.text("mask") == "custom";
    if (wanted != file_.has("mask"))
      return bad_input(
          fmt::format("there is {}tensor mask, and parameter mask is {}; custom goes with "
                      "the tensor, the others without",
                      wanted ? "no " : "a ", in_.text("mask")));
    if (!wanted) return Done{};
    ASSAY_TRY(const TensorView mask, file_.tensor("mask"));
    ASSAY_CHECK(
        mask.expect({Dtype::kBool, Dtype::kU8}, {{"request", requests()}, {"row"}, {"key"}}));
    const std::uint64_t rows = mask.shape[1], keys = mask.shape[2];
    for (std::size_t i = 0; i < requests(); ++i) {
      const auto q_len = static_cast<std::uint64_t>(p_.requests[i].q_len);
      const auto kv_len = static_cast<std::uint64_t>(p_.requests[i].kv_len);
      if (q_len > rows || kv_len > keys)
        return bad_input(fmt::format("tensor mask has shape {}; request {} has {} rows and {} keys",
                                     shape_text(mask.shape), i, q_len, kv_len));
      std::vector<std::uint8_t>& cells = input_->masks.emplace_back(q_len * kv_len);
      for (std::uint64_t row = 0; row < q_len && kv_len > 0; ++row) {
        std::memcpy(&cells[row * kv_len], mask.bytes.data() + (i * rows + row) * keys, kv_len);
        for (std::uint64_t key = 0; key < kv_len; ++key) {
          if (cells[row * kv_len + key] > 1)
            return bad_input(fmt::format("mask[{}, {}, {}] is {}; allowed are 0 and 1", i, row, key,
                                         cells[row * kv_len + key]));
        }
      }
    }
    for (const auto& cells : input_->masks) p_.custom_mask.push_back(cells);
    return Done{};
  }

  const GoldenInput& in_;
  const TensorFile& file_;
  std::unique_ptr<AttentionInput> input_;
  Problem& p_;
};

}  // namespace

std::uint64_t AttentionInput::rows() const {
  std::uint64_t rows = 1;
  for (const std::uint64_t size : rows_shape) rows *= size;
  return rows;
}

Expected<std::unique_ptr<const AttentionInput>> read_attention(const GoldenInput& in) {
  return Reader(in).read();
}

std::vector<std::string_view> attention_tensors() {
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

std::vector<GoldenParameter> attention_parameters(std::string_view profile_names) {
  std::vector<GoldenParameter> list = {
      {"profile", profile_names, true},
      {"threshold_scale_factor", "0 and more, and inf"},
      {"mask",
       "full, causal, causal_topleft, window:N, chunked:N "
       "and custom",
       false, "full"},
      {"scale", "positive numbers"},
      {"softcap", "0 and more"},
      {"q_offset", "-16777216 to 16777216", false, std::nullopt, true},
      {"splits", "1 to 65535", false, "1", true},
      {"out_dtype", "bf16 and f16"}};
  for (GoldenParameter& parameter : list)
    parameter.real = parameter.name == "threshold_scale_factor" || parameter.name == "scale" ||
                     parameter.name == "softcap";
  return list;
}

}  // namespace assay::verify
